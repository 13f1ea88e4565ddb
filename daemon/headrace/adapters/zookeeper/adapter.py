"""ZooKeeper as a lock service, by its section [zookeeper]."""

from __future__ import annotations

from headrace.adapters.zookeeper.settings import ZooKeeperSettings
from headrace.ports.lock_service import ClusterAdapter, LockService


class ZooKeeperAdapter(ClusterAdapter):
    section = ZooKeeperSettings

    def service(self, settings: ZooKeeperSettings) -> LockService:
        from headrace.adapters.zookeeper.service import ZooKeeper

        return ZooKeeper(settings)
