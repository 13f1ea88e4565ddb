"""What the process knows of itself, how tasks report to it, and how it is told."""
