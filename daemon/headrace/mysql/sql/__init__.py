"""The texts of statements as the servers read them: their words, and what differs between servers and sessions."""
