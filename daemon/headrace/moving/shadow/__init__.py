"""Compares what another system and headrace publish at the same time, before the one replaces the other."""
