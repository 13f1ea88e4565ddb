"""A model of a Kafka cluster at the level of the protocol's requests."""
