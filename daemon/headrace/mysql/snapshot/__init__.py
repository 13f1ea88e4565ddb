"""Reads the rows that tables have now, chunk by chunk, beside the stream of their changes."""
