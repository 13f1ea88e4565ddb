"""Compares the rows that a table has with those that consumers have."""
