"""The output of `headrace decode`: messages, counts, or the statements that undo the changes."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import orjson

from headrace.cli.wiring import new_format
from headrace.errors import NotUnderstood, Refusal
from headrace.model import Column, Position, RowsChange, SchemaChange
from headrace.pipeline.message_builder import MessageBuilder
from headrace.pipeline.projection import Projections
from headrace.ports.inspection import Captures, Output, Undo
from headrace.settings.destination import DestinationSettings

_NOWHERE = Position("", "", 0)
"""The progress of the output is not stored."""
_COMMENTS = re.compile(r"/\*(?!M?!).*?\*/|/\*M?!\d*|\*/|(?:--\s|#)[^\n]*", re.DOTALL)
"""Comments, and the marks of those that servers execute."""
_CREATES = re.compile(r"CREATE TABLE\b", re.IGNORECASE)
_REMOVES = re.compile(r"\b(DROP|REPLACE) (DATABASE|SCHEMA)\b|\bEXCHANGE PARTITION\b", re.IGNORECASE)
"""Statements that change tables which they do not name."""


class Printed(Output):
    """Prints the changes that are read."""

    needs_statements = False
    """Whether it takes statements although only the rows of one key are chosen."""

    def finish(self, out: BinaryIO, *, whole: bool) -> None:
        """Prints the rest; called at the end, also after an error: then what was taken is not the `whole`."""


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

    def finish(self, out: BinaryIO, *, whole: bool) -> None:
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


class OfKey(Printed):
    """Passes on the changes of the rows with one key, given as texts, before or after the change. Statements are left
    out unless the output needs them."""

    def __init__(self, key: Sequence[str], output: Printed) -> None:
        self._key, self._output, self.exact = list(key), output, output.exact

    def emit(self, change: RowsChange) -> None:
        table = change.schema
        if len(table.keys) != len(self._key):
            names = ", ".join(table.columns[i].name for i in table.keys)
            raise Refusal(
                f"--key has {len(self._key)} values, and the key of {table.name} has {len(table.keys)} columns"
                + (f": {names}" if names else ""),
                remedy="give --key once for each column of the key, in its order",
            )
        change.settle(table.keys)
        before = change.before or change.rows
        wanted = [
            any([_text(table.columns[i], image[i]) for i in table.keys] == self._key for image in images)
            for images in zip(change.rows, before, strict=True)
        ]
        if any(wanted):
            for part, one in zip(change.parts(1), wanted, strict=True):
                if one:
                    self._output.emit(part)

    def emit_schema(self, change: SchemaChange) -> None:
        if self._output.needs_statements:
            self._output.emit_schema(change)

    def full(self) -> bool:
        return self._output.full()

    def write(self, transactions: int, events: int) -> None:
        self._output.write(transactions, events)

    def finish(self, out: BinaryIO, *, whole: bool) -> None:
        self._output.finish(out, whole=whole)


def _text(column: Column, value: object) -> str:
    if isinstance(value, int) and column.kind == "enum" and 0 < value <= len(column.labels):
        return column.labels[value - 1]
    return value.hex() if isinstance(value, bytes) else str(value)


class UndoScript(Printed):
    """Prints the statements that undo the changes, the last change first, in the transactions of the source. They wait
    in a file in the folder `spool`."""

    exact = needs_statements = True

    def __init__(self, undo: Undo, captures: Captures, spool: Path) -> None:
        self._undo, self._captures = undo, captures
        self._file = (spool / "undo").open("w+b")

    def emit(self, change: RowsChange) -> None:
        origin = change.origin
        place = f"{origin.file}:{origin.transaction}{f' {change.gtid}' if change.gtid else ''}"
        self._add([(place, f"{one};") for one in self._undo.statements(change)])

    def emit_schema(self, change: SchemaChange) -> None:
        if not change.is_ddl or change.view:
            return
        names = [(one.schema, one.table) for one in change.tables]
        names += [one.renamed_from for one in change.tables if one.renamed_from is not None]
        chosen = any(self._captures(*name) for name in names)
        sql = " ".join(_COMMENTS.sub(" ", change.sql).split())
        if (chosen and not _CREATES.match(sql)) or _REMOVES.search(sql):
            raise NotUnderstood(
                f"at {change.origin.file}:{change.origin.offset}: a statement that changes tables can't be undone: "
                f"{sql[:200]}",
                remedy="choose a part without it with --from and --to, or leave its table out with --table",
            )
        if chosen:
            self._add([(f"-- not undone: {sql[:200]}", "")])

    def _add(self, lines: Sequence[tuple[str, str]]) -> None:
        """Adds statements with their places. They come one after the other, and before all earlier ones."""
        data = orjson.dumps(lines)
        self._file.write(data + len(data).to_bytes(8, "little"))

    def finish(self, out: BinaryIO, *, whole: bool) -> None:
        if whole:  # a part would undo what later changes build on
            for line in self._script():
                out.write(line.encode() + b"\n")
        self._file.close()

    def _script(self) -> Iterator[str]:
        yield from (f"{one};" for one in self._undo.session)
        place = ""
        for data in self._backwards():
            for at, statement in orjson.loads(data):
                if at != place:
                    if place and not place.startswith("--"):
                        yield "COMMIT;"
                    yield at if at.startswith("--") else f"-- {at}\nBEGIN;"
                    place = at
                if statement:
                    yield statement
        if place and not place.startswith("--"):
            yield "COMMIT;"

    def _backwards(self) -> Iterator[bytes]:
        at = self._file.seek(0, os.SEEK_END)
        while at:
            self._file.seek(at - 8)
            size = int.from_bytes(self._file.read(8), "little")
            at -= 8 + size
            self._file.seek(at)
            yield self._file.read(size)
