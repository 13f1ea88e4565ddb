"""Compares indexes with their tables."""
