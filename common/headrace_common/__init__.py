"""Code that the daemon and the consumers share."""
