"""The demo: rows of four tables in MySQL become documents in Elasticsearch, on real servers, and both are compared."""
