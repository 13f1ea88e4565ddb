"""The sink that writes lines to a file or standard output."""
