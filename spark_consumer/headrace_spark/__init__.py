"""The Spark consumer: headrace messages from Kafka into Elasticsearch."""
