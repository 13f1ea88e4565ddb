"""Where rows come from: Kafka's topics, and tables of MySQL by Spark's JDBC source."""
