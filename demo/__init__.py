"""The demo: rows of a table in MySQL become documents in Elasticsearch, on real servers, and both are compared."""
