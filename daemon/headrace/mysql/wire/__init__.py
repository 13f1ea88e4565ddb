"""The wire protocol: connections, packets, the stream of a dump, and the errors of servers."""
