"""Fields that are Spark SQL expressions: computed by Spark for each row, before its documents are made.

The rows of the messages are given to Spark as columns of texts, and the results come back with the message. A batch
takes this way only if an index has such fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import orjson
from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from headrace_documents.errors import ConsumerError, MessageError
from headrace_documents.formats.changes import Row, Rows
from headrace_documents.indexes.settings import RowFields, computed_column
from headrace_documents.messages import read
from headrace_spark.settings import Settings
from headrace_spark.source.kafka import java_reason

_MESSAGE = [
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField(
        "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
    ),
]
_WITH_ROWS = StructType([*_MESSAGE, StructField("rows", ArrayType(MapType(StringType(), StringType())))])
_OURS = "headrace "
"""Prefix of our own columns: a table may have one that is called `value`."""


class ExpressionError(ConsumerError):
    """Spark does not accept an expression."""

    exit_code = 2


class Expression(NamedTuple):
    """An expression. `column` is the name of its value in a row."""

    column: str
    text: str
    what: str


def expressions_of(settings: Settings) -> list[Expression]:
    """Returns all of them, in order."""
    made: list[Expression] = []
    for index in settings.index:
        parts: list[tuple[str, RowFields]] = [("", index), *((join.name, join) for join in index.join)]
        for join, part in parts:
            for name, field in part.fields.items():
                if field.sql:
                    what = f"index {index.name}, {f'join {join}, ' if join else ''}field {name}"
                    made.append(Expression(computed_column(index.name, join, name), field.sql, what))
    return made


class Expressions:
    """The expressions of a configuration."""

    def __init__(self, settings: Settings, spark: SparkSession) -> None:
        """Raises ExpressionError."""
        self._all, self._spark = expressions_of(settings), spark
        jvm: Any = spark.sparkContext._jvm
        parser = jvm.org.apache.spark.sql.catalyst.parser.CatalystSqlParser()
        columns: dict[str, None] = {}
        for one in self._all:
            try:
                columns |= dict.fromkeys(_columns(parser.parseExpression(one.text)))
            except Exception as error:
                raise _error(one, error) from None
        self._columns = list(columns)
        nothing = spark.createDataFrame([], _WITH_ROWS) if self._all else None
        for one in self._all:
            try:
                _ = self._rows(nothing).select(sql.expr(one.text)).schema
            except Exception as error:
                raise _error(one, error) from None

    def __bool__(self) -> bool:
        return bool(self._all)

    def computed(self, frame: DataFrame) -> DataFrame:
        """Returns rows of messages, those of a message consecutively, with their computed values."""
        return self._with_values(frame.rdd.mapPartitions(_rows))

    def of_rows(self, rows: RDD[Any]) -> RDD[Any]:
        """Returns the same for rows that no message has: those of rows() in the tasks."""
        return self._with_values(rows.map(_as_message)).rdd

    def rows(self, given: Iterable[Any]) -> Iterator[Row]:
        """Yields each row that was given to of_rows(), with its computed values."""
        names = [one.column for one in self._all]
        for made in given:
            row: Row = orjson.loads(made[1])
            yield row | _values(names, made[-1])

    def _with_values(self, messages: RDD[Any]) -> DataFrame:
        with_rows = self._spark.createDataFrame(messages, _WITH_ROWS, verifySchema=False)
        values = [sql.to_json(sql.struct(sql.expr(one.text).alias("v"))) for one in self._all]
        message = [sql.col(f"`{_OURS}{one.name}`") for one in _MESSAGE]
        return self._rows(with_rows).select(*message, sql.array(*values))

    def messages(self, rows: Iterable[Any]) -> Iterator[tuple[tuple[Any, ...], list[Row]]]:
        """Yields the messages of rows of computed(), and the additional columns of each of their rows."""
        names = [one.column for one in self._all]
        for _, group in groupby(rows, key=lambda row: (row[2], row[3], row[4])):
            some = list(group)
            yield tuple(some[0][:-1]), [_values(names, row[-1]) for row in some]

    def __getstate__(self) -> dict[str, Any]:
        return {"_all": self._all}  # for tasks

    def _rows(self, with_rows: Any) -> DataFrame:
        """Returns a column for each that an expression names."""
        message = [sql.col(one.name).alias(_OURS + one.name) for one in _MESSAGE]
        exploded = with_rows.select(*message, sql.explode_outer("rows").alias(f"{_OURS}row"))
        row = sql.col(f"`{_OURS}row`")
        made: DataFrame = exploded.select(
            *(sql.col(f"`{_OURS}{one.name}`") for one in _MESSAGE), *(row[name].alias(name) for name in self._columns)
        )
        return made


def _rows(given: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    for key, value, topic, partition, offset, headers in given:
        rows: list[dict[str, str | None]] = []
        try:
            message = read(value, key, dict(headers or ()))
            if isinstance(message, Rows):
                rows = [{name: _text(one) for name, one in row.items()} for row in message.rows]
        except MessageError:  # it becomes a dead letter later
            pass
        yield key, value, topic, partition, offset, headers, rows


def _as_message(row: Row) -> tuple[Any, ...]:
    return None, orjson.dumps(row), None, None, None, None, [row]


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def _values(names: list[str], texts: list[str]) -> Row:
    return {name: orjson.loads(text).get("v") for name, text in zip(names, texts, strict=True)}


def _columns(parsed: Any) -> Iterator[str]:
    """Yields the columns that a parsed expression names."""
    if parsed.getClass().getSimpleName() == "UnresolvedAttribute":
        yield parsed.nameParts().head()
    children = parsed.children()
    for number in range(children.size()):
        yield from _columns(children.apply(number))


def _error(one: Expression, error: Exception) -> ExpressionError:
    return ExpressionError(f"{one.what}: Spark does not take sql = {one.text!r}: {java_reason(error)}")
