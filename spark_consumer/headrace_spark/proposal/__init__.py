"""A configuration is proposed from a topic's messages."""
