"""Daemons that share destinations: the lease watchdog and rebalancing."""
