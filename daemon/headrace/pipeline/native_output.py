"""Messages that native code makes: where they go, and what counts of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import HeadraceError
from headrace.model import MessageBatch, TableRows, TableSchema
from headrace.pipeline.projection import Projections
from headrace.pipeline.table_projection import TableProjection
from headrace.ports.format import KeyedFormat, ValueFormat
from headrace.ports.source import NativeRows


@dataclass(frozen=True, slots=True)
class Builder:
    """What a message builder lets native code do with its batches."""

    open_batch: Callable[[str, int], MessageBatch]
    """Gives the open batch of a topic's partition."""
    room: Callable[[], tuple[int, int]]
    """After how many more bytes and messages they should be taken."""
    grew: Callable[[int, int], None]
    """So many bytes and messages have come in."""


class NativeOutput(NativeRows):
    """Of one message builder. `module` is headrace-native, `overhead` what a message is charged besides its bytes."""

    def __init__(
        self,
        module: Any,
        fmt: ValueFormat | KeyedFormat,
        projections: Projections,
        builder: Builder,
        *,
        rows_per_message: int,
        server_uuid: str,
        epoch: int,
        overhead: int,
        one_log: bool,
        two_numbers: bool,
    ) -> None:
        self._module, self._format, self._projections, self._builder = module, fmt, projections, builder
        self._keyed, self._one_log, self._two_numbers = isinstance(fmt, KeyedFormat), one_log, two_numbers
        self._rows_per_message = rows_per_message
        self.output = module.Output(server_uuid, epoch, rows_per_message, overhead, self._keyed, one_log)
        self._slots: dict[tuple[str, int], int] = {}
        self._targets: list[tuple[str, int]] = []
        self._counters: dict[tuple[str, str], int] = {}
        self._counted: list[tuple[str, str]] = []
        """The tables by their counters' numbers."""
        self._batches: list[tuple[MessageBatch, Any]] = []
        self.now_ms = 0
        self._runs = False
        self.accepts: Callable[[], bool] = lambda: True
        """Whether nobody else has to see the rows."""

    # -- batches --------------------------------------------------------------------------------------------------

    def new_batch(self, topic: str, partition: int) -> MessageBatch:
        """An empty batch whose columns native code can fill."""
        made = self._module.Batch()
        batch = MessageBatch(topic, partition, made.values, made.headers, keys=made.keys if self._keyed else None)
        self._batches.append((batch, made))
        return batch

    def close_batches(self) -> None:
        """Those that are open get nothing more. While the reader runs it sees to that itself."""
        if not self._runs:
            self.output.close_batches()

    def settle(self) -> list[TableRows]:
        """Adds to the batches what native code knows of them; the rows that it made, by table."""
        for batch, made in self._batches:
            rows, size, commit_us, last = made.made
            batch.rows += rows
            batch.size += size
            if last:
                batch.commit_time_us = commit_us
        taken = []
        for counter, inserted, updated, deleted, commit_us in self.output.take_counters():
            schema, table = self._counted[counter]
            taken.append(TableRows(schema, table, inserted, updated, deleted, 0, commit_us))
        return taken

    def clear(self) -> None:
        """Lets go of what nobody has taken."""
        self.close_batches()
        self.output.take_counters()
        self._batches.clear()

    # -- native code's --------------------------------------------------------------------------------------------

    def new_reader(self, passed: bytes) -> Any:
        return self._module.Reader(passed)

    def table(self, schema: TableSchema, layouts: Sequence[tuple[Any, ...] | None]) -> Any | None:
        try:
            projection = self._projections.of(schema)
        except HeadraceError:  # told when rows come by
            return None
        spec = self._format.native(projection.schema)
        route = self._route(projection)
        known = [layout for layout in layouts if layout is not None]
        if spec is None or route is None or projection.kept is None or len(known) < len(layouts):
            return None
        columns = [(field, *column) for field, column in zip(projection.kept, spec.columns, strict=True)]
        try:
            return self.output.table(
                known,
                columns,
                spec.format,
                route,
                projection.deciding_columns,
                self._two_numbers,
                self._counter(projection.schema),
            )
        except ValueError:  # a layout that this version of it does not know
            return None

    def _counter(self, schema: TableSchema) -> int:
        """The number of the table's counter, which stays the same in all of its versions."""
        name = schema.schema, schema.table
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counters[name] = self.output.add_counter()
            self._counted.append(name)
        return counter

    def _route(self, projection: TableProjection) -> tuple[Any, ...] | None:
        if projection.simple:
            return ("one", self._slot(projection, projection.partition))
        key = projection.native_key()
        if key is None or self._one_log or self._rows_per_message > 1:
            return None
        slots = [self._slot(projection, partition) for partition in range(projection.route.partitions)]
        return (key[0], slots, *key[1:])

    def _slot(self, projection: TableProjection, partition: int) -> int:
        target = projection.address(partition), 0 if self._one_log else partition
        slot = self._slots.get(target)
        if slot is None:
            slot = self._slots[target] = self.output.add_slot()
            self._targets.append((projection.address(partition), partition))
        return slot

    def ready(self) -> bool:
        return self.accepts()

    def begin(self) -> tuple[int, int]:
        self.output.now_ms, self.output.number = self.now_ms, self._format.number
        self._runs = True
        return self._builder.room()

    def open(self, slot: int) -> Any:
        opened = self._builder.open_batch(*self._targets[slot])
        return next(made for batch, made in reversed(self._batches) if batch is opened)

    def end(self) -> None:
        self._runs = False
        self._builder.grew(*self.output.made)
        self._format.number = self.output.number
