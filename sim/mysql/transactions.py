"""A transaction that is not over: its changes, its part of the binlog, and its locks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sim.mysql import events
from sim.mysql.errors import Locked, SqlError
from sim.mysql.history import Change, Xid
from sim.mysql.schema import NOW, Definition, Key, Row, Table
from sim.mysql.types import TIMES

if TYPE_CHECKING:
    from sim.mysql.rows import RowWriter

Describe = Callable[[Definition], tuple[int, bytes, "RowWriter"]]


class Transaction:
    """Changes of one session. `describe` gives a table's TABLE_MAP and the writer of its rows, `event_bytes` is the
    size of a rows event."""

    def __init__(
        self, describe: Describe, schema: str, thread: int, event_bytes: int = 8192, *, texts: bool = False
    ) -> None:
        self._describe, self._event_bytes, self._texts = describe, event_bytes, texts
        self.schema, self.thread = schema, thread
        self.compressed = False
        self.changes: list[Change] = []
        self.cache: list[events.Part] = []
        """Its events so far."""
        self.overlay: dict[Table, dict[Key, Row | None]] = {}
        self.xid: Xid | None = None
        self.xa_ended = False
        self.snapshot: int | None = None
        """The snapshot that its reads see; None for the present state."""
        self.released: Callable[[], None] = lambda: None
        """Called when it has released its locks."""
        self.zone = ""
        """The session's time zone."""
        self._zone, self._update = "", False
        """What the event that begins it says of its first statement."""
        self._tables: list[Table] = []
        self._locks: list[tuple[Table, Key]] = []
        self._savepoints: list[tuple[str, int, int]] = []

    # -- rows ---------------------------------------------------------------------------------------------------------

    def get(self, table: Table, key: Key) -> Row | None:
        """Returns the present row, with the transaction's own changes."""
        own = self.overlay.get(table)
        if own is not None and key in own:
            return own[key]
        return table.rows.get(key)

    def add(self, table: Table, before: tuple[Key, Row] | None, after: tuple[Key, Row] | None) -> None:
        """Changes a row. Raises SqlError: 1062, or 1205 if another transaction has changed it."""
        self.lock(table, before[0] if before else None)
        self.lock(table, after[0] if after else None)
        if after is not None:
            self._require_unique(table, before[0] if before else None, *after)
        key_before, row_before = before if before else (None, None)
        key_after, row_after = after if after else (None, None)
        self._take(table, Change(table.definition, row_before, row_after, key_before, key_after))

    def _take(self, table: Table, change: Change) -> None:
        self.changes.append(change)
        self._tables.append(table)
        own = self.overlay.setdefault(table, {})
        if change.key_before is not None and change.key_before != change.key_after:
            own[change.key_before] = None
        if change.key_after is not None:
            own[change.key_after] = change.after

    def lock(self, table: Table, key: Key | None) -> None:
        """Locks a row. Raises Locked."""
        if key is None:
            return
        holder = table.locks.setdefault(key, self)
        if holder is not self:
            raise Locked
        self._locks.append((table, key))

    def _require_unique(self, table: Table, old: Key | None, key: Key, row: Row) -> None:
        definition = table.definition
        if key != old and definition.primary and self.get(table, key) is not None:
            raise duplicate(definition, "PRIMARY", [row[number] for number in definition.primary])
        for (name, numbers), known in zip(definition.uniques, table.uniques, strict=True):
            if (value := definition.unique_value(numbers, row)) is None:
                continue
            holder, own = known.get(value), self.overlay.get(table, {})
            taken = holder is not None and holder not in own and holder != old
            for other, one in own.items():
                if other not in (old, key) and one is not None:
                    taken |= definition.unique_value(numbers, one) == value
            if taken:
                raise duplicate(definition, name, [row[number] for number in numbers])

    # -- the binlog ---------------------------------------------------------------------------------------------------

    def begin(self, text: bytes) -> events.Part:
        """Returns the event that begins it."""
        return events.query(self.schema, text, self.thread, zone=self._zone, update=self._update)

    def write(self, first: int, text: str = "", *, update: bool = False) -> None:
        """Writes the changes from number `first` on as those of one statement, and its text if texts are wanted.
        `update`: the statement is an UPDATE."""
        changes = self.changes[first:]
        if not changes:
            return
        if not self.cache:
            self._zone = self.zone if _with_times(changes) else ""
            self._update = update
        if self._texts and text:
            self.cache.append((events.ROWS_QUERY, events.rows_query(text.encode()), events.IGNORABLE))
        described: list[Definition] = []
        for change in changes:
            if change.definition not in described:
                described.append(change.definition)
                self.cache.append((events.TABLE_MAP, self._describe(change.definition)[1], 0))
        at = 0
        while at < len(changes):
            end, one = at + 1, changes[at]
            while end < len(changes) and _alike(changes[end], one):
                end += 1
            self._write_rows(changes[at:end], last=end == len(changes))
            at = end

    def _write_rows(self, changes: Sequence[Change], *, last: bool) -> None:
        table_id, _, writer = self._describe(changes[0].definition)
        image = writer.image
        if changes[0].before is None:
            kind, images = events.WRITE_ROWS, [image(one.after) for one in changes if one.after is not None]
        elif changes[0].after is None:
            kind, images = events.DELETE_ROWS, [image(one.before) for one in changes if one.before is not None]
        else:
            kind = events.UPDATE_ROWS
            images = [image(one.before) + image(one.after) for one in changes if one.before and one.after]
        two = kind == events.UPDATE_ROWS
        for body in writer.events(table_id, images, self._event_bytes, two=two, last=last):
            self.cache.append((kind, body, 0))

    # -- parts of it --------------------------------------------------------------------------------------------------

    def mark(self) -> tuple[int, int]:
        """Returns the present state, for back()."""
        return len(self.changes), len(self.cache)

    def back(self, mark: tuple[int, int]) -> None:
        """Undoes what came after mark()."""
        changes, cache = mark
        kept, tables = self.changes[:changes], self._tables[:changes]
        del self.cache[cache:]
        self.changes, self._tables, self.overlay = [], [], {}
        for table, change in zip(tables, kept, strict=True):
            self._take(table, change)

    def savepoint(self, name: str) -> None:
        """Sets a savepoint. It is written to the binlog; a rollback to it is not, but removes what followed."""
        text = b"SAVEPOINT `" + name.encode() + b"`"
        self.cache.append(events.query(self.schema, text, self.thread))
        self._savepoints = [one for one in self._savepoints if one[0] != name]
        self._savepoints.append((name, *self.mark()))

    def has_savepoint(self, name: str) -> bool:
        return any(one[0] == name for one in self._savepoints)

    def rollback_to(self, name: str) -> None:
        """Undoes what came after a savepoint, which it has."""
        del self._savepoints[self._number_of(name) + 1 :]
        self.back(self._savepoints[-1][1:])

    def release(self, name: str) -> None:
        """Forgets a savepoint, which it has, and those after it."""
        del self._savepoints[self._number_of(name) :]

    def _number_of(self, name: str) -> int:
        return next(at for at, one in enumerate(self._savepoints) if one[0] == name)

    def unlock(self) -> None:
        """Releases the locks, at its end."""
        if self._locks:
            for table, key in self._locks:
                table.locks.pop(key, None)
            self._locks.clear()
            self.released()


def _with_times(changes: Sequence[Change]) -> bool:
    """Returns whether a DATETIME or TIMESTAMP is set, which depends on the session's time zone."""
    definition = changes[0].definition
    numbers = [number for number, column in enumerate(definition.columns) if column.type.name in TIMES]
    return any(
        change.after is not None
        and change.after[number] is not None
        and (change.before is None or change.before[number] != change.after[number])
        for number in numbers
        for change in changes
    )


def _alike(one: Change, other: Change) -> bool:
    """Returns whether two changes may be in one rows event."""
    return one.definition is other.definition and one.operation == other.operation


def duplicate(definition: Definition, index: str, values: Sequence[Any]) -> SqlError:
    """Returns error 1062."""
    shown = "-".join(value.hex() if isinstance(value, bytes) else str(value) for value in values)
    return SqlError(1062, f"Duplicate entry '{shown[:64]}' for key '{definition.name}.{index}'")


def filled(table: Table, given: dict[int, Any], now: Callable[[int], str]) -> Row:
    """Returns a row with these values by the columns' numbers, and defaults for the others; `now` prints the present
    time with some digits of its second's fraction. Raises SqlError."""
    values = []
    for number, column in enumerate(table.definition.columns):
        value = given.get(number)
        if value is None and column.auto_increment:
            value = table.next_id
        elif number not in given:
            value = now(column.type.decimals) if column.default is NOW else column.default
            if value is None and not column.nullable:
                raise SqlError(1364, f"Field '{column.name}' doesn't have a default value")
        values.append(taken(table.definition, number, value))
        if column.auto_increment:
            table.next_id = max(table.next_id, values[-1] + 1)
    return tuple(values)


def taken(definition: Definition, number: int, value: Any) -> Any:
    """Returns a value as the column stores it. Raises SqlError."""
    column = definition.columns[number]
    if value is None:
        if not column.nullable:
            raise SqlError(1048, f"Column '{column.name}' cannot be null")
        return None
    try:
        return column.type.take(value)
    except SqlError as error:
        if error.text.endswith("for column"):
            raise SqlError(error.errno, f"{error.text} '{column.name}' at row 1") from None
        raise
