"""Messages that native code makes: where they go, and their counts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar, cast

import structlog

from headrace.errors import HeadraceError, NotUnderstood
from headrace.model import MessageBatch, TableRows, TableSchema, Unit
from headrace.native import PANIC, PANIC_REMEDY
from headrace.pipeline.projection import Projections
from headrace.pipeline.table_projection import Names, TableProjection
from headrace.ports.format import KeyedFormat, ValueFormat
from headrace.ports.native_rows import NativeRows, SnapshotChange
from headrace.rules.templates import Template
from headrace.settings.destination import DestinationSettings

log = structlog.get_logger(__name__)

_T = TypeVar("_T")
_About = tuple[int, int, list[tuple[int, bytes]]]
"""The numbers of a table and an operation, and the keys of rows; see Names.unit()."""
_OPERATIONS = ("INSERT", "UPDATE", "DELETE")
_NAMED = 3
"""Columns that a reason names."""


@dataclass(frozen=True, slots=True)
class Builder:
    """The functions of a message builder that native code uses for its batches."""

    open_batch: Callable[[str, int], MessageBatch]
    """Returns the open batch of a topic's partition."""
    room: Callable[[], tuple[int, int]]
    """Returns after how many more bytes and messages the batches should be taken."""
    grew: Callable[[int, int], None]
    """Adds to the counts of bytes and messages."""


_MOST_TABLES = 200
"""For how many tables it is remembered whether native code makes their rows."""


@dataclass(slots=True)
class NativeUse:
    """Whether native code makes the rows of a destination."""

    reason: str = ""
    """Why it makes none, as a clause; "" if it makes those of some tables."""
    tables: dict[tuple[str, str], str] = field(default_factory=dict)
    """By schema and table, why Python makes the rows; "" if native code does. Only the first tables that came."""

    def note(self, schema: str, table: str, reason: str) -> bool:
        """Records a table; returns whether this is new."""
        name = schema, table
        if self.tables.get(name) == reason or (len(self.tables) >= _MOST_TABLES and name not in self.tables):
            return False
        self.tables[name] = reason
        return True

    @property
    def of_python(self) -> dict[str, str]:
        """Returns the tables whose rows Python makes, and why."""
        return {".".join(name): reason for name, reason in self.tables.items() if reason}


def reason_of_destination(settings: DestinationSettings, fmt: ValueFormat | KeyedFormat, missing: str) -> str:
    """Returns why native code makes no rows of a destination, as a clause; "" if it may. `missing`: why native code is
    not available."""
    if missing:
        return missing
    if settings.wants_marks and fmt.native_marks() is None:
        return "the begin and end of transactions are published"
    return fmt.only_python


def reason_of_table(
    projection: TableProjection,
    fmt: ValueFormat | KeyedFormat,
    unknown: Sequence[str] = (),
    *,
    one_log: bool,
    units: bool = False,
) -> str:
    """Returns the same for one table. `unknown` are columns whose layout native code does not know,
    as the binlog shows them. `units`: whether messages may have to wait for others about their rows."""
    if unknown:
        return f"it does not know the type of column {', '.join(unknown[:_NAMED])}"
    if (
        projection.spreads
        and projection.native_key() == ("record",)
        and projection.masks.keys() & set(projection.source.keys)
    ):
        return "a masked key chooses the partition"
    if units and projection.hides_key and any(key == ("record",) for _, key in projection.native_names()):
        return "a message is known by a key that is not published unchanged"
    if projection.conditional and projection.native_condition is None:
        return "it does not know what the condition on rows compares"
    if projection.spreads and one_log:
        return "rows are spread, and the sink has one log"
    schema, described = projection.schema, fmt.native(projection.schema)
    if described is None:
        alone = [replace(schema, columns=(column,), keys=()) for column in schema.columns]
        names = [one.columns[0].name for one in alone if fmt.native(one) is None]
        if len(names) == len(alone):
            return "it does not know this [message] format, or these types in it"
        return f"it does not know how [message] prints column {', '.join(names[:_NAMED])}"
    for number, (_, style) in zip(projection.kept, described.columns, strict=True):
        if style[0] != "text" and projection.masks.get(number, ("",))[0] == "fixed":
            return f"column {projection.source.columns[number].name} has a fixed value that is no text"
    return ""


class _Abouts(Sequence[_T]):
    """A list parallel to the messages of a native batch. What native code has made is read when somebody asks, which is
    seldom."""

    def __init__(self, batch: Any, names: Sequence[Names]) -> None:
        self._batch, self._names = batch, names
        self._own: dict[int, _T] = {}
        """Of the messages that Python has added."""

    def __len__(self) -> int:
        return len(self._batch.values)

    def __iadd__(self, more: Sequence[_T]) -> Self:
        """Adds those of the last messages."""
        self._own.update(enumerate(more, len(self) - len(more)))
        return self

    def __getitem__(self, at: Any) -> Any:
        if (own := self._own.get(at)) is not None:
            return own
        return self._read(self._batch.about(at))

    @abstractmethod
    def _read(self, about: _About | None) -> _T:
        """Returns what native code has noted."""


class _Units(_Abouts[Unit]):
    """MessageBatch.units."""

    def _read(self, about: _About | None) -> Unit:
        return self._names[about[0]].unit(about[2]) if about is not None else Unit(())


class _Tags(_Abouts[str]):
    """MessageBatch.tags."""

    def __init__(self, batch: Any, names: Sequence[Names], tag: Template) -> None:
        super().__init__(batch, names)
        self._tag = tag

    def _read(self, about: _About | None) -> str:
        if about is None:
            return ""
        names = self._names[about[0]]
        return self._tag.render(schema=names.schema, table=names.table, type=_OPERATIONS[about[1]])


class NativeOutput(NativeRows):
    """The native output of one message builder. `module` is headrace-native; `overhead` is what a message counts
    besides its bytes."""

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
        largest: int,
        units: bool = False,
        tag: Template | None = None,
        marks: bool = False,
    ) -> None:
        """`largest`: maximum size of a message in bytes. `units`: whether messages may have to wait for others about
        their rows. `tag`: what each message has as a tag. `marks`: whether the begin and end of transactions are
        published."""
        self._module, self._format, self._projections, self._builder = module, fmt, projections, builder
        self._keyed, self._one_log, self._two_numbers = isinstance(fmt, KeyedFormat), one_log, two_numbers
        self.output = module.Output(server_uuid, epoch, rows_per_message, overhead, self._keyed, one_log, largest)
        self._units, self._tag, self._rows_per_message = units, tag, rows_per_message
        self._names: dict[Names, int] = {}
        """The numbers of tables in what messages are about."""
        self._named: list[Names] = []
        self._slots: dict[tuple[str, int], int] = {}
        self._targets: list[tuple[str, int]] = []
        self._counters: dict[tuple[str, str], int] = {}
        self._counted: list[tuple[str, str]] = []
        """The tables, by the number of their counter."""
        self._batches: list[tuple[MessageBatch, Any]] = []
        described = fmt.native_marks() if marks else None
        self.marks = described is not None
        if described is not None:
            ((target, *_), _) = projections.statement_targets("", "")
            self.output.set_marks(self._slot(*target), described)
        self.now_ms = 0
        self._runs = False
        self.use = NativeUse()
        self.watch: Callable[[], frozenset[tuple[str, str]]] = frozenset
        """Returns the tables whose rows Python must see."""
        self.named: Callable[[str, str, int], bool] = lambda schema, table, before: True
        """Returns whether the rows of a schema and table are counted separately; the number is how many tables are so
        already, see TableTotals.named. All others are counted together, under a table without a name."""

    # -- batches --------------------------------------------------------------------------------------------------

    def new_batch(self, topic: str, partition: int) -> MessageBatch:
        """Returns an empty batch whose columns native code can fill."""
        made = self._module.Batch(self._units or self._tag is not None)
        batch = MessageBatch(topic, partition, made.values, made.headers, keys=made.keys if self._keyed else None)
        if self._units:
            batch.units = cast("list[Unit]", _Units(made, self._named))
        if self._tag is not None:
            batch.tags = cast("list[str]", _Tags(made, self._named, self._tag))
        self._batches.append((batch, made))
        return batch

    def close_batches(self) -> None:
        """Stops adding to the open batches. While the reader runs, it does this itself."""
        if not self._runs:
            self.output.close_batches()

    def settle(self) -> list[TableRows]:
        """Adds native code's counts to the batches. Returns the rows that it made, by table."""
        for batch, made in self._batches:
            rows, size, commit_us, last = made.made
            batch.rows += rows
            batch.size += size
            if last:
                batch.commit_time_us = commit_us
        taken = []
        for counter, *counts in self.output.take_counters():
            schema, table = self._counted[counter]
            taken.append(TableRows(schema, table, *counts))
        return taken

    def clear(self) -> None:
        """Drops what nobody has taken."""
        self.close_batches()
        self.output.take_counters()
        self._batches.clear()

    # -- native code's --------------------------------------------------------------------------------------------

    def new_reader(self, passed: bytes, slice_seconds: float) -> Any:
        return self._module.Reader(passed, slice_seconds)

    def table(self, schema: TableSchema, layouts: Sequence[tuple[Any, ...] | None]) -> Any | None:
        try:
            projection = self._projections.of(schema)
        except HeadraceError:  # reported when rows arrive
            return None
        unknown = [column.name for column, one in zip(schema.columns, layouts, strict=False) if one is None]
        reason = reason_of_table(projection, self._format, unknown, one_log=self._one_log, units=self._units)
        spec, route = self._format.native(projection.schema), self._route(projection)
        known = [layout for layout in layouts if layout is not None]
        if not reason and (spec is None or route is None or len(known) < len(layouts)):
            reason = "it has a column that is not shown"
        if reason or spec is None or route is None:
            self._note(schema, reason)
            return None
        columns = [
            (number, *column, projection.masks.get(number))
            for number, column in zip(projection.kept, spec.columns, strict=True)
        ]
        try:
            made = self.output.table(
                known,
                columns,
                spec.format,
                route,
                sorted(projection.left_out),
                projection.skips_unchanged,
                projection.native_condition,
                projection.deciding_columns,
                self._about(projection),
                self._two_numbers,
                self._counter(projection.schema),
            )
        except ValueError as error:  # a layout that this version of native code does not know
            self._note(schema, f"native code does not know what describes it: {error}")
            return None
        self._note(schema, "")
        return made

    def note_text(self, schema: str, table: str) -> None:
        """Records that the text of a statement has come, after which Python makes the rows of a table."""
        self.use.note(schema, table, "the text of the statement comes before its rows (dml_queries)")

    def _note(self, schema: TableSchema, reason: str) -> None:
        if self.use.note(schema.schema, schema.table, reason) and reason:
            log.info("Python makes the rows of a table", table=schema.name, reason=reason)

    def _counter(self, schema: TableSchema) -> int:
        """Returns the number of the table's counter, which is the same for all versions of the table."""
        name = schema.schema, schema.table
        if name not in self._counters and not self.named(*name, len(self._counted)):
            name = "", ""
        counter = self._counters.get(name)
        if counter is None:
            counter = self._counters[name] = self.output.add_counter()
            self._counted.append(name)
        return counter

    def _route(self, projection: TableProjection) -> tuple[Any, ...] | None:
        if not projection.spreads:
            return ("one", self._slot(projection.address(projection.partition), projection.partition))
        if self._one_log:
            return None
        partitions = range(projection.route.partitions)
        slots = [self._slot(projection.address(partition), partition) for partition in partitions]
        return ("spread", slots, projection.native_key())

    def _about(self, projection: TableProjection) -> tuple[int, list[tuple[int, tuple[Any, ...]]]] | None:
        """Returns how native code notes what a message is about; None if nobody asks."""
        if not self._units and self._tag is None:
            return None
        number = self._names.setdefault(projection.names, len(self._named))
        if number == len(self._named):
            self._named.append(projection.names)
        return number, projection.native_names() if self._units else []

    def _slot(self, address: str, partition: int) -> int:
        target = address, 0 if self._one_log else partition
        slot = self._slots.get(target)
        if slot is None:
            slot = self._slots[target] = self.output.add_slot()
            self._targets.append((address, partition))
        return slot

    def watched(self) -> frozenset[tuple[str, str]]:
        return self.watch()

    def begin(self) -> tuple[int, int]:
        self.output.now_ms, self.output.number = self.now_ms, self._format.number
        self._runs = True
        return self._builder.room()

    def making(self) -> tuple[int, int, int]:
        return self._rows_per_message, self.now_ms, self._format.number

    def open(self, slot: int) -> Any:
        opened = self._builder.open_batch(*self._targets[slot])
        return next(made for batch, made in reversed(self._batches) if batch is opened)

    def put_selected(
        self, table: Any, data: bytes, at: int, rows: int, left_out: Sequence[int], change: SnapshotChange
    ) -> tuple[int, int, int, int]:
        most, read = self.begin(), change.read
        place = change.file, change.offset, change.pos, change.commit_time_us
        try:
            made: tuple[int, int, int, int] = self.output.put_selected(
                table,
                data,
                at,
                rows,
                left_out,
                (read.id, change.number, read.kind, read.marker, change.together),
                place,
                most,
                change.seconds,
                self.open,
            )
        except BaseException as error:
            if type(error).__name__ != PANIC:
                raise
            text = f"native code fails on rows of a table that were read ({error})"
            raise NotUnderstood(text, remedy=PANIC_REMEDY) from error
        finally:
            self.end()
        return made

    def end(self) -> None:
        self._runs = False
        self._builder.grew(*self.output.made)
        self._format.number = self.output.number
