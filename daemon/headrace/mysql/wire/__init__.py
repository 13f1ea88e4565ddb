"""The wire: connections, packets, the stream of a dump, and the errors that a server answers with."""
