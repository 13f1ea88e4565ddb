"""The command line of the Spark consumer: one module a command."""
