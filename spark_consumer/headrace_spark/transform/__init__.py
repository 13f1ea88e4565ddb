"""What Spark's tasks do with the messages of one batch: rows become documents."""
