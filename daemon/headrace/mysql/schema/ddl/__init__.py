"""Parses DDL as MySQL and MariaDB write it to the binlog; reports what it does not understand completely."""
