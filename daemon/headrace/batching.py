"""Turns changes into message batches, and holds them in a queue bounded by bytes until they are confirmed."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from headrace.formats.base import Header, KeyedFormat, Messages, Place, ValueFormat
from headrace.model import MessageBatch, Position, RowsChange, SchemaChange, TransactionMark
from headrace.mysql.decoder import Decoder

_MESSAGE_OVERHEAD = 400
"""Bytes that a message costs besides its value: headers and the objects that hold it."""
_PARTIAL: Header = ("headrace-image", b"partial")
_BATCH_BYTES = 512 * 1024
_BATCH_MESSAGES = 5_000


class Outlet:
    """Collects what the decoder emits, until somebody takes it.

    `one_log`: the sink writes all topics into one stream, whose order has to be the binlog's. Otherwise the batches of
    several topics fill beside each other, so that a topic with a message a transaction does not cut up the others.
    """

    def __init__(
        self,
        fmt: ValueFormat | KeyedFormat,
        topic: str,
        partition: int,
        rows_per_message: int,
        server_uuid: str,
        *,
        one_log: bool = False,
        epoch: int = 0,
    ) -> None:
        self._format, self._topic, self._partition = fmt, topic, partition
        self._values: ValueFormat
        self._keyed: KeyedFormat
        self.emit: Callable[[RowsChange], None]
        """Formats one change of rows."""
        if isinstance(fmt, KeyedFormat):
            self._keyed, self.emit = fmt, self._emit_keyed
        else:
            self._values, self.emit = fmt, self._emit_plain
        self._rows_per_message = rows_per_message
        self._server_uuid = server_uuid
        self._one_log = one_log
        self._epoch: Header = ("headrace-epoch", b"%d" % epoch)
        self._now_ms = 0
        self._decoder: Decoder
        self._clear()

    def _clear(self) -> None:
        self._batch = MessageBatch(self._topic, self._partition)
        """The one that rows go into."""
        self._batches = [self._batch]
        self._beside_size = self._beside_count = 0
        """Bytes and messages of all batches but that one."""

    def bind(self, decoder: Decoder) -> None:
        """The decoder says where a change stands: its transaction's start, and its number within it."""
        self._decoder = decoder

    def full(self) -> bool:
        """Whether the batches should be taken before more goes in."""
        batch = self._batch
        return (
            batch.size + self._beside_size >= _BATCH_BYTES or len(batch.values) + self._beside_count >= _BATCH_MESSAGES
        )

    def tick(self) -> None:
        """Sets the time that the next messages carry; called a chunk, not a message."""
        self._now_ms = time.time_ns() // 1_000_000

    def _emit_plain(self, change: RowsChange) -> None:
        decoder, batch = self._decoder, self._batch
        position = f"{decoder.file}:{decoder.tx_start}"
        base = f"{change.gtid or f'{self._server_uuid}/{position}'}#{decoder.events_done}"
        where = ("headrace-position", position.encode())
        size, count = self._rows_per_message, len(change.rows)
        batch.rows += count
        if not size or count == 1:
            value = self._values.encode(change, self._now_ms)
            batch.values.append(value)
            headers = [("headrace-id", base.encode()), ("headrace-pos", b"%d" % change.pos), where, self._epoch]
            if change.partial:
                headers.append(_PARTIAL)
            batch.headers.append(headers)
            batch.size += len(value) + _MESSAGE_OVERHEAD
            return
        pos = change.pos
        if size == 1:
            values = self._values.encode_each(change, self._now_ms)
        else:
            values = [self._values.encode(part, self._now_ms) for part in change.parts(size)]
        batch.values += values
        rest = (where, self._epoch, _PARTIAL) if change.partial else (where, self._epoch)
        batch.headers += [
            [("headrace-id", b"%b.%d" % (base.encode(), i)), ("headrace-pos", b"%d" % (pos + i)), *rest]
            for i in range(0, count, size)
        ]
        batch.size += sum(map(len, values)) + _MESSAGE_OVERHEAD * len(values)

    def _emit_keyed(self, change: RowsChange) -> None:
        decoder, count = self._decoder, len(change.rows)
        where = [("headrace-position", f"{decoder.file}:{decoder.tx_start}".encode()), self._epoch]
        if change.partial:
            where.append(_PARTIAL)
        id_ = f"{self._group(change.gtid)}#{decoder.events_done}"
        self._batch.rows += count
        made = self._keyed.rows(change, self._place(), self._now_ms)
        _put(self._batch, made, id_ if count == 1 else f"{id_}.", change.pos, where)

    def emit_schema(self, change: SchemaChange) -> None:
        """Formats one statement. Statements are not numbered: its id says behind which rows event it stands."""
        id_ = f"{self._group(change.gtid)}#{self._decoder.events_done}q"
        for messages in self._format.schema_change(change, self._place(), self._now_ms):
            self._put_few(messages, id_, change.pos, change.commit_time_us)

    def emit_mark(self, mark: TransactionMark) -> None:
        """Formats the begin or end of a transaction."""
        id_ = f"{self._group(mark.gtid)}#{'begin' if mark.begin else 'end'}"
        for messages in self._format.mark(mark, self._place(), self._now_ms):
            self._put_few(messages, id_, mark.pos, mark.commit_time_us)

    def take(self, position: Position, received: float) -> list[MessageBatch]:
        """The batches so far, one at least. The last moves the position, so each is to be confirmed in its turn."""
        self._batch.commit_time_us = self._decoder.commit_time_us
        batches = [batch for batch in self._batches if batch.values] or [self._batch]
        self._clear()
        for batch in batches:
            batch.received = received
        batches[-1].position = position
        return batches

    def _group(self, gtid: str) -> str:
        """What tells the transaction from all others."""
        return gtid or f"{self._server_uuid}/{self._decoder.file}:{self._decoder.tx_start}"

    def _place(self) -> Place:
        decoder = self._decoder
        return Place(
            decoder.file, decoder.event_start, decoder.tx_start, server_id=decoder.server_id, thread=decoder.thread_id
        )

    def _put_few(self, messages: Messages, id_: str, pos: int, commit_time_us: int) -> None:
        """Messages that are not about rows, into a batch of their topic."""
        topic = messages.topic or self._topic
        batch = self._batch if topic == self._topic else self._beside(topic)
        batch.commit_time_us = commit_time_us
        size = batch.size
        _put(
            batch,
            messages,
            id_,
            pos,
            [("headrace-position", f"{self._decoder.file}:{self._decoder.tx_start}".encode()), self._epoch],
        )
        if batch is not self._batch:
            self._beside_size += batch.size - size
            self._beside_count += len(messages.values)

    def _beside(self, topic: str) -> MessageBatch:
        """The open batch of a topic that is not the rows'."""
        rows = self._batch
        if self._one_log and rows.values:  # what follows has to stand behind these rows, and the next rows behind it
            self._beside_size, self._beside_count = self._beside_size + rows.size, self._beside_count + len(rows.values)
            batch, self._batch = MessageBatch(topic, self._partition), MessageBatch(self._topic, self._partition)
            self._batches += [batch, self._batch]
            return batch
        others = self._batches[-2:] if self._one_log else self._batches
        for batch in others:
            if batch.topic == topic:
                return batch
        self._batches.insert(len(self._batches) - 1, MessageBatch(topic, self._partition))
        return self._batches[-2]


def _put(batch: MessageBatch, messages: Messages, id_: str, pos: int, where: list[Header]) -> None:
    """`id_` ends in a dot when the row's number belongs to the id. The second message of a row adds /1 to it."""
    if batch.keys is None and any(messages.keys):
        batch.keys = [None] * len(batch.values)
    numbered, last, again = id_.endswith("."), -1, 0
    for i, row in enumerate(messages.rows):
        again = again + 1 if row == last else 0
        last = row
        id_of = f"{id_}{row}" if numbered else id_
        if again:
            id_of += f"/{again}"
        batch.headers.append([("headrace-id", id_of.encode()), ("headrace-pos", b"%d" % (pos + row)), *where])
        if i in messages.headers:
            batch.headers[-1].append(messages.headers[i])
    batch.values += messages.values
    if batch.keys is not None:
        batch.keys += messages.keys
    batch.size += sum(len(value) for value in messages.values if value)
    batch.size += sum(len(key) for key in messages.keys if key) + _MESSAGE_OVERHEAD * len(messages.values)


class ByteQueue:
    """Batches in order, charged from put() to release(): what waits and what is in flight share one budget."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self.used = self._outstanding = 0
        self._items: deque[MessageBatch] = deque()
        self._changed = asyncio.Condition()

    def fits(self, batch: MessageBatch) -> bool:
        """Whether put() would not wait."""
        return not self.used or self.used + batch.size <= self._budget

    async def put(self, *batches: MessageBatch) -> None:
        """Waits until the batch fits; one that is larger than the budget passes alone. Several that are confirmed only
        together go in together."""
        async with self._changed:
            while not self.fits(batches[0]):
                await self._changed.wait()
            for batch in batches:
                self.used += batch.size
                self._outstanding += 1
                self._items.append(batch)
            self._changed.notify_all()

    async def get(self) -> MessageBatch:
        """The oldest batch that nobody has taken."""
        async with self._changed:
            while not self._items:
                await self._changed.wait()
            return self._items.popleft()

    async def release(self, size: int) -> None:
        """Gives back what a confirmed batch was charged."""
        async with self._changed:
            self.used -= size
            self._outstanding -= 1
            self._changed.notify_all()

    async def empty(self) -> None:
        """Returns once everything that was put in is released."""
        async with self._changed:
            while self.used or self._outstanding:
                await self._changed.wait()

    def __len__(self) -> int:
        return len(self._items)
