"""The parking store in a table of a MySQL server."""
