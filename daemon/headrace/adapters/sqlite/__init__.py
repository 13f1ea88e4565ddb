"""SQLite: the embedded state store and parking store."""
