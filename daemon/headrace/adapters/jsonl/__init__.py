"""Lines of a file or of standard output: the sink."""
