"""Reads a table in ranges of its key, each by one task of Spark's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from pyspark import RDD
from pyspark.sql import SparkSession

from headrace_documents.formats.changes import Row, Rows
from headrace_spark.source.columns import quoted
from headrace_spark.source.connection import Source, SourceError
from headrace_spark.source.kafka import java_reason
from headrace_spark.source.tables import SourceTable

Key = tuple[str, ...]
"""The texts of a row's key, see SourceColumn.literal()."""
VERSION = 1
"""The version of rows that were read from tables: whatever the stream writes is newer."""
_TOGETHER = 200


class KeyRange(NamedTuple):
    """The rows after `after`, up to and including `last`; None: from the beginning, up to the end."""

    after: Key | None
    last: Key | None


class RowMaker:
    """Makes rows as in messages from what Spark reads; it is sent to the tasks."""

    def __init__(self, table: SourceTable) -> None:
        self._table = table

    def messages(self, records: Iterable[Sequence[Any]]) -> Iterator[Rows]:
        """Yields all of them as inserted rows, a few in each."""
        return self.together(self.rows(records))

    def rows(self, records: Iterable[Sequence[Any]]) -> Iterator[Row]:
        """Yields each of them."""
        columns = [(one.name, one.converter()) for one in self._table.columns]
        for record in records:
            row: Row = {}
            for (name, convert), value in zip(columns, record, strict=True):
                row[name] = convert(value) if convert is not None and value is not None else value
            yield row

    def together(self, rows: Iterable[Row]) -> Iterator[Rows]:
        """Yields rows as inserted ones, a few in each message."""
        left = iter(rows)
        while some := list(islice(left, _TOGETHER)):
            yield inserted(self._table, some)


def inserted(table: SourceTable, rows: list[Row]) -> Rows:
    """Returns rows of a table as in a message that inserts them."""
    olds: list[Row | None] = [None] * len(rows)
    return Rows(table.database, table.name, "INSERT", table.keys, table.types, rows, olds, VERSION, 0, 0)


class TableReader:
    """Reads one table."""

    def __init__(self, spark: SparkSession, source: Source, table: SourceTable, partition_rows: int) -> None:
        self._spark, self._source, self.table, self.partition_rows = spark, source, table, partition_rows
        self._keys = table.key_columns
        self._from = f"{quoted(table.database)}.{quoted(table.name)}"

    def ranges(self, after: Key | None = None) -> Iterator[KeyRange]:
        """Yields the ranges after a key; for a table without a key one with all rows. Raises SourceError."""
        if not self._keys:
            yield KeyRange(None, None)
            return
        while True:
            last = self._boundary(after)
            yield KeyRange(after, last)
            if last is None:
                return
            after = last

    def _boundary(self, after: Key | None) -> Key | None:
        """Returns the key of the last of the next rows; None if there are fewer."""
        names = ", ".join(one.key_text() for one in self._keys)
        order = ", ".join(one.compared() for one in self._keys)
        where = f" WHERE {self._beyond(after, '>', [one.compared() for one in self._keys])}" if after else ""
        found = self._source.query(
            f"SELECT {names} FROM {self._from}{where} ORDER BY {order} LIMIT {self.partition_rows - 1}, 1"
        )
        return tuple(str(one) for one in found[0]) if found else None

    def is_empty(self) -> bool:
        """Returns whether there is no row. Raises SourceError."""
        return not self._source.query(f"SELECT 1 FROM {self._from} LIMIT 1")

    def estimate(self) -> int:
        """Returns the server's estimate of the number of rows. Raises SourceError."""
        database, name = (f"0x{one.encode().hex()}" for one in (self.table.database, self.table.name))
        found = self._source.query(
            "SELECT COALESCE(TABLE_ROWS, 0) FROM information_schema.TABLES WHERE TABLE_SCHEMA ="
            f" CONVERT({database} USING utf8mb4) AND TABLE_NAME = CONVERT({name} USING utf8mb4)"
        )
        return int(found[0][0] or 0) if found else 0

    def read(self, ranges: Sequence[KeyRange]) -> RDD[Any]:
        """Returns the values of the rows in the ranges, one task for each range. Raises SourceError; later errors are
        raised by Spark."""
        columns = self.table.columns
        shown = [f"{one.selected()} AS c{i}" for i, one in enumerate(columns)]
        shown += [f"{one.compared()} AS k{i}" for i, one in enumerate(self._keys)]
        schema = ", ".join(f"c{i} {'BINARY' if one.is_bytes else 'STRING'}" for i, one in enumerate(columns))
        options = {**self._source.options(), "customSchema": schema}
        url = options.pop("url")
        selected, conditions = (
            f"(SELECT {', '.join(shown)} FROM {self._from}) q",
            [self._condition(one) for one in ranges],
        )
        try:
            frame = self._spark.read.jdbc(url, selected, predicates=conditions, properties=options)
        except Exception as error:
            raise SourceError(f"table {self.table} can't be read: {java_reason(error)}") from None
        return frame.select(*(f"c{i}" for i in range(len(columns)))).rdd

    def _condition(self, one: KeyRange) -> str:
        names = [f"k{i}" for i in range(len(self._keys))]
        conditions = [self._beyond(one.after, ">", names)] if one.after is not None else []
        if one.last is not None:
            conditions.append(self._beyond(one.last, "<", names, also_equal=True))
        return " AND ".join(conditions) or "1 = 1"

    def _beyond(self, key: Key, side: str, names: Sequence[str], *, also_equal: bool = False) -> str:
        """Returns the condition that a row's key is greater (`side` is ">") or less. The first comparison is true for
        every such row, so that also simple optimizers use the index."""
        if len(key) != len(self._keys):
            raise SourceError(f"a key of {self.table} has {len(key)} parts, its table {len(self._keys)}")
        try:
            literals = [column.literal(part) for column, part in zip(self._keys, key, strict=True)]
        except ValueError as error:
            raise SourceError(f"a stored key of {self.table} can't be used: {error}") from None
        condition = ""
        for name, literal in list(zip(names, literals, strict=True))[::-1]:
            if not condition:
                condition = f"{name} {side}{'=' if also_equal else ''} {literal}"
            else:
                enter = f"{name} {side}= {literal}"
                condition = f"{enter} AND ({name} {side} {literal} OR ({name} = {literal} AND {condition}))"
        return f"({condition})"
