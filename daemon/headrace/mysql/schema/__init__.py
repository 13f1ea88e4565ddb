"""Table schemas: their history, and the DDL that changes them."""
