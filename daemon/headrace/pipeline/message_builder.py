"""Builds batches of messages from changes. Until take() is called, there is one batch for each topic and partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from headrace import runtime
from headrace.errors import NotUnderstood
from headrace.large_values import MessageTooLarge, spliced
from headrace.model import (
    MessageBatch,
    Operation,
    Position,
    RowsChange,
    SchemaChange,
    TableRows,
    TransactionMark,
    Unit,
)
from headrace.pipeline.native_output import Builder, NativeOutput
from headrace.pipeline.preparation import Preparation
from headrace.pipeline.projection import Projections
from headrace.pipeline.table_projection import Part
from headrace.ports.format import Format, Header, KeyedFormat, Messages, ValueFormat
from headrace.rules.templates import Template
from headrace.settings.destination import DestinationSettings

_MESSAGE_OVERHEAD = 400
"""Estimated bytes of memory of a message in addition to its value: its headers and objects."""
_NATIVE_OVERHEAD = 160
"""The same for a message of native code. This is the size of the headers of most messages."""
_UNIT_OVERHEAD, _NATIVE_UNIT_OVERHEAD = 300, 40
_PARTIAL: Header = ("headrace-image", b"partial")
_BATCH_BYTES, _NATIVE_BATCH_BYTES = 512 * 1024, 832 * 1024
"""Bytes after which the batches are taken: the first limit for Python, the second for native code. Native code stops
before a rows event that would exceed the limit. With headers, a batch of this size is one record batch of Kafka with
the default [sink] batch_bytes. A slightly larger batch would need a second record batch, at twice the cost."""
_BATCH_MESSAGES = 5_000
_WIDEST = 8
"""If messages go to many partitions, the limits above are multiplied by their number, at most by this."""
_INSERT, _UPDATE = Operation.INSERT, Operation.UPDATE
_SECOND = 2
"""If an update becomes a DELETE and an INSERT, the id of the INSERT ends in /2. The id of the DELETE has no such end,
and the id of its tombstone ends in /1."""


LARGEST_MESSAGE = 1 << 30
Change = RowsChange | SchemaChange | TransactionMark


class MessageBuilder:
    """Collects the messages of changes until they are taken.

    `one_log`: whether the sink writes all topics into one stream, which must have the order of the binlog. If not, the
    batches of several topics fill in parallel, so that a topic with one message per transaction does not make the
    batches of the others small. `native`: the module headrace-native, which makes the messages that it supports; None
    if it is not used. `marks`: whether the begin and end of transactions are published. `two_numbers`: whether an
    updated row takes two numbers. `largest`: the maximum size in bytes of a message with large values."""

    def __init__(
        self,
        fmt: ValueFormat | KeyedFormat,
        projections: Projections,
        *,
        rows_per_message: int = 0,
        server_uuid: str = "",
        epoch: int = 0,
        one_log: bool = False,
        units: bool = False,
        tag: Template | None = None,
        native: Any = None,
        two_numbers: bool = False,
        marks: bool = False,
        largest: int = LARGEST_MESSAGE,
    ) -> None:
        self._largest = largest
        self._format, self.projections = fmt, projections
        prepares = type(fmt).prepare is not Format.prepare
        self.preparation = Preparation(fmt, lambda schema: projections.of(schema).schema) if prepares else None
        """Prepares the format for table schemas; None if the format needs no preparation."""
        self.captures = projections.captures
        """Returns whether rows of a schema and table are published."""
        self._values: ValueFormat
        self._keyed: KeyedFormat
        self._add: Callable[[MessageBatch, RowsChange, bool], Sequence[int]]
        """Puts the messages of a change into a batch. Returns the index of the first row of each message."""
        if isinstance(fmt, KeyedFormat):
            self._keyed, self._add = fmt, self._add_keyed
        else:
            self._values, self._add = fmt, self._add_values
        self._rows_per_message = rows_per_message
        self._server_uuid = server_uuid
        self._one_log, self._units, self._tag = one_log, units, tag
        self._each = rows_per_message == 1 and not isinstance(fmt, KeyedFormat)
        """Whether the rows of an event can be formatted together, and then be put into the batches one by one."""
        self._epoch: Header = ("headrace-epoch", b"%d" % epoch)
        # The batch of each partition should be large enough for a separate request.
        self._full_bytes = (_BATCH_BYTES if native is None else _NATIVE_BATCH_BYTES) * min(projections.widest, _WIDEST)
        self._now_ms = 0
        self.native: NativeOutput | None = None
        if native is not None:
            self.native = NativeOutput(
                native,
                fmt,
                projections,
                Builder(self._batch, self._room, self._grew),
                rows_per_message=rows_per_message,
                server_uuid=server_uuid,
                epoch=epoch,
                overhead=_NATIVE_OVERHEAD + (_NATIVE_UNIT_OVERHEAD if units else 0),
                one_log=one_log,
                two_numbers=two_numbers,
                largest=largest,
                units=units,
                tag=tag,
                marks=marks,
            )
        self.clear()

    def clear(self) -> None:
        """Discards all messages that were not taken."""
        self._batches: list[MessageBatch] = []
        self._open: dict[tuple[str, int], MessageBatch] = {}
        """The batch of each topic and partition to which further messages can be added."""
        self._size = self._count = 0
        """The number of bytes and of messages in all batches."""
        self._counted: dict[tuple[str, str], TableRows] = {}
        """The number of rows of each table, by its schema and name."""
        if self.native is not None:
            self.native.clear()

    def _room(self) -> tuple[int, int]:
        """Returns how many bytes and how many messages can be added before the batches should be taken."""
        return max(1, self._full_bytes - self._size), max(1, _BATCH_MESSAGES - self._count)

    def _grew(self, size: int, count: int) -> None:
        self._size += size
        self._count += count

    def full(self) -> bool:
        """Returns whether the batches should be taken before more is added."""
        return self._size >= self._full_bytes or self._count >= _BATCH_MESSAGES

    def tick(self) -> None:
        """Sets the time that the next messages contain. Called once for each chunk of received data, not for each
        message."""
        self._now_ms = runtime.now_us() // 1000
        if self.native is not None:
            self.native.now_ms = self._now_ms

    def take(self, position: Position, received: float) -> list[MessageBatch]:
        """Returns the batches, at least one, and begins new ones. Only the last batch has the position, so the batches
        must be confirmed in order."""
        batches = self._batches or [MessageBatch("", 0)]
        tables = [*self._counted.values()]
        batches[-1].tables = tables if self.native is None else tables + self.native.settle()
        self.clear()
        for batch in batches:
            batch.received = received
        batches[-1].position = position
        return batches

    # -- rows ------------------------------------------------------------------------------------------------------

    def emit(self, change: RowsChange) -> None:
        """Formats one change of rows, and adds its messages to the batches. Raises NotUnderstood if the rules don't fit
        the table."""
        projection = self.projections.of(change.schema)
        if self._each and len(change.rows) > 1 and (each := projection.one_by_one(change)) is not None:
            self._put_each(*each, projection.keys(change) if self._units else ())
            return
        for part in projection.parts(change, keys=self._units):
            self._put_rows(part)

    def emit_large(self, change: RowsChange) -> Iterator[None]:
        """Does the same as emit() for a change with large values, in slices. It first makes the messages with
        placeholders, and then replaces the placeholders by the values. Also raises NotUnderstood if a message has more
        than `largest` bytes."""
        projection = self.projections.of(change.schema)
        change.settle(projection.read_columns if self._format.takes_large else None)
        if not change.large:
            self.emit(change)
            return
        saved, native = (self._batches, self._open, self._counted, self._size, self._count), self.native
        self.native, self._batches, self._open, self._counted = None, [], {}, {}
        try:
            self.emit(change)
            made, counted = self._batches, self._counted
        finally:
            self.native = native
            self._batches, self._open, self._counted, self._size, self._count = saved
        for batch in made:
            for i, value in enumerate(batch.values):
                if value is None or (b"\0" not in value and len(value) <= self._largest):
                    continue
                try:
                    whole = yield from spliced(value, change.large, self._largest)
                except MessageTooLarge as error:
                    raise NotUnderstood(
                        f"at {change.origin.file}:{change.origin.offset}: a row of {change.schema.name} makes {error}, "
                        "twice [source] max_event",
                        remedy="raise [source] max_event, when there is the memory, or leave columns out: [filter] "
                        "exclude_columns",
                    ) from error
                batch.values[i] = whole
                batch.size += len(whole) - len(value)
        for batch in made:
            self._append(batch)
        for rows in counted.values():
            self._rows_of(rows.schema, rows.table).add(rows)

    def _append(self, made: MessageBatch) -> None:
        """Adds messages that were made separately to the open batch of their topic. If they are larger than a full
        batch, they remain a separate batch, because adding them would copy them."""
        if made.size > self._full_bytes:
            self._close_batches()
            self._batches.append(made)
            self._size += made.size
            self._count += len(made.values)
            return
        batch = self._batch(made.topic, made.partition)
        if made.keys is not None or batch.keys is not None:
            batch.keys = [None] * len(batch.values) if batch.keys is None else batch.keys
            batch.keys += made.keys or [None] * len(made.values)
        batch.values += made.values
        batch.headers += made.headers
        if made.units is not None:
            batch.units = [] if batch.units is None else batch.units
            batch.units += made.units
        if made.tags is not None:
            batch.tags = [] if batch.tags is None else batch.tags
            batch.tags += made.tags
        batch.rows += made.rows
        batch.size += made.size
        batch.commit_time_us = made.commit_time_us or batch.commit_time_us
        self._size += made.size
        self._count += len(made.values)

    def _put_rows(self, part: Part) -> None:
        change = part.change
        batch = self._batch(part.address, part.partition)
        size, count = batch.size, len(batch.values)
        firsts = self._add(batch, change, part.lone)  # counted only after this, because it may raise
        self._count_rows(change, len(change.rows))
        batch.rows += len(change.rows)
        if len(batch.values) > count:  # a format may publish nothing about a deleted row
            batch.commit_time_us = change.commit_time_us
        if self._units:
            self._add_units(batch, part, firsts)
        self._tag_rows(batch, change, len(firsts))
        self._size += batch.size - size
        self._count += len(batch.values) - count

    def _put_each(
        self,
        partitions: list[int],
        addresses: dict[int, str],
        change: RowsChange,
        keys: Sequence[tuple[str, ...]],
    ) -> None:
        """Makes one message for each row. Used if no row changes its operation; each row has its own partition. `keys`:
        of each row, if messages have units."""
        base, where = self._named(change)
        rest = (where, self._epoch, *_of_rows(change))
        values, pos = self._values.encode_each(change, self._now_ms), change.pos
        self._count_rows(change, len(values))
        open_batches = {}
        for partition, address in addresses.items():
            batch = self._batch(address, partition)
            batch.commit_time_us = change.commit_time_us
            open_batches[partition] = batch, batch.values.append, batch.headers.append
        for i, (partition, value) in enumerate(zip(partitions, values, strict=True)):
            batch, add_value, add_headers = open_batches[partition]
            add_value(value)
            add_headers([("headrace-id", b"%b.%d" % (base, i)), ("headrace-pos", b"%d" % (pos + i)), *rest])
            batch.rows += 1
            batch.size += len(value) + _MESSAGE_OVERHEAD
        self._size += sum(map(len, values)) + _MESSAGE_OVERHEAD * len(values)
        self._count += len(values)
        for partition, (batch, _, _) in open_batches.items() if self._units or self._tag is not None else ():
            rows = [i for i, one in enumerate(partitions) if one == partition]
            if self._units:
                _extend_units(batch, [Unit((change.schema.name,), keys[i]) for i in rows])
                self._size += _UNIT_OVERHEAD * len(rows)
            self._tag_rows(batch, change, len(rows))

    def _tag_rows(self, batch: MessageBatch, change: RowsChange, count: int) -> None:
        if self._tag is not None:
            schema = change.schema
            tag = self._tag.render(schema=schema.schema, table=schema.table, type=str(change.operation))
            _extend_tags(batch, tag, count)

    def _rows_of(self, schema: str, table: str) -> TableRows:
        """Returns the object that counts the rows of a table."""
        rows = self._counted.get((schema, table))
        if rows is None:
            rows = self._counted[schema, table] = TableRows(schema, table)
        return rows

    def _count_rows(self, change: RowsChange, count: int) -> None:
        rows = self._rows_of(change.schema.schema, change.schema.table)
        rows.commit_time_us = change.commit_time_us
        if change.snapshot is not None:
            rows.snapshot += count
        elif change.operation is _INSERT:
            rows.inserted += count
        elif change.operation is _UPDATE:
            rows.updated += count
        else:
            rows.deleted += count

    def _named(self, change: Change) -> tuple[bytes, Header]:
        """Returns the common beginning of the ids of a change's messages, and the header with the position of the
        change."""
        origin = change.origin
        position = f"{origin.file}:{origin.transaction}"
        if type(change) is RowsChange and change.snapshot is not None:
            base = f"{self._server_uuid}/{change.snapshot.id}"
        else:
            base = f"{change.gtid or f'{self._server_uuid}/{position}'}#{origin.ordinal}"
        return base.encode(), ("headrace-position", position.encode())

    def _add_values(self, batch: MessageBatch, change: RowsChange, lone: bool) -> Sequence[int]:
        base, where = self._named(change)
        size, count, pos, indexes = self._rows_per_message, len(change.rows), change.pos, change.row_indexes
        if not size or count == 1:
            value = self._values.encode(change, self._now_ms)
            batch.values.append(value)
            id_ = base if lone else b"%b.%d" % (base, 0 if indexes is None else indexes[0])
            if _is_second(change):
                id_ += b"/%d" % _SECOND
            batch.headers.append(
                [("headrace-id", id_), ("headrace-pos", b"%d" % pos), where, self._epoch, *_of_rows(change)]
            )
            batch.size += len(value) + _MESSAGE_OVERHEAD
            return (0,)
        if size == 1:
            values = self._values.encode_each(change, self._now_ms)
        else:
            values = [self._values.encode(part, self._now_ms) for part in change.parts(size)]
        batch.values += values
        rest = (where, self._epoch, *_of_rows(change))
        firsts = range(0, count, size)
        batch.headers += [
            [("headrace-id", b"%b.%d" % (base, index)), ("headrace-pos", b"%d" % (pos + i)), *rest]
            for i, index in zip(firsts, firsts if indexes is None else indexes[::size], strict=True)
        ]
        batch.size += sum(map(len, values)) + _MESSAGE_OVERHEAD * len(values)
        return firsts

    def _add_keyed(self, batch: MessageBatch, change: RowsChange, lone: bool) -> Sequence[int]:
        id_, position = self._named(change)
        where = [position, self._epoch, *_of_rows(change)]
        made = self._keyed.rows(change, self._now_ms)
        numbers: Sequence[int] | None = None
        if not lone or len(change.rows) > 1:
            numbers = range(len(change.rows)) if change.row_indexes is None else change.row_indexes
        _put(batch, made, id_, change.pos, where, numbers, again=_SECOND if _is_second(change) else 0)
        return made.rows

    def _add_units(self, batch: MessageBatch, part: Part, firsts: Sequence[int]) -> None:
        keys, tables = part.keys, (part.change.schema.name,)
        if self._rows_per_message == 1 or len(keys) == 1 or isinstance(self._format, KeyedFormat):
            units = [Unit(tables, keys[row]) for row in firsts]
        else:
            ends = [*firsts[1:], len(keys)]
            spans = zip(firsts, ends, strict=True)
            units = [Unit(tables, tuple(dict.fromkeys(chain(*keys[i:end])))) for i, end in spans]
        _extend_units(batch, units)

    # -- what is not rows ------------------------------------------------------------------------------------------

    def emit_schema(self, change: SchemaChange) -> None:
        """Formats one statement. Statements have no number of their own, so the id contains the number of the rows
        event before it."""
        if change.category == "dml" and self.native is not None:
            self.native.note_text(change.schema, change.table)
        id_ = self._named(change)[0] + b"q"
        targets, barrier = self.projections.statement_targets(change.schema, change.table)
        for messages in self._format.schema_change(change, self._now_ms):
            if messages.topic or not barrier:
                target = (messages.topic, 0) if messages.topic else targets[0]
                self._put_few(target, messages, id_, change, _unit_of(change))
                continue
            # The statement is a barrier: all rows before it are confirmed first, and all rows after it wait. They are
            # in other partitions, so the order within a partition is not enough.
            for target in targets:
                self._close_batches()
                copy = b"%b.%d" % (id_, target[1]) if len(targets) > 1 else id_
                self._put_few(target, messages, copy, change, _unit_of(change)).barrier = True
            self._close_batches()

    def emit_mark(self, mark: TransactionMark) -> None:
        """Formats the begin or end of a transaction."""
        transaction = mark.gtid or f"{self._server_uuid}/{mark.origin.file}:{mark.origin.transaction}"
        id_ = f"{transaction}#{'begin' if mark.begin else 'end'}".encode()
        targets, _ = self.projections.statement_targets("", "")
        for messages in self._format.mark(mark, self._now_ms):
            self._put_few((messages.topic, 0) if messages.topic else targets[0], messages, id_, mark, Unit(()))

    def _put_few(
        self,
        target: tuple[str, int],
        messages: Messages,
        id_: bytes,
        about: SchemaChange | TransactionMark,
        unit: Unit,
    ) -> MessageBatch:
        """Adds messages about a statement or a transaction to a batch of their topic, and returns the batch."""
        batch = self._batch(*target)
        batch.commit_time_us = about.commit_time_us
        size, more = batch.size, len(messages.values)
        _put(batch, messages, id_, about.pos, [self._named(about)[1], self._epoch], None)
        if self._units:
            _extend_units(batch, [unit] * more)
        if self._tag is not None:
            _extend_tags(batch, "", more)
        self._size += batch.size - size
        self._count += more
        return batch

    # -- batches ---------------------------------------------------------------------------------------------------

    def _close_batches(self) -> None:
        """Closes all open batches. The next messages go into new ones."""
        self._open.clear()
        if self.native is not None:
            self.native.close_batches()

    def _batch(self, topic: str, partition: int) -> MessageBatch:
        """Returns the open batch of a topic and partition. Creates one if there is none."""
        target = (topic, 0 if self._one_log else partition)
        batch = self._open.get(target)
        if batch is None:
            if self._one_log:  # messages of another topic must come after those before, so no other batch stays open
                self._close_batches()
            native = self.native
            batch = MessageBatch(topic, partition) if native is None else native.new_batch(topic, partition)
            self._open[target] = batch
            self._batches.append(batch)
        return batch


def _of_rows(change: RowsChange) -> tuple[Header, ...]:
    """Returns the headers that only some changes have: partial rows, and rows of a snapshot."""
    partial = (_PARTIAL,) if change.partial else ()
    return (*partial, ("headrace-snapshot", change.snapshot.kind.encode())) if change.snapshot is not None else partial


def _is_second(change: RowsChange) -> bool:
    """Returns whether the change is the INSERT of an update that became a DELETE and an INSERT."""
    return change.other is not None and change.operation is Operation.INSERT


def _unit_of(change: SchemaChange) -> Unit:
    """Returns the tables that a statement changes, with their names before and after it. If it changes none, returns
    its database."""
    names: dict[str, None] = {}
    for table in change.tables:
        if table.renamed_from is not None:
            names[".".join(table.renamed_from)] = None
        names[f"{table.schema}.{table.table}"] = None
    if change.table:
        names[f"{change.schema}.{change.table}"] = None
    return Unit(tuple(names) or (f"{change.schema}.*",))


def _extend_units(batch: MessageBatch, units: list[Unit]) -> None:
    if batch.units is None:
        batch.units = []
    batch.units += units
    batch.size += _UNIT_OVERHEAD * len(units)


def _extend_tags(batch: MessageBatch, tag: str, count: int) -> None:
    if batch.tags is None:
        batch.tags = []
    batch.tags += [tag] * count


def _put(
    batch: MessageBatch,
    messages: Messages,
    id_: bytes,
    pos: int,
    where: list[Header],
    numbers: Sequence[int] | None,
    again: int = 0,
) -> None:
    """Adds messages to a batch. `numbers`: the index of each row in its event, if the id contains it. The id of the
    second message of a row ends in /1, that of the third in /2. `again`: the number of earlier messages of each row."""
    if batch.keys is None and any(messages.keys):
        batch.keys = [None] * len(batch.values)
    last, first = -1, again
    for i, row in enumerate(messages.rows):
        again = again + 1 if row == last else first
        last = row
        id_of = id_ if numbers is None else b"%b.%d" % (id_, numbers[row])
        if again:
            id_of += b"/%d" % again
        headers = [("headrace-id", id_of), ("headrace-pos", b"%d" % (pos + row)), *where]
        if i in messages.headers:
            headers.append(messages.headers[i])
        batch.headers.append(headers)
    batch.values += messages.values
    if batch.keys is not None:
        batch.keys += messages.keys
    batch.size += sum(len(value) for value in messages.values if value)
    batch.size += sum(len(key) for key in messages.keys if key) + _MESSAGE_OVERHEAD * len(messages.values)


def make_builder(
    settings: DestinationSettings,
    fmt: ValueFormat | KeyedFormat,
    server_uuid: str,
    epoch: int,
    native: Any = None,
) -> MessageBuilder:
    """Returns a message builder for a destination. It uses `native`, unless that is None."""
    sink = settings.sink.capabilities
    return MessageBuilder(
        fmt,
        Projections(settings, fmt),
        rows_per_message=settings.message.rows_per_message,
        server_uuid=server_uuid,
        epoch=epoch,
        one_log=sink.one_log,
        units=sink.units,
        tag=sink.tag,
        native=native,
        two_numbers=bool(settings.route.partition_hash),
        marks=settings.wants_marks,
        largest=2 * settings.source.max_event,
    )
