"""One destination: its states, its runs, and its watchers."""
