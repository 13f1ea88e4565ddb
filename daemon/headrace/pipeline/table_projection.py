"""What becomes of a table's changes on their way out: rows dropped, columns left out or masked, parts by partition."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from operator import itemgetter
from typing import Any

import orjson

from headrace.errors import NotUnderstood
from headrace.large_values import settled
from headrace.model import ABSENT, Operation, Row, RowsChange, TableSchema
from headrace.rules.hashes import canal_partition, kafka_partitions
from headrace.rules.keys import KeyRule
from headrace.rules.predicates import ColumnAbsent
from headrace_common.numbers import float_text

KeyBytes = Callable[[Row], bytes]
Slice = tuple[int, RowsChange]
"""A partition, and the rows of a change that go there."""
_KEY_LIMIT = 64
"""Bytes of a key that are kept as they are in what tells messages apart."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where the changes of one table go, and which rules said so ("" for a default)."""

    schema: str
    table: str
    topic: str
    topic_rule: str
    partition: int
    """Of all its messages, unless `key` spreads them."""
    partitions: int
    """Of the topic, as far as [route] spreads over them."""
    key: KeyRule | None
    """What decides on the partition; None: `partition` does."""

    @property
    def spreads(self) -> bool:
        """Whether rows of the table go to several partitions."""
        return self.key is not None and self.key.kind != "table" and self.partitions > 1


@dataclass(slots=True)
class Part:
    """Rows of a change that go to one partition, as they are published."""

    address: str
    partition: int
    change: RowsChange
    lone: bool
    """Whether one message for them says all of the event, so that its id needs no row's number."""
    keys: list[tuple[str, ...]]
    """The keys of each row; see TableProjection.keys(). Empty unless they are asked for."""


class TableProjection:
    """One table schema's: `source` is the table schema of the rows that come in, `schema` that of those that are
    published. `simple` says that a change goes out as a whole."""

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
        kept: Sequence[int] | None = (),
        looked_at: Iterable[int] = (),
        left_out: frozenset[Operation] = frozenset(),
        skips_unchanged: bool = False,
    ) -> None:
        """`kept`: the columns of `source` that are published as they are, by number; None where values are changed.
        `condition`: those that `keeps` looks at, by name in lower case. `looked_at`: those whose values a condition or
        a mask needs. `left_out`: the operations that are not published. `skips_unchanged`: nor are updates that change
        no published column."""
        self.route, self.source, self.schema, self.kept = route, source, schema, kept
        self.partition, self.address = route.partition, lru_cache(maxsize=None)(address)
        self.tables = (f"{route.schema}.{route.table}",)
        self._project, self._keeps = project, keeps
        self._columns = tuple(key_columns)
        self.decides = condition.union(source.columns[i].name.lower() for i in self.deciding_columns)
        """The columns that say whether and where a row is published, and which it is, by name in lower case."""
        self._key_columns, self._primary_key = _getter(key_columns), _getter(source.keys)
        self._key = key_bytes or key_of(source, key_columns)
        self._identity = source.keys if self._columns != source.keys else ()
        """The columns of the primary key, where others decide on the partition."""
        self._identity_key = key_of(source, self._identity)
        self._hidden, self._secret = hidden_key, blake2b(secret).digest()
        self.family = family(route)
        self._spread: Callable[[Sequence[Row]], list[int]] | None = None
        """The partitions of rows."""
        self._named_key, self._canal_hash = key_bytes is not None, canal_hash
        if route.spreads:
            n, key = route.partitions, self._key
            if canal_hash:
                text = text_of(source, key_columns)
                self._spread = lambda rows: [canal_partition(text(row), n, database=database) for row in rows]
            else:
                self._spread = lambda rows: kafka_partitions(map(key, rows), n)
        self.left_out, self.skips_unchanged = left_out, skips_unchanged
        self.selective = bool(left_out or skips_unchanged)
        """Whether what a change does decides if it is published."""
        self.spreads = self._spread is not None
        self.simple = not self.spreads and keeps is None and not self.selective
        self.looked_at = frozenset((*self.deciding_columns, *looked_at))
        """The columns of `source` whose values are looked at: large ones of them are decoded as a whole."""

    def native_key(self) -> tuple[Any, ...] | None:
        """What native code hashes to find a row's partition: the name of the way, and its columns in `source`; None
        when it can't, or partitions depend on more."""
        if self._keeps is not None or self._canal_hash:
            return None
        if self._named_key:
            return ("record",)
        return ("text", self._columns[0]) if len(self._columns) == 1 else ("list", list(self._columns))

    @property
    def deciding_columns(self) -> list[int]:
        """Those of `source` that say where a row goes and which it is."""
        return sorted({*self._columns, *self.source.keys})

    @property
    def hides_key(self) -> bool:
        """Whether the key is not published as it is, so that nobody who reads messages may see it."""
        return self._hidden

    @property
    def conditional(self) -> bool:
        """Whether a condition of the filter decides on rows."""
        return self._keeps is not None

    def shows(self, row: Row) -> bool:
        """Whether the condition is met by a row, as far as it has the columns."""
        with suppress(ColumnAbsent, ValueError, LookupError, struct.error):  # which are told as the row goes out
            return self._keeps is None or bool(self._keeps(settled([row])[0]))
        return False

    def whole(self, change: RowsChange) -> RowsChange:
        """A change that is not cut, or a part of one, as it is published."""
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
        """What is published of a change, in the order of its rows. Raises NotUnderstood when a row lacks a column that
        decides."""
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
        """The partition of each row, the address of each partition, and the change as it is published, where every row
        is published and stays what it is; None elsewhere. Raises NotUnderstood."""
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
        """The parts of a change, for each partition in the order of its rows.

        A row whose key is another one afterwards, and whose partition is, becomes a DELETE there and an INSERT here;
        one that comes under the filter's condition an INSERT, one that leaves it a DELETE. Operations that are left out
        are looked for behind the condition, and before partitions. `pos` of a part is its
        first row's; a row that becomes two parts takes two numbers, the DELETE the lower one. Raises NotUnderstood
        when a row lacks a column that decides.
        """
        try:
            if change.before is None or not (self.spreads or self.conditional or self.skips_unchanged):
                return self._slice_plain(change)
            return self._slice_update(change, change.before)
        except ColumnAbsent as error:
            raise self._absent(error.name) from error

    def keys(self, change: RowsChange) -> list[tuple[str, ...]]:
        """The keys of each row of a part or a whole change, before it is projected; empty without a key. An update that
        changes the key has both. A key begins with whose it is: see family."""
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
        """By the columns that decide on the partition, and by the primary key where that is another: the halves of an
        update that moves a row share the latter."""
        names: tuple[str, ...] = (self._name(self.family, self._key(row)),) if self._columns else ()
        return (*names, self._name(self.tables[0], self._identity_key(row))) if self._identity else names

    def _name(self, whose: str, key: bytes) -> str:
        if self._hidden or len(key) > _KEY_LIMIT:
            return f"{whose} {blake2b(key, digest_size=16, key=self._secret).hexdigest()}"
        return f"{whose} {key.decode('utf-8', 'replace')}"

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
        """By partition: the rows of the last part there, as long as it is one of updates. Row i of a part counts as
        `pos` + i, which may be less than its own number: that does no harm while nobody else has the row."""
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
        """Whether an update is not published for what it does; `was` and `now`: whether the condition is met."""
        operation = Operation.UPDATE if was and now else Operation.INSERT if now else Operation.DELETE
        return operation in self.left_out or (self.skips_unchanged and was and now and self._unchanged(old, new))

    def _unchanged(self, old: Row, new: Row) -> bool:
        """Whether an update changes no published column, as far as the images show, and no partition."""
        if self.spreads and self._key_columns(old) != self._key_columns(new):
            return False
        if self._project is not None:
            old, new = self._project(old), self._project(new)
        return old == new and ABSENT not in new

    def _made(self, change: RowsChange, operation: Operation, row_indexes: Sequence[int], pos: int) -> RowsChange:
        """Some rows of a change; or, with another operation than its own, half of what one row's update became."""
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
    """Whose keys are the same: of tables that a rule spreads by a column, that a rule brings together in one topic, or
    of one table."""
    if route.key is not None and route.key.kind == "columns":
        return route.key.rule
    return route.topic_rule or f"{route.schema}.{route.table}"


def _getter(columns: Sequence[int]) -> Callable[[Row], Any]:
    return itemgetter(*columns) if columns else lambda _: None


def key_of(schema: TableSchema, columns: Sequence[int]) -> KeyBytes:
    """Prints the key of a row: one column's text as it is, of several a JSON list; NULL is empty in the first case.
    The function raises ColumnAbsent."""
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
    """Prints values of a row as text: binary strings byte by byte, as Canal shows them. The function raises
    ColumnAbsent."""

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
