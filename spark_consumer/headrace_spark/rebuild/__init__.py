"""A new index is filled from tables, by a command or when a column has changed its type."""
