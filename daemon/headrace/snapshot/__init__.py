"""Publishes the existing rows of tables, between the transactions of the stream."""
