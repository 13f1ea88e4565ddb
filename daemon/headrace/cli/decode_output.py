"""The output of `headrace decode`: messages, or counts."""

from __future__ import annotations

from collections import Counter
from typing import BinaryIO

from headrace.cli.wiring import new_format
from headrace.model import Position, RowsChange, SchemaChange
from headrace.pipeline.message_builder import MessageBuilder
from headrace.pipeline.projection import Projections
from headrace.ports.inspection import Output
from headrace.settings.destination import DestinationSettings

_NOWHERE = Position("", "", 0)
"""The progress of the output is not stored."""


class Printed(Output):
    """Prints the changes that are read."""

    def finish(self, out: BinaryIO) -> None:
        """Prints the rest; called at the end, also after an error."""


class Lines(Printed):
    """Prints messages as lines, made by the daemon's own code."""

    def __init__(self, settings: DestinationSettings, out: BinaryIO) -> None:
        fmt = new_format(settings)
        self._builder = MessageBuilder(fmt, Projections(settings, fmt), one_log=True)
        self._builder.tick()
        self._out = out

    def emit(self, change: RowsChange) -> None:
        self._builder.emit(change)

    def emit_schema(self, change: SchemaChange) -> None:
        self._builder.emit_schema(change)

    def full(self) -> bool:
        return self._builder.full()

    def write(self, transactions: int, events: int) -> None:
        for batch in self._builder.take(_NOWHERE, 0.0):
            if batch.values:
                self._out.write(b"".join(value + b"\n" for value in batch.values if value is not None))
                self._out.flush()
        self._builder.tick()


class Stats(Printed):
    """Prints events and rows by table and kind."""

    def __init__(self) -> None:
        self._events: Counter[tuple[str, str]] = Counter()
        self._rows: Counter[tuple[str, str]] = Counter()
        self._read: tuple[int, int] | None = None

    def emit(self, change: RowsChange) -> None:
        key = (change.schema.name, str(change.operation))
        self._events[key] += 1
        self._rows[key] += len(change.rows)

    def emit_schema(self, change: SchemaChange) -> None:
        name = f"{change.schema}.{change.table}" if change.table else change.schema or "-"
        self._events[name, str(change.kind)] += 1

    def write(self, transactions: int, events: int) -> None:
        self._read = transactions, events

    def finish(self, out: BinaryIO) -> None:
        names = sorted(self._events)
        width = max([len(name) for name, _ in names] + [5])
        lines = [f"{'table':<{width}}  {'kind':<8}  {'events':>10}  {'rows':>12}"]
        lines += [
            f"{name:<{width}}  {kind:<8}  {self._events[name, kind]:>10}  {self._rows[name, kind]:>12}"
            for name, kind in names
        ]
        lines.append(f"{'all':<{width}}  {'':<8}  {self._events.total():>10}  {self._rows.total():>12}")
        if self._read is not None:
            lines.append("{} transactions, {} events of all kinds read".format(*self._read))
        out.write(("\n".join(lines) + "\n").encode())
