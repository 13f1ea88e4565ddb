"""The stored forms of a parked message: its entry as a row of plain values, followed by its content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from headrace.model import Unit
from headrace.ports.parking import ParkedContent, ParkedEntry, ParkingState

Time = Callable[[int], Any]

ENTRY_FIELDS = tuple(ParkedEntry.__slots__)
"""Names of the values of entry_row(), in order."""


def entry_row(entry: ParkedEntry, time: Time = int) -> list[Any]:
    """Returns the values of an entry; `time` converts microseconds since 1970 UTC for the store."""
    unit = orjson.dumps([entry.unit.tables, entry.unit.keys]).decode()
    times = map(time, (entry.created_us, entry.tried_us, entry.due_us))
    fixed = [entry.number, entry.id, entry.scope, entry.topic, entry.partition]
    return [*fixed, unit, entry.reason, entry.attempts, str(entry.state), *times, entry.size]


def entry_of(row: Sequence[Any], micros: Callable[[Any], int] = int) -> ParkedEntry:
    """Reads what entry_row() returned; `micros` reverses `time`. Raises ValueError or TypeError."""
    tables, keys = orjson.loads(row[5])
    unit, state = Unit(tuple(tables), tuple(keys)), ParkingState(row[8])
    return ParkedEntry(*[*row[:5], unit, row[6], row[7], state, *map(micros, row[9:12]), row[12]])


def content_row(content: ParkedContent, time: Time = int) -> list[Any]:
    """Returns body, key, headers, tag and commit time. A header's bytes are the characters of ISO 8859-1."""
    headers = orjson.dumps([[name, value.decode("latin-1")] for name, value in content.headers]).decode()
    return [content.body, content.key, headers, content.tag, time(content.commit_time_us)]


def content_of(row: Sequence[Any], micros: Callable[[Any], int] = int) -> ParkedContent:
    """Reads what content_row() returned."""
    headers = tuple((name, value.encode("latin-1")) for name, value in orjson.loads(row[2]))
    return ParkedContent(row[0], row[1], headers, row[3], micros(row[4]))
