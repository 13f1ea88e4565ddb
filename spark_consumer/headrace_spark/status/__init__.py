"""The status of the process: how tasks report to it, and how it is published."""
