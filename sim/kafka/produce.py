"""Answers to Produce: what a leader checks of a record batch, in its order, and when it confirms."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

from sim.kafka import codes
from sim.kafka.connection import Exchange
from sim.kafka.partition import NEVER, Partition
from sim.kafka.records import NO_PRODUCER, Batch, is_several, is_whole
from sim.kafka.wire import INT, text_at

if TYPE_CHECKING:
    from sim.kafka.broker import Broker

_PARAMETERS = struct.Struct(">hii")
"""Acks, timeout in milliseconds, number of topics."""
_PARTITION = struct.Struct(">ihqqq")
"""Number, error code, base offset, time of the append, start of the log."""
_NOWHERE = -1
_NO_ACKS, _ALL = 0, -1


class _Produce:
    """One request: what was stored, and what is still not on all in-sync replicas."""

    def __init__(self, broker: Broker, exchange: Exchange, acks: int, timeout: float) -> None:
        self._broker, self._exchange, self._acks, self._timeout = broker, exchange, acks, timeout
        self._topics: list[tuple[bytes, list[list[int]]]] = []
        self._missing = 0
        self._timer: asyncio.TimerHandle | None = None
        self._late: list[tuple[Partition, _Confirmation]] = []

    def topic(self, encoded: bytes) -> None:
        """Begins the answer for a topic."""
        self._topics.append((encoded, []))

    def result(self, partition: int, code: int, base: int = _NOWHERE, start: int = _NOWHERE) -> list[int]:
        """Adds the answer for a partition of the topic."""
        answer = [partition, code, base, start]
        self._topics[-1][1].append(answer)
        return answer

    def stored(self, partition: Partition, base: int, end: int) -> None:
        """Adds a stored batch; with acks=all it counts once all in-sync replicas have it."""
        log = partition.log
        answer = self.result(partition.number, codes.NONE, base, log.start)
        if self._acks == _ALL and log.high_watermark < end:
            self.wait(partition, end, answer)

    def wait(self, partition: Partition, end: int, answer: list[int]) -> None:
        """Lets the answer wait for the replicas."""
        confirmation = _Confirmation(self, answer)
        self._missing += 1
        self._late.append((partition, confirmation))
        partition.when_replicated(end, confirmation, client=True)

    def confirmed(self, answer: list[int], code: int) -> None:
        """Takes the replicas' confirmation of one partition, or why there is none."""
        if code:
            answer[1:] = [code, _NOWHERE, _NOWHERE]
        self._missing -= 1
        if not self._missing and self._timer is not None:
            self._timer.cancel()
            self._answer()

    def finish(self) -> None:
        """Answers, at once or when the replicas have everything."""
        if self._missing:
            self._timer = asyncio.get_running_loop().call_later(self._timeout, self._expire)
        else:
            self._answer()

    def _expire(self) -> None:
        for partition, confirmation in self._late:
            if partition.give_up(confirmation):
                confirmation(codes.REQUEST_TIMED_OUT)

    def _answer(self) -> None:
        exchange = self._exchange
        if self._acks == _NO_ACKS:
            exchange.no_answer()
            return
        parts = [INT.pack(len(self._topics))]
        for encoded, partitions in self._topics:
            parts.append(encoded + INT.pack(len(partitions)))
            parts += [_PARTITION.pack(number, code, base, -1, start) for number, code, base, start in partitions]
        parts.append(INT.pack(self._broker.cluster.throttle_ms(exchange.client)))
        exchange.answer(b"".join(parts))


class _Confirmation:
    """What a partition calls when the replicas have a batch."""

    __slots__ = ("_answer", "_request")

    def __init__(self, request: _Produce, answer: list[int]) -> None:
        self._request, self._answer = request, answer

    def __call__(self, code: int) -> None:
        self._request.confirmed(self._answer, code)


def produce(broker: Broker, exchange: Exchange, frame: bytes, at: int) -> None:
    """Stores record batches, version 7."""
    transactional_id, at = text_at(frame, at)
    acks, timeout, topics = _PARAMETERS.unpack_from(frame, at)
    at += _PARAMETERS.size
    request = _Produce(broker, exchange, acks, timeout / 1000)
    allows = broker.cluster.allows
    denied = transactional_id is not None and not allows("TransactionalId", transactional_id, "Write")
    for _ in range(topics):
        name, end = text_at(frame, at)
        assert name is not None
        request.topic(frame[at:end])
        (count,) = INT.unpack_from(frame, end)
        at = end + 4
        refusal = exchange.refusal(name)
        if not refusal and denied:
            refusal = codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        elif not refusal and not allows("Topic", name, "Write"):
            refusal = codes.TOPIC_AUTHORIZATION_FAILED
        elif not refusal and acks not in (_ALL, _NO_ACKS, 1):
            refusal = codes.INVALID_REQUIRED_ACKS
        for _ in range(count):
            number, size = struct.unpack_from(">ii", frame, at)
            data = frame[at + 8 : at + 8 + size]
            at += 8 + max(size, 0)
            if refusal:
                request.result(number, refusal)
            else:
                _store(request, broker, name, number, data, transactional_id, acks)
    request.finish()


def _store(
    request: _Produce, broker: Broker, topic: str, number: int, data: bytes, transactional_id: str | None, acks: int
) -> None:
    partition, code = broker.find(topic, number)
    if partition is None:
        request.result(number, code)
        return
    if code := _refusal(broker, partition, data, acks):
        request.result(number, code)
        return
    batch, log = Batch(data), partition.log
    if (
        batch.transactional
        and not log.is_open(batch.producer_id, batch.epoch)
        and (code := broker.cluster.coordinators.verify(transactional_id or "", batch, partition))
    ):
        request.result(number, code)
        return
    if batch.producer_id != NO_PRODUCER and (state := log.producers.get(batch.producer_id)) is not None:
        if (base := state.duplicate(batch)) is not None:
            request.stored(partition, base, base + batch.count)
            return
        if code := state.refusal(batch):
            request.result(number, code)
            return
    if partition.leader != broker.number:
        # Cut off, and another broker leads: nobody fetches the batch, and it is gone when this one rejoins.
        request.wait(partition, NEVER, request.result(number, codes.NONE))
        return
    partition.append(batch)
    request.stored(partition, batch.base, batch.next)


def _refusal(broker: Broker, partition: Partition, data: bytes, acks: int) -> int:
    """Returns the error code for a batch that is refused whoever sends it."""
    topic = partition.topic
    if broker.disk_full:
        return codes.KAFKA_STORAGE_ERROR
    if acks == _ALL and len(partition.isr) < topic.min_isr and broker.views is None:
        return codes.NOT_ENOUGH_REPLICAS
    if is_several(data):
        return codes.INVALID_RECORD
    if len(data) > topic.max_message:
        return codes.MESSAGE_TOO_LARGE
    return codes.NONE if is_whole(data) else codes.CORRUPT_MESSAGE
