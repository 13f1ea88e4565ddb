"""Fills a new index from tables, by a command or when a column has changed its type."""
