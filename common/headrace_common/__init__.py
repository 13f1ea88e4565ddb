"""What the daemon and the consumers would else write twice."""
