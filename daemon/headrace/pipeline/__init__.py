"""Turns a change into messages: filter, routing, projection, message builder, byte queue."""
