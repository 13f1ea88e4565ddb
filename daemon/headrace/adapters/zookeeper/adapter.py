"""ZooKeeper as a cluster service, by its section [zookeeper]."""

from __future__ import annotations

from headrace.adapters.zookeeper.settings import ZooKeeperSettings
from headrace.ports.cluster import Cluster, ClusterAdapter, Member


class ZooKeeperAdapter(ClusterAdapter):
    """See ClusterAdapter."""

    section = ZooKeeperSettings

    def cluster(self, settings: ZooKeeperSettings, member: Member) -> Cluster:
        """See ClusterAdapter."""
        from headrace.adapters.zookeeper.cluster import ZooKeeperCluster

        return ZooKeeperCluster(settings, member)
