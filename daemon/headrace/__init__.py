"""The headrace daemon: MySQL row changes, read from the binlog and published with confirmation."""

__version__ = "0.1.0"
