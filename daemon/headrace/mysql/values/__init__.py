"""Column values out of the bytes of a row image."""
