"""Binlog events: their types, their bodies, and the transactions that they make up."""
