"""Messages that could not be applied, and those that wait for a new index."""
