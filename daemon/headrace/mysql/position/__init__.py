"""Positions on a source: search, comparison with the server, moves."""
