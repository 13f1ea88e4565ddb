"""The deterministic simulator: models of servers, and the world that the daemon runs in."""
