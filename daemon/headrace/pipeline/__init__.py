"""A change becomes messages: filter, routing, projection, message builder, byte queue."""
