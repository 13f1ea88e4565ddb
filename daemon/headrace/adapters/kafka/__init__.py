"""Kafka: the sink, exactly-once delivery, its state store and its parking store."""
