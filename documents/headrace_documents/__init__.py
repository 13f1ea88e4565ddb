"""Shared by the consumers: messages into documents with versions, the bulk writer, and the reading of their files."""
