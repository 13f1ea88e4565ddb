"""The work of Spark's tasks on the messages of one batch: rows become documents."""
