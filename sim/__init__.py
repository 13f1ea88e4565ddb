"""A simulated world for headrace: one process, one seed, virtual time. Not part of the distribution."""
