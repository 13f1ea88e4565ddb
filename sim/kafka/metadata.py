"""Answers to ApiVersions and Metadata."""

from __future__ import annotations

import re
import struct
from io import BytesIO
from typing import TYPE_CHECKING

from aiokafka.protocol.admin import ApiVersionResponse_v0
from aiokafka.protocol.metadata import MetadataRequest_v5

from sim.kafka import codes
from sim.kafka.connection import Exchange
from sim.kafka.partition import NOBODY, Partition
from sim.kafka.wire import INT, VERSIONS, text

if TYPE_CHECKING:
    from sim.kafka.broker import Broker
    from sim.kafka.cluster import Topic

_NAME = re.compile(r"[a-zA-Z0-9._-]*")
_LONGEST = 249
_TOPIC_OPERATIONS = {
    "Read": 3,
    "Write": 4,
    "Create": 5,
    "Delete": 6,
    "Alter": 7,
    "Describe": 8,
    "DescribeConfigs": 10,
    "AlterConfigs": 11,
}
"""Numbers of AclOperation."""
_NOT_ASKED = -(2**31)


def fault_of_name(topic: str) -> str:
    """Returns why a topic can't have this name; "" if it can."""
    if not topic:
        return "the empty string is not allowed"
    if topic in (".", ".."):
        return f"'{topic}' is not allowed"
    if len(topic) > _LONGEST:
        return f"the length of '{topic}' is longer than the max allowed length {_LONGEST}"
    if not _NAME.fullmatch(topic):
        return f"'{topic}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return ""


def api_versions(broker: Broker, exchange: Exchange, frame: bytes, at: int) -> None:
    """Answers with the versions that the model knows."""
    versions = [(api, *both) for api, both in VERSIONS.items()]
    exchange.answer(ApiVersionResponse_v0(exchange.refusal(), versions).encode())


def unsupported_versions() -> bytes:
    """Returns the answer to an ApiVersions request of an unknown version: in version 0, as KIP-511 says."""
    body: bytes = ApiVersionResponse_v0(codes.UNSUPPORTED_VERSION, [(18, *VERSIONS[18])]).encode()
    return body


def metadata(broker: Broker, exchange: Exchange, frame: bytes, at: int) -> None:
    """Answers with brokers, topics and leaders, as this broker knows them; may create topics."""
    cluster, newer = broker.cluster, exchange.version == 8
    if exchange.version not in (5, 8):
        cluster.unknown.append((broker.number, exchange.api, exchange.version, exchange.client))
        exchange.connection.abort()
        return
    request = MetadataRequest_v5.decode(BytesIO(frame[at:]))
    operations = newer and frame[-1] != 0
    known = cluster.topics
    if request.topics is None:
        names = [name for name in known if cluster.allows("Topic", name, "Describe")]
    else:
        names = list(dict.fromkeys(request.topics))
    brokers = [one for one in cluster.brokers.values() if one.registered or broker.views is not None]
    parts = [
        INT.pack(cluster.throttle_ms(exchange.client)),
        INT.pack(len(brokers)),
        *(_broker(one, exchange.connection.listener) for one in brokers),
        text(cluster.cluster_id),
        INT.pack(cluster.controller if broker.views is None else broker.number),
        INT.pack(len(names)),
    ]
    for name in names:
        code, topic = _topic(broker, exchange, name, create=bool(request.allow_auto_topic_creation))
        partitions = [] if code or topic is None else topic.partitions
        parts.append(struct.pack(">h", code) + text(name))
        parts.append(struct.pack(">?i", topic is not None and topic.internal, len(partitions)))
        parts += [_partition(broker, one, newer) for one in partitions]
        if newer:
            parts.append(INT.pack(_operations(broker, name) if operations and not code else _NOT_ASKED))
    if newer:
        parts.append(INT.pack(_NOT_ASKED))
    exchange.answer(b"".join(parts))


def _broker(broker: Broker, listener: str) -> bytes:
    host, port = broker.addresses[listener][:2]
    return INT.pack(broker.number) + text(host) + INT.pack(port) + struct.pack(">h", -1)


def _topic(broker: Broker, exchange: Exchange, name: str, *, create: bool) -> tuple[int, Topic | None]:
    cluster = broker.cluster
    if code := exchange.refusal(name):
        return code, None
    if not cluster.allows("Topic", name, "Describe"):
        return codes.TOPIC_AUTHORIZATION_FAILED, None
    topic = cluster.topics.get(name)
    if topic is not None and (broker.views is None or name in broker.views):
        return codes.NONE, topic
    if fault_of_name(name):
        return codes.INVALID_TOPIC_EXCEPTION, None
    if create and cluster.settings.auto_create_topics and topic is None and broker.views is None:
        if not cluster.allows("Topic", name, "Create"):
            return codes.TOPIC_AUTHORIZATION_FAILED, None
        cluster.create_later(name, cluster.settings.partitions)
    return codes.UNKNOWN_TOPIC_OR_PARTITION, None


def _operations(broker: Broker, name: str) -> int:
    allows = broker.cluster.allows
    return sum(1 << number for operation, number in _TOPIC_OPERATIONS.items() if allows("Topic", name, operation))


def _partition(broker: Broker, partition: Partition, newer: bool) -> bytes:
    view = broker.view(partition) if broker.views is not None else None
    leader, epoch, isr = (view or partition).leader, (view or partition).epoch, (view or partition).isr
    offline = [one for one in partition.replicas if not broker.cluster.brokers[one].registered]
    if view is not None:
        offline = []
    code = codes.LEADER_NOT_AVAILABLE if leader == NOBODY else codes.NONE
    head = struct.pack(">hii", code, partition.number, leader) + (INT.pack(epoch) if newer else b"")
    return head + b"".join(struct.pack(f">i{len(one)}i", len(one), *one) for one in (partition.replicas, isr, offline))
