"""The simulator: models of the servers that the daemon talks to, which are driven from one seed."""
