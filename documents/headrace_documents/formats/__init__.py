"""Message formats: Canal, Debezium, and statements that truncate tables."""
