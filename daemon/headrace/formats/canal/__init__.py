"""Canal's flat JSON."""
