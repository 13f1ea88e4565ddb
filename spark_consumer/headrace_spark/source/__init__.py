"""The tables that the messages are of, read by Spark's JDBC source."""
