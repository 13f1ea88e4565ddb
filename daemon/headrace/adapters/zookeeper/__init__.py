"""ZooKeeper: one session a process, shared by its locks and its state store."""
