"""Refused messages: their order, their retry, and where they wait."""
