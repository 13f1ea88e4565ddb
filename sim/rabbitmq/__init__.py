"""A model of a RabbitMQ node at the level of the frames of AMQP 0-9-1."""
