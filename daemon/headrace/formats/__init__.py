"""Message formats: rows in, bytes out."""
