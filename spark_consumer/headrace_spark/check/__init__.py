"""What `check` and `init` learn of the machine, of topics and of Elasticsearch."""
