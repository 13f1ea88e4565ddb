"""Compares what another system publishes with what headrace publishes beside it, before the one replaces the other."""
