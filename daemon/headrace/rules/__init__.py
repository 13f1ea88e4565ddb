"""Rules of the configuration: which tables, columns and rows are published, how they are masked, and where they go."""
