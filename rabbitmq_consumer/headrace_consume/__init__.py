"""The RabbitMQ consumer: headrace messages from a queue into Elasticsearch."""
