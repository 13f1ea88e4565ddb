"""A server for Canal's clients."""
