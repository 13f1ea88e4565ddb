"""Servers that all processes of a run share: pytest's own process starts them, and they end with it.

Kafka alone: every test has topics of its own there. SQL servers are not shared: tests change their settings, freeze
them, and follow them with destinations of one name, which a server takes for one.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from devstack import Stack, ports
from devstack.cache import Cache
from devstack.servers import KAFKA
from devstack.servers.kafka import KafkaCluster, count_brokers
from tests.support import eventually

INSTALLED = 900.0
"""Seconds that a server may take to be there on a machine that has to download it first."""


class SharedServers:
    """In pytest's own process."""

    def __init__(self) -> None:
        self._stack = Stack()
        self.addresses = {"kafka": ports.free_port()}
        """What each worker is told: the ports by the names of the servers."""
        self._starting = threading.Thread(target=self._start, name="shared-servers", daemon=True)
        self._starting.start()

    def _start(self) -> None:
        self._stack.kafka(port=self.addresses["kafka"])

    def stop(self) -> None:
        self._starting.join(INSTALLED)
        self._stack.stop()


def kafka(addresses: Any) -> KafkaCluster:
    """In a worker: the shared Kafka as it is told, once it answers. It is started and stopped elsewhere."""
    made = KAFKA.cluster(Cache(), "kafka", Path("elsewhere"), addresses["kafka"])
    eventually(lambda: count_brokers(made.host, made.port) > 0, INSTALLED, lambda: "the shared Kafka does not answer")
    return made
