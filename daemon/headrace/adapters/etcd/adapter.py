"""etcd as a lock service, by its section [etcd]."""

from __future__ import annotations

from headrace.adapters.etcd.settings import EtcdSettings
from headrace.ports.lock_service import ClusterAdapter, LockService, ServiceError


class EtcdAdapter(ClusterAdapter):
    section = EtcdSettings

    def service(self, settings: EtcdSettings) -> LockService:
        try:
            from headrace.adapters.etcd.service import Etcd
        except ModuleNotFoundError as error:
            raise ServiceError(
                f"the client for etcd is not installed ({error.name})", remedy="pip install 'headrace[etcd]'"
            ) from error
        return Etcd(settings)
