"""A model of ZooKeeper."""
