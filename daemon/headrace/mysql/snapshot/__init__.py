"""Reads the present rows of tables, chunk by chunk, alongside the stream of their changes."""
