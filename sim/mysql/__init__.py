"""A model of a MySQL server, true to its wire protocol, its binlog and its SQL as far as the daemon uses them."""
