"""Messages that are larger than their topic allows: refused, split into messages of fewer rows, or parked."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from headrace import runtime
from headrace.adapters.kafka.aiokafka_internals import packed_size, size_at_most
from headrace.adapters.kafka.producer import largest_of
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.topics import DEFAULT_MAX_MESSAGE, Topics
from headrace.errors import SinkRejected
from headrace.model import MessageBatch, Unit
from headrace.ports.sink import MessageRefused, Parking, SinkRouting

_SLACK = 16 * 1024
"""Bytes for key, headers and the record's own fields, with which a message certainly fits."""
_LARGE = 4 << 20
_POS, _ID = "headrace-pos", "headrace-id"


class Sizes:
    """The size limits of one sink. Both Kafka sinks send what fit() leaves of a batch."""

    def __init__(
        self, settings: KafkaSinkSettings, topics: Topics, routing: SinkRouting, parking: Parking | None
    ) -> None:
        self._settings, self._topics, self._routing = settings, topics, routing
        self._parking = parking if settings.capabilities.parks else None

    def limit(self, topic: str) -> int:
        """Returns the largest record batch, in bytes; 0: the brokers decide."""
        known = self._topics.limit(topic)
        return known or (0 if self._settings.on_oversize == "halt" else DEFAULT_MAX_MESSAGE)

    async def fit(self, producer: Any, batch: MessageBatch) -> MessageBatch:
        """Returns the batch, mostly the same object, in a form that can be sent; checks its topic first. Raises
        SinkRejected, and SinkError if the brokers do not answer."""
        if not self._topics.known(batch.topic):
            await self._topics.ensure(producer.client, batch.topic)
        limit = self.limit(batch.topic)
        largest, large = largest_of(batch), dict[int, int]()
        if largest + _SLACK > limit > 0:
            measure = functools.partial(_too_large, producer, batch, limit)
            # A large one is compressed to see whether it fits, which takes long.
            large = await runtime.in_thread(measure) if largest > _LARGE else measure()
        if self._parking is not None and (large or not self._parking.empty):
            return self._park(batch, large, limit, self._parking)
        if not large:
            return batch
        if self._settings.on_oversize == "split":
            return self._split(producer, batch, large, limit)
        size = next(iter(large.values()))
        raise self._refused(batch, size, limit)

    async def check_again(self, producer: Any, batch: MessageBatch) -> None:
        """Checks the topic before a parked message is sent again: it may allow more by now, or be gone. Raises
        MessageRefused, and SinkError if the brokers do not answer."""
        try:
            await self._topics.ensure(producer.client, batch.topic)
        except SinkRejected as error:
            raise MessageRefused(error.args[0], remedy=error.remedy) from error
        if batch.partition >= (count := self._topics.count(batch.topic)):
            raise MessageRefused(f"the topic {batch.topic} has {count} partitions, and no number {batch.partition}")
        limit = self.limit(batch.topic)
        if limit and (large := _too_large(producer, batch, limit)):
            raise MessageRefused(_what(batch, large[0], limit))

    # -- park ---------------------------------------------------------------------------------------------------------

    def _park(self, batch: MessageBatch, large: dict[int, int], limit: int, parking: Parking) -> MessageBatch:
        """Parks in order, so that messages that wait for one that is too large are parked after it."""
        kept, topic = [], batch.topic
        for index in range(len(batch.values)):
            unit = batch.units[index] if batch.units is not None else Unit(())
            if parking.blocked(topic, unit):
                parking.park(topic, batch, index, "", 0)
            elif index in large:
                parking.park(topic, batch, index, _what(batch, large[index], limit), 1)
            else:
                kept.append(index)
        if len(kept) == len(batch.values):
            return batch
        return replace(
            batch,
            values=[batch.values[i] for i in kept],
            headers=[batch.headers[i] for i in kept],
            keys=[batch.keys[i] for i in kept] if batch.keys is not None else None,
            units=[batch.units[i] for i in kept] if batch.units is not None else None,
        )

    # -- split --------------------------------------------------------------------------------------------------------

    def _split(self, producer: Any, batch: MessageBatch, large: dict[int, int], limit: int) -> MessageBatch:
        made = replace(batch, values=[], headers=[], keys=None if batch.keys is None else [], units=None, tags=None)
        for index, value in enumerate(batch.values):
            first = len(made.values)
            parts: list[tuple[bytes | None, list[tuple[str, bytes]]]] = [(value, batch.headers[index])]
            if index in large and value is not None:
                room = limit - (size_at_most(batch, index) - len(value)) - 64  # an id gets longer
                parts = [
                    (part, _numbered(batch.headers[index], row))
                    for row, part in self._routing.split(value, max(1, room))
                ]
            for part, headers in parts:
                made.values.append(part)
                made.headers.append(headers)
                if made.keys is not None and batch.keys is not None:
                    made.keys.append(batch.keys[index])
            if index in large:
                if len(parts) < 2:
                    raise self._refused(batch, large[index], limit)
                if still := _too_large(producer, made, limit, first):
                    raise self._refused(made, next(iter(still.values())), limit)
        return made

    def _refused(self, batch: MessageBatch, size: int, limit: int) -> SinkRejected:
        remedy = "raise max.message.bytes of the topic (and replica.fetch.max.bytes of the brokers)"
        if self._settings.max_request_size:
            remedy = "raise [sink] max_request_size and max.message.bytes of the topic"
        if self._settings.on_oversize == "halt":
            remedy += ', set [message] rows_per_message, or [sink] on_oversize = "split" or "park"'
        return SinkRejected(f"a message for the topic {batch.topic}, {_what(batch, size, limit)}", remedy=remedy)


def _too_large(producer: Any, batch: MessageBatch, limit: int, first: int = 0) -> dict[int, int]:
    """Returns, by index from `first` on, the size of each message that exceeds the limit also when alone,
    compressed."""
    possible = (index for index in range(first, len(batch.values)) if size_at_most(batch, index) > limit)
    sizes = {index: packed_size(producer, batch, index) for index in possible}
    return {index: size for index, size in sizes.items() if size > limit}


def _what(batch: MessageBatch, size: int, limit: int) -> str:
    return f"a record of {size:,} bytes, is larger than the {limit:,} that {batch.topic} takes"


def _numbered(headers: list[tuple[str, bytes]], row: int) -> list[tuple[str, bytes]]:
    """Returns the headers of a message that begins with a later row of another."""
    made = []
    for name, value in headers:
        if name == _ID:
            value = b"%b.%d" % (value, row)
        elif name == _POS:
            value = b"%d" % (int(value) + row)
        made.append((name, value))
    return made
