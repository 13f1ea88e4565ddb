"""What the process knows of itself, and how it is told."""
