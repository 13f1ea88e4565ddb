"""Kafka below sinks and stores: producers, transactions, and the topic that keeps positions."""
