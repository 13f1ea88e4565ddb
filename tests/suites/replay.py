"""Tables as the messages make them, compared with what SELECT gave at marked places of the stream."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace_common.numbers import float_text

Row = dict[str, str | None]
Name = tuple[str, str]
"""Schema and table."""
_BINARY = re.compile(r"(?:var)?binary|\w*blob|geometry|geom\w*collection|(?:multi)?(?:point|linestring|polygon)")


@dataclass
class Selected:
    """A table as SELECT gave it. `rows` is None when there are none to compare; `why_not` says why, and why rows that
    there are need not be those of the binlog."""

    rows: list[Row] | None
    why_not: str = ""
    weak: frozenset[str] = frozenset()
    """Columns whose value in a before image need not be the one that was written: MySQL computes those of virtual TEXT
    and BLOB columns again, and not always to the same text."""


Snapshot = dict[Name, Selected]


def _float(text: str) -> str:
    return struct.pack("<f", float(text) + 0.0).hex()  # -0 is 0: SELECT has to add 0 to show all digits


def _double(text: str) -> str:
    return float_text(float(text))


def _vector(text: str) -> str:
    numbers = json.loads(text)
    return struct.pack(f"<{len(numbers)}f", *numbers).hex().upper()


def comparable(kind: str, *, published: bool) -> Callable[[str], str] | None:
    """What makes the text of a value the same on both sides, by the declared type; None: the text itself. A FLOAT is
    compared by its bits: the server prints six digits of it."""
    bare = kind.split("(", 1)[0].split(" ", 1)[0]
    if bare == "float":
        return _float
    if bare == "double":
        return _double
    if bare == "vector" and published:
        return _vector
    if _BINARY.fullmatch(bare) and published:
        return str.upper
    if kind.startswith("year(2)") and published:
        return lambda text: text[-2:]
    return None


class Table:
    """The rows of one table, found by the columns that its messages name as the key."""

    def __init__(self, *, known: bool) -> None:
        self.known = known
        """Whether the rows are those of the table, or have to be taken from SELECT first."""
        self.weak: frozenset[str] = frozenset()
        self._key: tuple[str, ...] | None = ()
        self._rows: dict[tuple[str | None, ...], list[Row]] = {}

    @property
    def rows(self) -> list[Row]:
        return [row for rows in self._rows.values() for row in rows]

    def fill(self, selected: Selected, rows: list[Row]) -> None:
        """Takes these rows in place of those that it has."""
        self.known, self.weak, self._key, self._rows = True, selected.weak, None, {(): rows}

    def keyed(self, key: tuple[str, ...]) -> None:
        """Finds rows by these columns from now on."""
        key = tuple(name for name in key if name not in self.weak)
        if key != self._key:
            rows, self._key, self._rows = self.rows, key, {}
            for row in rows:
                self.add(row)

    def add(self, row: Row) -> None:
        self._rows.setdefault(tuple(row.get(name) for name in self._key or ()), []).append(row)

    def take(self, before: Row) -> Row | None:
        """Removes the row that agrees with an image in all columns that both have; None when there is none."""
        place = tuple(before.get(name) for name in self._key or ())
        for key in [place] if place in self._rows else list(self._rows):
            for number, row in enumerate(self._rows[key]):
                if agree(row, before, but=self.weak):
                    del self._rows[key][number]
                    if not self._rows[key]:
                        del self._rows[key]
                    return row
        return None


def agree(one: Row, other: Row, *, but: frozenset[str] = frozenset()) -> bool:
    """Whether two images are equal in all columns that both have, but for some."""
    return all(name not in other or other[name] == value or name in but for name, value in one.items())


@dataclass
class Replay:
    """What one destination published, as tables. `whole`: each image has to have all columns; else
    what an image lacks is not compared."""

    whole: bool = True
    rows: int = 0
    """Changed rows that were replayed."""
    tables_compared: int = 0
    rows_compared: int = 0
    cells_compared: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    """Tables that were not compared, by the reason."""
    differences: list[str] = field(default_factory=list)
    _tables: dict[Name, Table] = field(default_factory=dict)

    def forget(self) -> None:
        """Nothing is known of any table."""
        self._tables.clear()

    def message(self, message: Mapping[str, Any]) -> None:
        """Applies one message in Canal's format with `binary = "hex"`."""
        name = (message["database"], message["table"])
        if message["data"] is None:
            self._statement(name, message["type"], message["sql"])
            return
        self.rows += len(message["data"])
        table = self._tables.get(name)
        if table is None or not table.known:
            return
        makers = [
            (column, maker)
            for column, kind in message["mysqlType"].items()
            if (maker := comparable(kind, published=True))
        ]
        columns = message["mysqlType"]
        olds = message["old"] or [None] * len(message["data"])
        for row, old in zip(message["data"], olds, strict=True):
            for column, maker in makers:
                for image in (row, old or {}):
                    if image.get(column) is not None:
                        image[column] = maker(image[column])
            whole = len(row) == len(columns)
            table.keyed(tuple(message["pkNames"] or columns))
            if self.whole and not whole:
                self._differs(name, f"columns are missing: {_short(row)}")
            change = message["type"]
            if change != "INSERT":
                before = {**row, **(old or {})}
                if not self.whole and message["pkNames"]:  # other values that changed are those of after alone
                    before = {column: before[column] for column in message["pkNames"] if column in before}
                found = table.take(before)
                if found is None:
                    self._differs(name, f"{change} of a row that is not there: {_short(before)}")
                    table.known = False
                    return
                row = {**found, **row} if change == "UPDATE" else {}
            if change != "DELETE":
                table.add(row)

    def _statement(self, name: Name, kind: str, sql: str) -> None:
        """A new table is empty. Of what another statement did to which table nothing is said here: a snapshot before it
        has compared all, and one after it gives the rows again."""
        words = sql.lower().split(None, 6)
        if "temporary" in words[:4] or (kind in ("CINDEX", "DINDEX") and words[0] in ("create", "drop")):
            return  # ALTER TABLE ... ADD PRIMARY KEY may make '' of NULL, and with IGNORE remove rows
        if kind == "CREATE":
            if "exists" not in words or name not in self._tables:
                self._tables[name] = Table(known=True)
            return
        for table in self._tables.values():
            table.known = False

    def compare(self, snapshot: Snapshot) -> None:
        """Compares all tables with what SELECT gave at this place, and goes on with that."""
        for name, selected in snapshot.items():
            table = self._tables.setdefault(name, Table(known=False))
            if selected.rows is None:
                table.known = False
                self._left_out(selected.why_not)
                continue
            if selected.why_not:
                self._left_out(selected.why_not)
            elif table.known:
                self._compare(name, table, selected.rows)
            table.fill(selected, [dict(row) for row in selected.rows])
        for name in [name for name in self._tables if name not in snapshot]:
            gone = self._tables.pop(name)
            if gone.known and gone.rows:
                self._differs(name, f"{len(gone.rows)} rows of a table that is not there")

    def _compare(self, name: Name, table: Table, wanted: list[Row]) -> None:
        self.tables_compared += 1
        self.rows_compared += len(wanted)
        table.weak = frozenset()
        if wanted:  # by what all rows have, or each would be looked for among all
            shared = set(wanted[0]).intersection(*table.rows)
            table.keyed(tuple(name for name in wanted[0] if name in shared))
        missing: list[Row] = []
        for row in wanted:
            found = table.take(row)
            if found is None or (self.whole and found.keys() != row.keys()):
                missing.append(row)
            else:
                self.cells_compared += len(found)
        if missing or table.rows:
            self._differs(
                name,
                f"{len(missing)} rows of {len(wanted)} differ; SELECT has {_short(missing[:1])},"
                f" the messages make {_short(table.rows[:1])}",
            )

    def _left_out(self, reason: str) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + 1

    def _differs(self, name: Name, text: str) -> None:
        self.differences.append(f"{name[0]}.{name[1]}: {text}")


def _short(value: Any, limit: int = 1500) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."
