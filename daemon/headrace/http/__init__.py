"""The HTTP server: health, metrics, status page and commands."""
