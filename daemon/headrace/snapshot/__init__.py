"""Rows that tables have already, given out between the transactions of the stream."""
