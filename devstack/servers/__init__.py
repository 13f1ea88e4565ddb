"""The registry of servers: a new one is a new file here and one line below."""

from __future__ import annotations

from devstack.servers.base import Handle, Kind
from devstack.servers.elasticsearch import Elasticsearch
from devstack.servers.kafka import Kafka
from devstack.servers.mariadb import Mariadb
from devstack.servers.mysql import Mysql
from devstack.servers.rabbitmq import Rabbitmq
from devstack.servers.redis import Redis
from devstack.servers.rocketmq import Rocketmq
from devstack.servers.zookeeper import ZooKeeper

MYSQL = Mysql()
MARIADB = Mariadb()
KAFKA = Kafka()
ZOOKEEPER = ZooKeeper()
ELASTICSEARCH = Elasticsearch()
RABBITMQ = Rabbitmq()
ROCKETMQ = Rocketmq()
REDIS = Redis()

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (MYSQL, MARIADB, KAFKA, ZOOKEEPER, ELASTICSEARCH, RABBITMQ, ROCKETMQ, REDIS)
}

__all__ = [
    "ELASTICSEARCH",
    "KAFKA",
    "KINDS",
    "MARIADB",
    "MYSQL",
    "RABBITMQ",
    "REDIS",
    "ROCKETMQ",
    "ZOOKEEPER",
    "Handle",
    "Kind",
]
