"""Several processes for the destinations of one daemon: the supervising one, and the workers that it starts."""
