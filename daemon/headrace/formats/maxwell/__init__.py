"""Maxwell's JSON."""
