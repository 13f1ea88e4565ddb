"""The source: all code that connects to MySQL or MariaDB, or reads their data."""
