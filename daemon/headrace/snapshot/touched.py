"""The rows of a table that the stream has changed while chunks of it were read: for them the stream has the newer
state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from operator import itemgetter
from typing import Any

from headrace.model import ABSENT, Row, RowsChange, TableSchema


class Touched:
    """The rows of one table in the stream, by key, while chunks are being read that may have them in an earlier state.

    A window is a number that open() returns: from then on, until close(), rows in the stream count as touched for the
    chunk that was requested after it. A touched row of the chunk is left out, because all of it has been published in
    its newer state; if the stream's row lacks columns (binlog_row_image other than FULL), the chunk's row is published
    with those columns."""

    def __init__(self) -> None:
        self._number = 0
        self._open: set[int] = set()
        self._rows: dict[Any, tuple[int, Row | None]] = {}
        """By key: the newest window that was open when it was touched, and the known values of the row if these are not
        all."""
        self._columns: tuple[str, ...] = ()
        """Names of the key's columns; none: a row is identified by all of its values."""
        self._getters: dict[int, tuple[TableSchema, Callable[[Row], Any]]] = {}
        self._lacks = False
        """Whether rows came that lack columns."""

    def __len__(self) -> int:
        return len(self._rows)

    def open(self, schema: TableSchema) -> int:
        """Opens a window for a chunk that is read by this schema, whose key is that of the open windows."""
        columns = tuple(schema.columns[i].name for i in schema.keys)
        if columns != self._columns:
            self._columns = columns
            self._getters.clear()
        self._number += 1
        self._open.add(self._number)
        return self._number

    def close(self, window: int) -> None:
        """Closes a window: no row of its chunk is left."""
        self._open.discard(window)
        if not self._open:
            self._rows.clear()
            self._lacks = False
        elif (oldest := min(self._open)) > window:
            self._rows = {key: entry for key, entry in self._rows.items() if entry[0] >= oldest}

    def clear(self) -> None:
        """Forgets all: no chunk is being read any more."""
        self._open.clear()
        self._rows.clear()
        self._lacks = False

    def note(self, change: RowsChange) -> None:
        """Records rows of the table in the stream. Raises LookupError if they lack a column of the key: then the table
        has changed."""
        if not self._open:
            return
        key, rows, whole = self._getter(change.schema), self._rows, (self._number, None)
        if change.before is None or not change.partial:
            for row in change.before or ():
                rows[key(row)] = whole
            for row in change.rows:
                rows[key(row)] = whole
            return
        self._lacks = True
        for before, after in zip(change.before, change.rows, strict=True):
            old, new = key(_filled(before, after)), key(after)
            if old != new:
                rows[old] = whole
            known = rows.get(new)
            if known is None:
                rows[new] = self._number, after
            else:  # a row that was once published completely needs nothing of the chunk any more
                rows[new] = self._number, None if known[1] is None else _filled(after, known[1])

    def left_out(self, window: int) -> Callable[[Any], bool] | None:
        """Returns a function that returns whether the row with a key is left out of a chunk: the value of the key's
        column, or a tuple of several. None if that is not all: for a table without a key, or rows that lack columns."""
        if not self._columns or self._lacks:
            return None
        rows = self._rows
        return lambda key: (entry := rows.get(key)) is not None and entry[0] >= window

    def left(self, schema: TableSchema, read: Sequence[Row], window: int) -> list[Row]:
        """Returns the rows of a chunk that must still be published, in their present state."""
        rows = self._rows
        if not rows:
            return list(read)
        key, kept = self._getter(schema), list[Row]()
        for row in read:
            entry = rows.get(key(row))
            if entry is None or entry[0] < window:
                kept.append(row)
            elif entry[1] is not None:
                kept.append(_filled(entry[1], row))
        return kept

    def _getter(self, schema: TableSchema) -> Callable[[Row], Any]:
        """Returns a function for a row's key; the whole row of a table without one."""
        known = self._getters.get(id(schema))
        if known is None:
            if len(self._getters) > 100:
                self._getters.clear()
            numbers = {column.name: i for i, column in enumerate(schema.columns)}
            getter: Callable[[Row], Any] = _digest
            if self._columns:
                getter = itemgetter(*(numbers[name] for name in self._columns))
            known = self._getters[id(schema)] = schema, getter
        return known[1]


def _digest(row: Row) -> bytes:
    """Returns a digest of a whole row, however long it is."""
    return blake2b(repr(row).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _filled(newer: Row, older: Row) -> Row:
    """Returns the newer row, with the older one's values for missing ones."""
    return tuple(b if a is ABSENT else a for a, b in zip(newer, older, strict=True))
