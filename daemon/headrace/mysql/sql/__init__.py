"""The texts of statements as the servers read them: their tokens, and the differences between servers and sessions."""
