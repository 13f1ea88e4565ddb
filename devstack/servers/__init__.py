"""The registry of servers: a new one is a new file here and one line below."""

from __future__ import annotations

from devstack.servers.base import Handle, Kind
from devstack.servers.canal import Canal
from devstack.servers.chromium import Chromium
from devstack.servers.elasticsearch import Elasticsearch
from devstack.servers.etcd import Etcd
from devstack.servers.kafka import Kafka
from devstack.servers.mariadb import Mariadb
from devstack.servers.mysql import Mysql
from devstack.servers.mysql56 import Mysql56
from devstack.servers.opensearch import Opensearch
from devstack.servers.prometheus import Prometheus
from devstack.servers.rabbitmq import Rabbitmq
from devstack.servers.redis import Redis
from devstack.servers.rocketmq import Rocketmq
from devstack.servers.seaweedfs import Seaweedfs
from devstack.servers.spark import Spark
from devstack.servers.sql import SqlKind, SqlServer
from devstack.servers.zookeeper import ZooKeeper

MYSQL = Mysql()
MYSQL56 = Mysql56()
MARIADB = Mariadb("mariadb", "10.11", "bookworm")
MARIADB118 = Mariadb("mariadb118", "11.8", "trixie")
KAFKA = Kafka()
ZOOKEEPER = ZooKeeper()
ETCD = Etcd()
ELASTICSEARCH = Elasticsearch()
OPENSEARCH = Opensearch()
RABBITMQ = Rabbitmq("rabbitmq", "3.10", "bookworm")
RABBITMQ4 = Rabbitmq("rabbitmq4", "4.0", "trixie")
ROCKETMQ = Rocketmq()
REDIS = Redis()
CANAL = Canal()
CHROMIUM = Chromium()
PROMETHEUS = Prometheus()
SPARK = Spark()
SEAWEEDFS = Seaweedfs()

SQL: dict[str, SqlKind[SqlServer]] = {kind.name: kind for kind in (MYSQL, MYSQL56, MARIADB, MARIADB118)}
BROKERS: dict[str, Rabbitmq] = {kind.name: kind for kind in (RABBITMQ, RABBITMQ4)}
"""RabbitMQ's versions."""
KINDS: dict[str, Kind] = {
    **SQL,
    **{kind.name: kind for kind in (KAFKA, ZOOKEEPER, ETCD, ELASTICSEARCH, OPENSEARCH)},
    **BROKERS,
    **{kind.name: kind for kind in (CANAL, ROCKETMQ, REDIS, CHROMIUM, PROMETHEUS, SPARK, SEAWEEDFS)},
}

__all__ = [
    "BROKERS",
    "CANAL",
    "CHROMIUM",
    "ELASTICSEARCH",
    "ETCD",
    "KAFKA",
    "KINDS",
    "MARIADB",
    "MYSQL",
    "OPENSEARCH",
    "PROMETHEUS",
    "REDIS",
    "ROCKETMQ",
    "SEAWEEDFS",
    "SPARK",
    "SQL",
    "ZOOKEEPER",
    "Handle",
    "Kind",
]
