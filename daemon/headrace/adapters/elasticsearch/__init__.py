"""Elasticsearch, as far as documents are read that consumers have written."""
