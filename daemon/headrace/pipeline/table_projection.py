"""Projects a table's changes for publishing: drops rows, omits or masks columns, splits by partition."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from operator import itemgetter
from typing import Any

import orjson

from headrace.errors import NotUnderstood
from headrace.large_values import settled
from headrace.model import ABSENT, Operation, Row, RowsChange, TableSchema, Unit
from headrace.rules.hashes import canal_partition, kafka_partitions
from headrace.rules.keys import KeyRule
from headrace.rules.predicates import ColumnAbsent
from headrace_common.numbers import float_text

KeyBytes = Callable[[Row], bytes]
Slice = tuple[int, RowsChange]
"""A partition, and the rows of a change that go there."""
_KEY_LIMIT = 64
"""Maximum bytes of a key that are kept unhashed to identify messages."""


@dataclass(frozen=True, slots=True)
class Route:
    """The route of one table's changes, and the rules that decided on it ("" for a default)."""

    schema: str
    table: str
    topic: str
    topic_rule: str
    partition: int
    """The partition of all its messages, unless `key` spreads them."""
    partitions: int
    """The topic's partitions, as far as [route] spreads over them."""
    key: KeyRule | None
    """The rule that chooses the partition; None: `partition`."""

    @property
    def spreads(self) -> bool:
        """Returns whether rows of the table go to several partitions."""
        return self.key is not None and self.key.kind != "table" and self.partitions > 1


@dataclass(slots=True)
class Part:
    """The rows of a change that go to one partition, as they are published."""

    address: str
    partition: int
    change: RowsChange
    lone: bool
    """Whether one message has all of the event, so that its id needs no row number."""
    keys: list[tuple[str, ...]]
    """The keys of each row; see TableProjection.keys(). Empty unless requested."""


@dataclass(frozen=True, slots=True)
class Names:
    """How messages about a table's rows are named, so that those about the same row can wait for each other."""

    schema: str
    table: str
    family: str
    """See family()."""
    hidden: bool
    """Whether keys are shown to nobody."""
    secret: bytes

    def unit(self, keys: Sequence[tuple[int, bytes]]) -> Unit:
        """Returns what a message is about. `keys` are those of its rows, each with 0 for that of the family, or 1 for
        the primary key."""
        of_table = f"{self.schema}.{self.table}"
        whose = self.family, of_table
        return Unit((of_table,), tuple(dict.fromkeys(self.name(whose[which], key) for which, key in keys)))

    def name(self, whose: str, key: bytes) -> str:
        """Returns the name of one key."""
        if self.hidden or len(key) > _KEY_LIMIT:
            return f"{whose} {blake2b(key, digest_size=16, key=self.secret).hexdigest()}"
        return f"{whose} {key.decode('utf-8', 'replace')}"


class TableProjection:
    """The projection of one table schema: `source` is the table schema of incoming rows, `schema` that of published
    ones. `simple` means that a change is published as a whole."""

    def __init__(
        self,
        route: Route,
        source: TableSchema,
        schema: TableSchema,
        *,
        project: Callable[[Row], Row] | None = None,
        keeps: Callable[[Row], bool | None] | None = None,
        address: Callable[[int], str],
        key_columns: Sequence[int] = (),
        key_bytes: KeyBytes | None = None,
        canal_hash: bool = False,
        database: str | None = None,
        hidden_key: bool = False,
        secret: bytes = b"",
        condition: frozenset[str] = frozenset(),
        kept: Sequence[int] = (),
        masks: Mapping[int, tuple[Any, ...]] | None = None,
        native_condition: tuple[Any, ...] | None = None,
        read_columns: Iterable[int] = (),
        left_out: frozenset[Operation] = frozenset(),
        skips_unchanged: bool = False,
    ) -> None:
        """`kept`: numbers of the columns of `source` that are published. `masks`: how native code masks some of them.
        `native_condition`: what `keeps` checks, for native code; None if it can't.
        `condition`: the columns that `keeps` reads, by name in lower case. `read_columns`: columns whose values a
        condition or a mask needs. `left_out`: operations that are not published. `skips_unchanged`: updates that change
        no published column are not published either."""
        self.route, self.source, self.schema, self.kept, self.masks = route, source, schema, kept, masks or {}
        self.native_condition = native_condition
        self.partition, self.address = route.partition, cache(address)
        self.tables = (f"{route.schema}.{route.table}",)
        self._project, self._keeps = project, keeps
        self._columns = tuple(key_columns)
        self.decides = condition.union(source.columns[i].name.lower() for i in self.deciding_columns)
        """The columns that decide whether and where a row is published, and that identify it, by name in lower case."""
        self._key_columns, self._primary_key = _getter(key_columns), _getter(source.keys)
        self._key = key_bytes or key_of(source, key_columns)
        self._identity = source.keys if self._columns != source.keys else ()
        """The columns of the primary key, if other columns choose the partition."""
        self._identity_key = key_of(source, self._identity)
        self.family = family(route)
        self.names = Names(route.schema, route.table, self.family, hidden_key, blake2b(secret).digest())
        self._spread: Callable[[Sequence[Row]], list[int]] | None = None
        """Returns the partitions of rows."""
        self._named_key, self._canal_hash, self._database = key_bytes is not None, canal_hash, database
        if route.spreads:
            n, key = route.partitions, self._key
            if canal_hash:
                text = text_of(source, key_columns)
                self._spread = lambda rows: [canal_partition(text(row), n, database=database) for row in rows]
            else:
                self._spread = lambda rows: kafka_partitions(map(key, rows), n)
        self.left_out, self.skips_unchanged = left_out, skips_unchanged
        self.selective = bool(left_out or skips_unchanged)
        """Whether a change's operation can prevent its publication."""
        self.spreads = self._spread is not None
        self.simple = not self.spreads and keeps is None and not self.selective
        self.read_columns = frozenset((*self.deciding_columns, *read_columns))
        """The columns of `source` whose values are read: large values in them are decoded completely."""

    def native_key(self) -> tuple[Any, ...]:
        """Returns what native code hashes to find a row's partition: the name of the method, and its columns in
        `source`."""
        if self._canal_hash:
            return "canal", list(self._columns), self._database
        return self._native_key(self._columns)

    def _native_key(self, columns: Sequence[int]) -> tuple[Any, ...]:
        if self._named_key and columns is self._columns:
            return ("record",)
        return ("text", columns[0]) if len(columns) == 1 else ("list", list(columns))

    def native_names(self) -> list[tuple[int, tuple[Any, ...]]]:
        """Returns the keys that name a row for native code, as Names.unit() takes them."""
        keys = [(0, self._native_key(self._columns))] if self._columns else []
        return [*keys, (1, self._native_key(self._identity))] if self._identity else keys

    @property
    def deciding_columns(self) -> list[int]:
        """Returns the columns of `source` that choose the partition and identify a row."""
        return sorted({*self._columns, *self.source.keys})

    @property
    def hides_key(self) -> bool:
        """Returns whether the key is not published unchanged, so that no reader of messages may see it."""
        return self.names.hidden

    @property
    def conditional(self) -> bool:
        """Returns whether a condition of the filter decides on rows."""
        return self._keeps is not None

    def shows(self, row: Row) -> bool:
        """Returns whether a row meets the condition, as far as it has the columns."""
        with suppress(ColumnAbsent, ValueError, LookupError, struct.error):  # reported when the row is published
            return self._keeps is None or bool(self._keeps(settled([row])[0]))
        return False

    def whole(self, change: RowsChange) -> RowsChange:
        """Returns an unsplit change, or a part of one, as it is published."""
        project, before, other = self._project, change.before, change.other
        if project is None:
            return change
        return RowsChange(
            self.schema,
            change.operation,
            [project(row) for row in change.rows],
            [project(row) for row in before] if before is not None else None,
            change.pos,
            change.commit_time_us,
            change.gtid,
            change.partial,
            change.origin,
            change.row_indexes,
            project(other) if other is not None else None,
            change.snapshot,
            change.large,
        )

    def parts(self, change: RowsChange, *, keys: bool) -> list[Part]:
        """Returns the published parts of a change, in the order of its rows. Raises NotUnderstood if a row lacks a
        column that decides."""
        lone = change.row_indexes is None
        if self.simple:
            slices: list[Slice] = [(self.partition, change)]
        else:
            slices, lone = self.slice(change), lone and len(change.rows) == 1
        return [
            Part(self.address(partition), partition, self.whole(one), lone, self.keys(one) if keys else [])
            for partition, one in slices
        ]

    def one_by_one(self, change: RowsChange) -> tuple[list[int], dict[int, str], RowsChange] | None:
        """Returns the partition of each row, the address of each partition, and the change as it is published, if every
        row is published and keeps its operation; else None. Raises NotUnderstood."""
        partitions = self._spread_evenly(change)
        if partitions is None:
            return None
        return partitions, {one: self.address(one) for one in dict.fromkeys(partitions)}, self.whole(change)

    def _spread_evenly(self, change: RowsChange) -> list[int] | None:
        spread, before = self._spread, change.before
        if spread is None or self._keeps is not None or self.selective or change.row_indexes is not None:
            return None
        if before is not None:
            for same in (self._key_columns, self._primary_key):
                if list(map(same, before)) != list(map(same, change.rows)):
                    return None
        try:
            return spread(change.rows)
        except ColumnAbsent as error:
            raise self._absent(error.name) from error

    def slice(self, change: RowsChange) -> list[Slice]:
        """Returns the parts of a change, for each partition in the order of its rows.

        A row whose new key belongs to another partition becomes a DELETE in the old one and an INSERT in the new one. A
        row that begins to meet the filter's condition becomes an INSERT, one that no longer meets it a DELETE.
        Operations that are not published are dropped after the condition is applied and before partitions are chosen.
        `pos` of a part is its first row's; a row that becomes two parts takes two numbers, the DELETE the lower one.
        Raises NotUnderstood if a row lacks a column that decides."""
        try:
            if change.before is None or not (self.spreads or self.conditional or self.skips_unchanged):
                return self._slice_plain(change)
            return self._slice_update(change, change.before)
        except ColumnAbsent as error:
            raise self._absent(error.name) from error

    def keys(self, change: RowsChange) -> list[tuple[str, ...]]:
        """Returns the keys of each row of a part or a whole change, before it is projected; empty without a key. An
        update that changes the key has both. A key begins with its family: see family()."""
        new = [self._names(row) for row in change.rows]
        if change.before is None:
            return new
        every = {*self._columns, *self._identity}
        old = [
            names if any(row[i] is ABSENT for i in every) else self._names(row)
            for row, names in zip(change.before, new, strict=True)
        ]
        return [b if a == b else tuple(dict.fromkeys((*a, *b))) for a, b in zip(old, new, strict=True)]

    # -- how -------------------------------------------------------------------------------------------------------

    def _names(self, row: Row) -> tuple[str, ...]:
        """Returns a row's keys: of the columns that choose the partition and, if it is another, of the primary key. The
        halves of an update that moves a row share the latter."""
        name = self.names.name
        names: tuple[str, ...] = (name(self.family, self._key(row)),) if self._columns else ()
        return (*names, name(self.tables[0], self._identity_key(row))) if self._identity else names

    def _slice_plain(self, change: RowsChange) -> list[Slice]:
        rows, keeps, spread = change.rows, self._keeps, self._spread
        if change.operation in self.left_out and change.snapshot is None:
            return []
        kept: Sequence[int] = range(len(rows))
        if keeps is not None:
            kept = [i for i in kept if keeps(rows[i])]
            if not kept:
                return []
        if spread is None:
            return [(self.partition, self._made(change, change.operation, kept, change.pos + kept[0]))]
        groups: dict[int, list[int]] = {}
        for i, partition in zip(kept, spread([rows[i] for i in kept]), strict=True):
            group = groups.get(partition)
            if group is None:
                groups[partition] = [i]
            else:
                group.append(i)
        return [
            (partition, self._made(change, change.operation, row_indexes, change.pos + row_indexes[0]))
            for partition, row_indexes in groups.items()
        ]

    def _slice_update(self, change: RowsChange, before: list[Row]) -> list[Slice]:
        keeps, spread, same, name = self._keeps, self._spread, self._key_columns, self._primary_key
        selective = self.selective
        parts: list[tuple[int, Operation, list[int], int]] = []
        runs: dict[int, list[int]] = {}
        """By partition: the rows of the last part there, while it is one of updates. Row i of a part counts as `pos` +
        i, which may be less than its own number; that is harmless while no other part has the row."""
        number = change.pos
        for i, (old, new) in enumerate(zip(before, change.rows, strict=True)):
            was, now = keeps is None or bool(keeps(old)), keeps is None or bool(keeps(new))
            if selective and (was or now) and self._drops(old, new, was, now):
                number += 1
                continue
            here = self.partition if spread is None or not now else spread((new,))[0]
            there = here if spread is None or not was or (now and same(old) == same(new)) else spread((old,))[0]
            if was and now and here == there:
                if name(old) != name(new):  # a row of another partition may have had the name: its number is exact
                    runs.pop(here, None)
                    parts.append((here, Operation.UPDATE, [i], number))
                elif here in runs:
                    runs[here].append(i)
                else:
                    runs[here] = [i]
                    parts.append((here, Operation.UPDATE, runs[here], number))
                number += 1
                continue
            if was:
                parts.append((there, Operation.DELETE, [i], number))
                runs.pop(there, None)
            number += was and now
            if now:
                parts.append((here, Operation.INSERT, [i], number))
                runs.pop(here, None)
            number += 1
        return [
            (partition, self._made(change, operation, row_indexes, pos))
            for partition, operation, row_indexes, pos in parts
        ]

    def _drops(self, old: Row, new: Row, was: bool, now: bool) -> bool:
        """Returns whether an update is not published because of its effect; `was` and `now`: whether the condition is
        met."""
        operation = Operation.UPDATE if was and now else Operation.INSERT if now else Operation.DELETE
        return operation in self.left_out or (self.skips_unchanged and was and now and self._unchanged(old, new))

    def _unchanged(self, old: Row, new: Row) -> bool:
        """Returns whether an update changes no published column, as far as the images show, and no partition."""
        if self.spreads and self._key_columns(old) != self._key_columns(new):
            return False
        if self._project is not None:
            old, new = self._project(old), self._project(new)
        return old == new and ABSENT not in new

    def _made(self, change: RowsChange, operation: Operation, row_indexes: Sequence[int], pos: int) -> RowsChange:
        """Returns some rows of a change; or, with an operation other than its own, half of one row's update."""
        rows, before, other = change.rows, change.before, None
        if operation is not change.operation:
            assert before is not None
            here, there = (before, rows) if operation is Operation.DELETE else (rows, before)
            (i,) = row_indexes
            rows, before, other = [here[i]], None, there[i]
        elif len(row_indexes) == len(rows):
            return change
        else:
            rows = [rows[i] for i in row_indexes]
            before = [before[i] for i in row_indexes] if before is not None else None
        return RowsChange(
            change.schema,
            operation,
            rows,
            before,
            pos,
            change.commit_time_us,
            change.gtid,
            change.partial,
            change.origin,
            row_indexes if change.row_indexes is None else [change.row_indexes[i] for i in row_indexes],
            other,
            change.snapshot,
            change.large,
        )

    def _absent(self, name: str) -> NotUnderstood:
        return NotUnderstood(
            f"a row of {self.tables[0]} lacks the column {name}, which decides where it goes",
            remedy="set the server's binlog_row_image to FULL, and let old sessions reconnect",
        )


def family(route: Route) -> str:
    """Returns the group of tables that share keys: those that a rule spreads by a column, those that a rule puts into
    one topic, or one table."""
    if route.key is not None and route.key.kind == "columns":
        return route.key.rule
    return route.topic_rule or f"{route.schema}.{route.table}"


def _getter(columns: Sequence[int]) -> Callable[[Row], Any]:
    return itemgetter(*columns) if columns else lambda _: None


def key_of(schema: TableSchema, columns: Sequence[int]) -> KeyBytes:
    """Returns a function that prints the key of a row: one column's text unchanged, several as a JSON list; a NULL
    alone is empty. The function raises ColumnAbsent."""
    if len(columns) != 1:
        text = text_of(schema, columns)
        return lambda row: orjson.dumps(text(row))
    (only,) = columns
    rest = text_of(schema, columns)

    def key(row: Row) -> bytes:
        value = row[only]
        if type(value) is str:
            return value.encode()
        if type(value) is int:
            return b"%d" % value
        return (rest(row)[0] or "").encode()

    return key


def text_of(schema: TableSchema, columns: Sequence[int]) -> Callable[[Row], list[str | None]]:
    """Returns a function that prints values of a row as text: binary strings byte by byte, as Canal does. The function
    raises ColumnAbsent."""

    def text(row: Row) -> list[str | None]:
        texts: list[str | None] = []
        for i in columns:
            value: Any = row[i]
            if value is ABSENT:
                raise ColumnAbsent(schema.columns[i].name)
            if value is None:
                texts.append(None)
            elif type(value) is bytes:
                texts.append(value.decode("latin-1"))
            else:
                texts.append(float_text(value) if type(value) is float else str(value))
        return texts

    return text
