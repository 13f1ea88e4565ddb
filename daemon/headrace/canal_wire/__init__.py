"""Canal's protocol: its packets and entries, for the format that writes them and the sink that serves them."""
