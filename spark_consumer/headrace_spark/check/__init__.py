"""Reads facts of the machine, of topics and of Elasticsearch for `check` and `init`."""
