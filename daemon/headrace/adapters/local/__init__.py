"""One machine: the file lock."""
