"""The source: everything that speaks to MySQL or MariaDB."""
