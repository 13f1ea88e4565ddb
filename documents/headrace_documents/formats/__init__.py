"""What messages say: Canal, Debezium, and statements that empty tables."""
