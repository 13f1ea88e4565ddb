"""A new index is filled from tables."""
