"""Elasticsearch, for reading documents that consumers have written."""
