"""Column values from the bytes of a row image."""
