"""How far the consumer is: its checkpoint, beside Kafka's topics."""
