"""Spark's session and its JVM."""
