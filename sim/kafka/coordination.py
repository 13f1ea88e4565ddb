"""Answers to FindCoordinator and to the requests of transactional and idempotent producers."""

from __future__ import annotations

import asyncio
from io import BytesIO
from typing import TYPE_CHECKING, Any

from aiokafka.protocol.coordination import FindCoordinatorRequest_v1, FindCoordinatorResponse_v1
from aiokafka.protocol.transaction import (
    AddPartitionsToTxnRequest_v0,
    AddPartitionsToTxnResponse_v0,
    EndTxnRequest_v0,
    EndTxnResponse_v0,
    InitProducerIdRequest_v0,
    InitProducerIdResponse_v0,
)

from sim.kafka import codes
from sim.kafka.connection import Exchange
from sim.kafka.partition import NOBODY, Partition

if TYPE_CHECKING:
    from sim.kafka.broker import Broker

_TRANSACTION = 1
"""The type of key that FindCoordinator has for transactional ids."""


def find_coordinator(broker: Broker, exchange: Exchange, frame: bytes, at: int) -> None:
    """Answers with the broker that coordinates a transactional id. Groups are not offered: nobody here has one."""
    request = FindCoordinatorRequest_v1.decode(BytesIO(frame[at:]))
    cluster, name = broker.cluster, request.coordinator_key
    code, leader = exchange.refusal(), NOBODY
    if not code and request.coordinator_type != _TRANSACTION:
        cluster.unknown.append((broker.number, exchange.api, exchange.version, exchange.client))
        code = codes.INVALID_REQUEST
    elif not code and not cluster.allows("TransactionalId", name, "Describe"):
        code = codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not code and ((leader := cluster.coordinators.of(name)) == NOBODY):
        code = codes.COORDINATOR_NOT_AVAILABLE
    throttle = cluster.throttle_ms(exchange.client)
    if code:
        exchange.answer(FindCoordinatorResponse_v1(throttle, code, None, -1, "", -1).encode())
        return
    host, port = cluster.brokers[leader].addresses[exchange.connection.listener][:2]
    exchange.answer(FindCoordinatorResponse_v1(throttle, codes.NONE, "NONE", leader, host, port).encode())


def _refusal(broker: Broker, exchange: Exchange, name: str) -> int:
    """Returns the error code for a request with a transactional id, before its content matters."""
    if code := exchange.refusal():
        return code
    if not broker.cluster.allows("TransactionalId", name, "Write"):
        return codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not name:
        return codes.INVALID_REQUEST
    return broker.cluster.coordinators.refusal(broker, name) if broker.views is None else codes.NONE


def _is_cut_off(broker: Broker, exchange: Exchange, name: str, late: bytes) -> bool:
    """Returns whether the broker can't reach the others: then it gives up and answers after its request timeout."""
    if broker.views is None:
        return False
    asyncio.get_running_loop().call_later(broker.cluster.settings.request_timeout, exchange.answer, late)
    return True


def init_producer_id(broker: Broker, exchange: Exchange, frame: bytes, at: int) -> None:
    """Gives a producer its id and epoch."""
    request = InitProducerIdRequest_v0.decode(BytesIO(frame[at:]))
    cluster, name = broker.cluster, request.transactional_id

    def body(code: int, producer_id: int, epoch: int) -> bytes:
        made: bytes = InitProducerIdResponse_v0(cluster.throttle_ms(exchange.client), code, producer_id, epoch).encode()
        return made

    if name is None:
        code = exchange.refusal()
        exchange.answer(body(code, -1, -1) if code else body(codes.NONE, cluster.new_producer_id(), 0))
    elif code := _refusal(broker, exchange, name):
        exchange.answer(body(code, -1, -1))
    elif not _is_cut_off(broker, exchange, name, body(codes.COORDINATOR_NOT_AVAILABLE, -1, -1)):
        timeout = request.transaction_timeout_ms / 1000
        cluster.coordinators.init_producer_id(name, timeout, lambda *found: exchange.answer(body(*found)))


def add_partitions(broker: Broker, exchange: Exchange, frame: bytes, at: int) -> None:
    """Adds partitions to a transaction: all of them or none."""
    request = AddPartitionsToTxnRequest_v0.decode(BytesIO(frame[at:]))
    cluster, name = broker.cluster, request.transactional_id

    def body(code: int, own: dict[tuple[str, int], int] | None = None) -> bytes:
        errors = [
            (topic, [(number, (own or {}).get((topic, number), code)) for number in numbers])
            for topic, numbers in request.topics
        ]
        made: bytes = AddPartitionsToTxnResponse_v0(cluster.throttle_ms(exchange.client), errors).encode()
        return made

    code = exchange.refusal() or (
        codes.NONE if cluster.allows("TransactionalId", name, "Write") else codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    )
    if code:
        exchange.answer(body(code))
        return
    partitions, own = _partitions(broker, request.topics)
    if own:
        exchange.answer(body(codes.OPERATION_NOT_ATTEMPTED, own))
    elif code := _refusal(broker, exchange, name):
        exchange.answer(body(code))
    elif not _is_cut_off(broker, exchange, name, body(codes.COORDINATOR_NOT_AVAILABLE)):
        cluster.coordinators.add_partitions(
            name,
            request.producer_id,
            request.producer_epoch,
            partitions,
            lambda code: exchange.answer(body(code)),
        )


def _partitions(broker: Broker, topics: Any) -> tuple[list[Partition], dict[tuple[str, int], int]]:
    """Returns the partitions, and the error codes of those that can't be added."""
    cluster, found, wrong = broker.cluster, list[Partition](), dict[tuple[str, int], int]()
    for topic, numbers in topics:
        known = cluster.topics.get(topic)
        for number in numbers:
            if not cluster.allows("Topic", topic, "Write"):
                wrong[topic, number] = codes.TOPIC_AUTHORIZATION_FAILED
            elif known is None or not 0 <= number < len(known.partitions):
                wrong[topic, number] = codes.UNKNOWN_TOPIC_OR_PARTITION
            else:
                found.append(known.partitions[number])
    return found, wrong


def end_transaction(broker: Broker, exchange: Exchange, frame: bytes, at: int) -> None:
    """Commits or aborts a transaction."""
    request = EndTxnRequest_v0.decode(BytesIO(frame[at:]))
    cluster, name = broker.cluster, request.transactional_id

    def body(code: int) -> bytes:
        made: bytes = EndTxnResponse_v0(cluster.throttle_ms(exchange.client), code).encode()
        return made

    if code := _refusal(broker, exchange, name):
        exchange.answer(body(code))
    elif not _is_cut_off(broker, exchange, name, body(codes.COORDINATOR_NOT_AVAILABLE)):
        cluster.coordinators.end(
            name,
            request.producer_id,
            request.producer_epoch,
            commit=request.transaction_result,
            reply=lambda code: exchange.answer(body(code)),
        )
