"""One destination: its states, its run, and everything that watches over it."""
