"""Answers to Fetch and ListOffsets."""

from __future__ import annotations

import asyncio
import struct
from io import BytesIO
from typing import TYPE_CHECKING

from aiokafka.protocol.offset import OffsetRequest_v3, OffsetResponse_v3

from sim.kafka import codes
from sim.kafka.connection import Exchange
from sim.kafka.partition import Partition
from sim.kafka.wire import INT, text_at

if TYPE_CHECKING:
    from sim.kafka.broker import Broker

_REQUEST = struct.Struct(">iiiibiii")
"""Replica, longest wait, least and most bytes, isolation level, session id and epoch, number of topics."""
_WANTED = struct.Struct(">iiqqi")
"""Partition, leader epoch, offset, start of the log at a follower, most bytes."""
_FOUND = struct.Struct(">ihqqq")
"""Partition, error code, high watermark, last stable offset, start of the log."""
_COMMITTED = 1
_LATEST, _EARLIEST = -1, -2
_ANY_EPOCH = -1
_Wanted = tuple[int, int, int, int]
"""Partition, leader epoch, offset, most bytes."""


class _Fetch:
    """One Fetch request of version 11, which waits until there is enough, an error, or the time is over.

    Sessions (KIP-227) are not offered: the answer has session 0, as that of a broker without room for one."""

    def __init__(self, broker: Broker, exchange: Exchange, frame: bytes, at: int) -> None:
        self._broker, self._exchange = broker, exchange
        _, self._wait, self._least, self._most, isolation, _, _, topics = _REQUEST.unpack_from(frame, at)
        self._committed = isolation == _COMMITTED
        self._wanted: list[tuple[str, bytes, list[_Wanted]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._waits_at: list[Partition] = []
        at += _REQUEST.size
        for _ in range(topics):
            name, end = text_at(frame, at)
            (count,) = INT.unpack_from(frame, end)
            encoded, at, wanted = frame[at:end], end + 4, list[_Wanted]()
            for _ in range(count):
                partition, epoch, offset, _, most = _WANTED.unpack_from(frame, at)
                wanted.append((partition, epoch, offset, most))
                at += _WANTED.size
            assert name is not None
            self._wanted.append((name, encoded, wanted))

    def start(self) -> None:
        """Answers, or waits."""
        body, enough = self._read()
        if enough or self._wait <= 0:
            self._exchange.answer(body)
            return
        self._timer = asyncio.get_running_loop().call_later(self._wait / 1000, self._expire)
        for name, _, wanted in self._wanted:
            for number, *_ in wanted:
                partition, _ = self._broker.find(name, number)
                if partition is not None:
                    partition.readers[self] = None
                    self._waits_at.append(partition)

    def try_answer(self) -> None:
        """Answers if there is enough by now."""
        if not self._exchange.waits:
            self._leave()
            return
        body, enough = self._read()
        if enough:
            self._leave()
            self._exchange.answer(body)

    def _expire(self) -> None:
        self._leave()
        if self._exchange.waits:
            self._exchange.answer(self._read()[0])

    def _leave(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for partition in self._waits_at:
            partition.readers.pop(self, None)
        self._waits_at = []

    def _read(self) -> tuple[bytes, bool]:
        """Returns the answer, and whether it is one that need not wait."""
        size, failed = 0, False
        throttle = self._broker.cluster.throttle_ms(self._exchange.client)
        parts = [struct.pack(">ihii", throttle, codes.NONE, 0, len(self._wanted))]
        for name, encoded, partitions in self._wanted:
            parts.append(encoded + INT.pack(len(partitions)))
            denied = 0 if self._broker.cluster.allows("Topic", name, "Read") else codes.TOPIC_AUTHORIZATION_FAILED
            refusal = self._exchange.refusal(name) or denied
            for wanted in partitions:
                code, head, data = self._read_partition(name, wanted, refusal, self._most - size, not size)
                parts += head, *data
                failed = failed or code != codes.NONE
                size += sum(map(len, data))
        return b"".join(parts), failed or size >= self._least or not self._wanted

    def _read_partition(
        self, topic: str, wanted: _Wanted, refusal: int, room: int, first: bool
    ) -> tuple[int, bytes, list[bytes]]:
        number, epoch, offset, most = wanted
        partition, code = self._broker.find(topic, number)
        code = refusal or code or _epoch_refusal(partition, epoch)
        if code or partition is None:
            # Where a broker looks at a topic before it reads, its answer has an empty list of aborted transactions.
            listed = 0 if code in (codes.UNKNOWN_TOPIC_OR_PARTITION, codes.TOPIC_AUTHORIZATION_FAILED) else -1
            return code, _FOUND.pack(number, code, -1, -1, -1) + struct.pack(">iii", listed, -1, 0), []
        log = partition.log
        high, stable = offsets_at(self._broker, partition)
        if not log.start <= offset <= log.end:
            code = codes.OFFSET_OUT_OF_RANGE
            return code, _FOUND.pack(number, code, -1, -1, -1) + struct.pack(">iii", -1, -1, 0), []
        limit = stable if self._committed else high
        data = log.read(offset, limit, min(most, room), first=first) if offset < limit else []
        head = _FOUND.pack(number, code, high, stable, log.start)
        if self._committed:
            end = partition.log.batches[log.index(offset) + len(data) - 1].next if data else offset
            aborted = log.aborted_in(offset, end)
            head += INT.pack(len(aborted)) + b"".join(struct.pack(">qq", *one) for one in aborted)
        else:
            head += INT.pack(-1)
        return code, head + struct.pack(">ii", -1, sum(map(len, data))), data


def offsets_at(broker: Broker, partition: Partition) -> tuple[int, int]:
    """Returns the high watermark and the last stable offset as a broker knows them."""
    if broker.views is not None and (view := broker.view(partition)) is not None:
        return min(view.high_watermark, partition.log.high_watermark), min(view.stable, partition.log.stable)
    return partition.log.high_watermark, partition.log.stable


def _epoch_refusal(partition: Partition | None, epoch: int) -> int:
    """Returns the error code for a client that names another epoch of the leader (KIP-320)."""
    if partition is None or epoch in (_ANY_EPOCH, partition.epoch):
        return codes.NONE
    return codes.FENCED_LEADER_EPOCH if epoch < partition.epoch else codes.UNKNOWN_LEADER_EPOCH


def fetch(broker: Broker, exchange: Exchange, frame: bytes, at: int) -> None:
    """Reads records, version 11."""
    _Fetch(broker, exchange, frame, at).start()


def list_offsets(broker: Broker, exchange: Exchange, frame: bytes, at: int) -> None:
    """Answers with offsets by time, version 3."""
    request = OffsetRequest_v3.decode(BytesIO(frame[at:]))
    cluster, topics = broker.cluster, []
    for topic, wanted in request.topics:
        refusal = exchange.refusal(topic)
        if not refusal and not cluster.allows("Topic", topic, "Describe"):
            refusal = codes.TOPIC_AUTHORIZATION_FAILED
        found = []
        for number, timestamp in wanted:
            partition, code = broker.find(topic, number)
            code = refusal or code
            if code or partition is None:
                found.append((number, code, -1, -1))
            else:
                found.append((number, *_offset(broker, partition, timestamp, request.isolation_level == _COMMITTED)))
        topics.append((topic, found))
    exchange.answer(OffsetResponse_v3(cluster.throttle_ms(exchange.client), topics).encode())


def _offset(broker: Broker, partition: Partition, timestamp: int, committed: bool) -> tuple[int, int, int]:
    """Returns error code, timestamp and offset."""
    log = partition.log
    if timestamp == _EARLIEST:
        return codes.NONE, -1, log.start
    # Versions before 5 have no OFFSET_NOT_AVAILABLE (KIP-207).
    if broker.cluster.time() < partition.settled_at:
        return codes.LEADER_NOT_AVAILABLE, -1, -1
    high, stable = offsets_at(broker, partition)
    limit = stable if committed else high
    if timestamp == _LATEST:
        return codes.NONE, -1, limit
    found = log.find_time(timestamp, limit)
    return (codes.NONE, *found) if found is not None else (codes.NONE, -1, -1)
