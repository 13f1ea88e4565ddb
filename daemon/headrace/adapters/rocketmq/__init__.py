"""RocketMQ 5: the sink."""
