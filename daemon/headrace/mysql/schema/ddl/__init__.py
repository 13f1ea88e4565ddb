"""Reads DDL as MySQL and MariaDB write it to the binlog; what is not understood completely is said to be so."""
