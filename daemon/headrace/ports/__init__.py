"""The ports: abstract bases of everything that an adapter provides."""
