"""Kafka, by the client in Spark."""
