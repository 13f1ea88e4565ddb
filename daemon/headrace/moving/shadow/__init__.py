"""Compares what another system and headrace publish at the same time, before headrace replaces it."""
