"""etcd: one lease a process, and the nodes that are keys of it."""
