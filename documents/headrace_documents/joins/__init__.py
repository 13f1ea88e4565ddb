"""Documents of several tables."""
