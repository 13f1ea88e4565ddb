"""Starts real servers on loopback, without containers: MySQL, Kafka, RabbitMQ and others.

    with devstack.Stack() as stack:
        mysql = stack.mysql()
        kafka = stack.kafka()
        print(mysql.address, kafka.bootstrap_servers)

It needs only Python's standard library. All downloads and files go into the repository's cache folder."""

from __future__ import annotations

from devstack import java
from devstack.cache import Cache
from devstack.errors import BadRequest, DevstackError, PortTaken, StartFailed, Unavailable
from devstack.server import Cluster, Server
from devstack.stack import Stack

__all__ = [
    "BadRequest",
    "Cache",
    "Cluster",
    "DevstackError",
    "PortTaken",
    "Server",
    "Stack",
    "StartFailed",
    "Unavailable",
    "java",
]
