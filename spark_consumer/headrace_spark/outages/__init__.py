"""What waits for whom and why, from tasks to the log."""
