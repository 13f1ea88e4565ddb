"""The command line of the Spark consumer: one module for each command."""
