"""RabbitMQ: the sink."""
