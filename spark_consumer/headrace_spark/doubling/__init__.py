"""Indexes that are rebuilt are written twice, as an index notes."""
