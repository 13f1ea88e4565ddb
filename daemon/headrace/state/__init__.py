"""State stores: one file each under one base."""
