"""ZooKeeper as a cluster service, by its section [zookeeper]."""

from __future__ import annotations

from headrace.adapters.zookeeper.settings import ZooKeeperSettings
from headrace.ports.cluster import Cluster, ClusterAdapter, Member


class ZooKeeperAdapter(ClusterAdapter):
    section = ZooKeeperSettings

    def cluster(self, settings: ZooKeeperSettings, member: Member) -> Cluster:
        from headrace.adapters.zookeeper.cluster import ZooKeeperCluster

        return ZooKeeperCluster(settings, member)
