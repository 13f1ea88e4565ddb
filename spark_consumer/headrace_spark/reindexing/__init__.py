"""Indexes are filled anew by the running consumer, when a column has changed its type."""
