"""Message formats: rows to bytes."""
