"""Migration from Canal and Debezium, and back: their configuration, and their cursors."""
