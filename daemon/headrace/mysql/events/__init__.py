"""Binlog events: their types, their bodies, and their transactions."""
