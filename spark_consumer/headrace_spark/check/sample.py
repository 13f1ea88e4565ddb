"""What some of a topic's messages show: formats, tables with their columns and keys, and errors in them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import orjson

from headrace_documents.errors import MessageError
from headrace_documents.formats.changes import Rows
from headrace_documents.formats.debezium import split_schema
from headrace_documents.messages import read
from headrace_spark.source.kafka_client import KafkaClient, Range, Read

MOST_TABLES = 1000
_CHINESE = ("\u2e80", "\u9fff")  # with Japanese


@dataclass(slots=True)
class Table:
    """The facts of a table. `types` and `keys` are those of its newest message."""

    database: str
    name: str
    types: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    changes: Counter[str] = field(default_factory=Counter)
    """Rows by operation."""
    partial: int = 0
    """Rows that lack columns."""
    newest_ms: int = 0
    ideographs: set[str] = field(default_factory=set)
    """Columns with Chinese or Japanese texts."""
    rows: Rows | None = None
    """Its newest message."""

    @property
    def full(self) -> str:
        """Returns database.table."""
        return f"{self.database}.{self.name}"


class Sample:
    """Takes messages one by one. It keeps a message for each table, of at most MOST_TABLES tables."""

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.further: set[str] = set()
        """Names of tables beyond the maximum."""
        self.formats: Counter[str] = Counter()
        self.problems: dict[str, tuple[int, str]] = {}
        """What is not understood: how many times, and where first."""
        self.messages = self.bytes = 0
        self.unplaced = 0
        """Messages about rows without a position of headrace."""
        self.newest_ms = -1

    def take(self, topic: str, record: Read) -> None:
        """Takes a message."""
        self.messages += 1
        self.bytes += len(record.value or b"")
        self.newest_ms = max(self.newest_ms, record.timestamp)
        try:
            message = read(record.value, record.key, dict(record.headers))
        except MessageError as error:
            text = str(error)
            count, where = self.problems.get(
                text, (0, f"{topic}, partition {record.partition}, offset {record.offset}")
            )
            if count or len(self.problems) < MOST_TABLES:
                self.problems[text] = count + 1, where
            return
        self.formats[format_of(record.value)] += 1
        if isinstance(message, Rows):
            self.unplaced += not has_position(record)
            self._take_rows(message, record.timestamp)

    def _take_rows(self, message: Rows, timestamp: int) -> None:
        name = f"{message.database}.{message.table}"
        table = self.tables.get(name)
        if table is None:
            if len(self.tables) >= MOST_TABLES:
                self.further.add(name) if len(self.further) < MOST_TABLES else None
                return
            table = self.tables[name] = Table(message.database, message.table)
        table.changes[message.operation] += len(message.rows)
        if message.operation != "DELETE":
            table.partial += sum(not message.types.keys() <= row.keys() for row in message.rows)
        for row in message.rows[:5]:
            table.ideographs.update(column for column, value in row.items() if has_ideographs(value))
        if timestamp >= table.newest_ms:
            table.newest_ms, table.keys, table.rows = timestamp, message.keys or table.keys, message
            table.types = message.types or {**dict.fromkeys(message.rows[0], ""), **table.types}


def format_of(value: bytes | None) -> str:
    """Returns a name for the format of a message that was understood."""
    if value is None:
        return "tombstones"
    if split_schema(value) is not None:
        return "Debezium's JSON with schemas"
    message = orjson.loads(value)
    if "database" in message and "type" in message:
        return "Canal's JSON"
    if "schema" in message:
        return "Debezium's JSON with schemas"
    return "Debezium's JSON without schemas" if "source" in message or "payload" in message else "marks of transactions"


def has_position(record: Read) -> bool:
    """Returns whether a message has a position of headrace; those of Canal and Debezium themselves have none."""
    if any(name == "headrace-pos" for name, _ in record.headers):
        return True
    message = orjson.loads(record.value or b"null")
    return isinstance(message, dict) and message.get("_pos") is not None


def has_ideographs(value: object) -> bool:
    """Returns whether a text has Chinese or Japanese characters."""
    return isinstance(value, str) and not value.isascii() and any(_CHINESE[0] <= one <= _CHINESE[1] for one in value)


def read_ends(
    client: KafkaClient, topic: str, ranges: Mapping[int, Range], messages: int, seconds: float
) -> Iterator[Read]:
    """Yields the newest messages of each partition, and then its oldest, up to this number and this time."""
    deadline = time.monotonic() + seconds
    each = max(1, messages // (2 * max(1, len(ranges))))
    newest = {number: Range(max(whole.first, whole.end - each), whole.end) for number, whole in ranges.items()}
    oldest = {
        number: Range(whole.first, min(whole.first + each, newest[number].first)) for number, whole in ranges.items()
    }
    for part in (newest, oldest):
        for number, wanted in part.items():
            for record in client.read(topic, number, wanted):
                yield record
                if time.monotonic() >= deadline:
                    return
