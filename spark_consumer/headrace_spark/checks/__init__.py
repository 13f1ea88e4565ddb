"""What `headrace-spark check` looks at: a file a subject, each of which adds to the findings."""
