"""Indexes are compared with their tables."""
