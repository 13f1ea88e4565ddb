"""Nothing: the sink that measures what comes before a sink."""
