"""The streaming query: it is run, restarted, paced and watched."""
