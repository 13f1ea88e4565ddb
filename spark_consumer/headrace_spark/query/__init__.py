"""The streaming query: it is run, begun again, paced and watched."""
