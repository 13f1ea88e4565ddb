"""Answers to CreateTopics, DeleteTopics, DeleteRecords and DescribeConfigs."""

from __future__ import annotations

import asyncio
from io import BytesIO
from typing import TYPE_CHECKING, Any

from aiokafka.protocol.admin import (
    CreateTopicsRequest_v3,
    CreateTopicsResponse_v3,
    DeleteRecordsRequest_v2,
    DeleteRecordsResponse_v2,
    DeleteTopicsRequest_v3,
    DeleteTopicsResponse_v3,
    DescribeConfigsRequest_v2,
    DescribeConfigsResponse_v2,
)

from sim.kafka import codes
from sim.kafka.connection import Exchange
from sim.kafka.metadata import fault_of_name
from sim.kafka.settings import settings_of_brokers, topic_defaults

if TYPE_CHECKING:
    from sim.kafka.broker import Broker

_TOPIC, _BROKER = 2, 4
"""Types of resources, by the numbers of ConfigResource."""
_FROM_TOPIC, _FROM_BROKER, _DEFAULT = 1, 4, 5
"""Sources of a setting, by the numbers of ConfigSource."""
_DEFAULTS = {"message.max.bytes": "1048588", "transaction.max.timeout.ms": "900000"}
"""Settings that the brokers' file has only if they differ from these."""
_TO_THE_END = -1
_Refused = tuple[int, str | None]


def _answer_late(broker: Broker, exchange: Exchange, body: bytes) -> None:
    """Answers of a broker that can't reach the controller come after its request timeout."""
    asyncio.get_running_loop().call_later(broker.cluster.settings.request_timeout, exchange.answer, body)


def create_topics(broker: Broker, exchange: Exchange, frame: bytes, at: int) -> None:
    """Creates topics, version 3: the controller does it, whichever broker is asked."""
    request = CreateTopicsRequest_v3.decode(BytesIO(frame[at:]))
    cluster = broker.cluster
    wanted = request.create_topic_requests
    names = [one[0] for one in wanted]
    throttle = cluster.throttle_ms(exchange.client)
    if broker.views is not None:
        late = [(name, codes.REQUEST_TIMED_OUT, None) for name in names]
        _answer_late(broker, exchange, CreateTopicsResponse_v3(throttle, late).encode())
        return
    results = []
    for topic in dict.fromkeys(names):
        _, partitions, replication, assignment, config = next(one for one in wanted if one[0] == topic)
        settings = dict(config)
        if code := exchange.refusal(topic):
            refused: _Refused = code, None
        elif names.count(topic) > 1:
            refused = codes.INVALID_REQUEST, "Duplicate topic name."
        else:
            refused = _refusal(broker, topic, partitions, replication, assignment, settings)
        if not refused[0] and not request.validate_only:
            count = len(assignment) if assignment else partitions
            copies = len(assignment[0][1]) if assignment else replication
            cluster.create_topic(topic, count, copies, settings)
        results.append((topic, *refused))
    exchange.answer(CreateTopicsResponse_v3(throttle, results).encode())


def _refusal(
    broker: Broker, topic: str, partitions: int, replication: int, assignment: Any, config: dict[str, str]
) -> _Refused:
    """Returns the controller's error code and text for a topic, in its order; 0 if it can be created."""
    cluster = broker.cluster
    if not cluster.allows("Cluster", "kafka-cluster", "Create") or not cluster.allows("Topic", topic, "Create"):
        return codes.TOPIC_AUTHORIZATION_FAILED, "Authorization failed."
    if fault := fault_of_name(topic):
        return codes.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {fault}"
    if topic in cluster.topics:
        return codes.TOPIC_ALREADY_EXISTS, f"Topic '{topic}' already exists."
    alike = topic.replace(".", "_")
    if other := next((name for name in cluster.topics if name.replace(".", "_") == alike), ""):
        return codes.INVALID_TOPIC_EXCEPTION, f"Topic '{topic}' collides with existing topic: {other}"
    known = topic_defaults(cluster.settings, len(cluster.brokers))
    if strange := [name for name in config if name not in known]:
        return codes.INVALID_CONFIG, f"Unknown topic config name: {strange[0]}"
    if assignment:
        return codes.NONE, None
    if replication < -1 or replication == 0:
        return (
            codes.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if partitions < -1 or partitions == 0:
        return codes.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
    registered = sum(one.registered for one in cluster.brokers.values())
    if replication > registered:
        return (
            codes.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication} time(s): The target replication factor of {replication} "
            f"cannot be reached because only {registered} broker(s) are registered.",
        )
    return codes.NONE, None


def delete_topics(broker: Broker, exchange: Exchange, frame: bytes, at: int) -> None:
    """Deletes topics, version 3."""
    request = DeleteTopicsRequest_v3.decode(BytesIO(frame[at:]))
    cluster, results = broker.cluster, []
    throttle = cluster.throttle_ms(exchange.client)
    if broker.views is not None:
        late = [(name, codes.REQUEST_TIMED_OUT) for name in request.topics]
        _answer_late(broker, exchange, DeleteTopicsResponse_v3(throttle, late).encode())
        return
    for topic in request.topics:
        code = exchange.refusal(topic)
        if not code and not cluster.allows("Topic", topic, "Delete"):
            code = codes.TOPIC_AUTHORIZATION_FAILED
        elif not code and topic not in cluster.topics:
            code = codes.UNKNOWN_TOPIC_OR_PARTITION
        elif not code:
            cluster.delete_topic(topic)
        results.append((topic, code))
    exchange.answer(DeleteTopicsResponse_v3(throttle, results).encode())


def delete_records(broker: Broker, exchange: Exchange, frame: bytes, at: int) -> None:
    """Moves the start of partitions, version 2 (KIP-107)."""
    request = DeleteRecordsRequest_v2.decode(BytesIO(frame[at:]))
    cluster, topics = broker.cluster, list[Any]()
    for topic, wanted, _ in request.topics:
        refusal = exchange.refusal(topic)
        if not refusal and not cluster.allows("Topic", topic, "Delete"):
            refusal = codes.TOPIC_AUTHORIZATION_FAILED
        found = list[Any]()
        for number, offset, _ in wanted:
            partition, code = broker.find(topic, number)
            code = refusal or code
            if code or partition is None:
                found.append((number, -1, code, {}))
                continue
            log = partition.log
            until = log.high_watermark if offset == _TO_THE_END else offset
            if not 0 <= until <= log.high_watermark:
                found.append((number, -1, codes.OFFSET_OUT_OF_RANGE, {}))
                continue
            log.forget(until)
            found.append((number, log.start, codes.NONE, {}))
        topics.append((topic, found, {}))
    exchange.answer(DeleteRecordsResponse_v2(cluster.throttle_ms(exchange.client), topics, {}).encode())


def describe_configs(broker: Broker, exchange: Exchange, frame: bytes, at: int) -> None:
    """Answers with settings of topics and of this broker, version 2, without synonyms."""
    request = DescribeConfigsRequest_v2.decode(BytesIO(frame[at:]))
    results = []
    for kind, name, keys in request.resources:
        code, text, entries = exchange.refusal(), "", dict[str, tuple[str, int]]()
        if not code:
            code, text, entries = _settings(broker, kind, name)
        read_only = kind == _BROKER
        listed: list[Any] = [
            (key, value, read_only, source, False, [])
            for key, (value, source) in entries.items()
            if keys is None or key in keys
        ]
        results.append((code, text, kind, name, listed))
    exchange.answer(DescribeConfigsResponse_v2(broker.cluster.throttle_ms(exchange.client), results).encode())


def _settings(broker: Broker, kind: int, name: str) -> tuple[int, str, dict[str, tuple[str, int]]]:
    """Returns error code, text, and each setting with its source."""
    cluster = broker.cluster
    if kind == _BROKER:
        if not cluster.allows("Cluster", "kafka-cluster", "DescribeConfigs"):
            return 31, "Cluster authorization failed.", {}
        if name != str(broker.number):
            return (
                codes.INVALID_REQUEST,
                f"Unexpected broker id, expected {broker.number} or empty string, but received {name}",
                {},
            )
        settings = cluster.settings
        values = {
            "auto.create.topics.enable": str(settings.auto_create_topics).lower(),
            "default.replication.factor": str(settings.replication or len(cluster.brokers)),
            "message.max.bytes": str(settings.max_message),
            "num.partitions": str(settings.partitions),
            "transaction.max.timeout.ms": str(int(settings.max_transaction_timeout * 1000)),
        }
        defaults = _DEFAULTS.items()
        return codes.NONE, "", {k: (v, _DEFAULT if (k, v) in defaults else _FROM_BROKER) for k, v in values.items()}
    if kind != _TOPIC:
        return codes.INVALID_REQUEST, f"Unsupported resource type: {kind}", {}
    if not cluster.allows("Topic", name, "DescribeConfigs"):
        return codes.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.", {}
    topic = cluster.topics.get(name)
    if topic is None:
        return codes.UNKNOWN_TOPIC_OR_PARTITION, "", {}
    return (
        codes.NONE,
        "",
        {key: (value, _source(broker, topic.config, key)) for key, value in topic.settings().items()},
    )


def _source(broker: Broker, config: dict[str, str], key: str) -> int:
    """Returns where a setting of a topic comes from."""
    if key in config:
        return _FROM_TOPIC
    return _FROM_BROKER if key in settings_of_brokers(broker.cluster.settings) else _DEFAULT
