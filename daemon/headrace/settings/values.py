"""Types of values, where a destination begins, and binlog positions, as written in the configuration."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import AfterValidator

_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_INTERVAL = r"[1-9][0-9]*(?:-[1-9][0-9]*)?"
_TAG = r"[A-Za-z_][A-Za-z0-9_]{0,31}"
_GTID_MYSQL = re.compile(rf"{_UUID}(?::(?:{_TAG}:)?{_INTERVAL})+")
_GTID_MARIADB = re.compile(r"[0-9]+-[0-9]+-[0-9]+")
_FILE_OFFSET = re.compile(r"([^\s:/]+\.[0-9]{6,}):([0-9]+)")
_ANY_FILE_OFFSET = re.compile(r"([^\s:/]+):([0-9]+)")
"""The same for a file that need not be a server's own, such as a decoded one."""


def readable(read: Callable[[str], object]) -> AfterValidator:
    """Returns a validator for a text that stays a text: `read`, which raises ValueError, must be able to read it."""

    def check(value: str) -> str:
        read(value)
        return value

    return AfterValidator(check)


@dataclass(frozen=True, slots=True)
class StartEarliest:
    """Begin with the oldest binlog that the source still has."""


@dataclass(frozen=True, slots=True)
class StartLatest:
    """Begin with what is written after the first connection."""


@dataclass(frozen=True, slots=True)
class StartAt:
    """Begin at a byte of a binlog file, which is the start of an event."""

    file: str
    offset: int


@dataclass(frozen=True, slots=True)
class StartGtid:
    """Begin after the transactions of a GTID set, in the notation of MySQL or MariaDB."""

    gtid_set: str


@dataclass(frozen=True, slots=True)
class StartTime:
    """Begin with the first transaction committed at a time or later; `time` has a zone."""

    time: datetime


Start = StartEarliest | StartLatest | StartAt | StartGtid | StartTime
"""Where a destination without a stored position begins."""


def parse_start(value: Any) -> Start:
    """Reads where to begin, from its text (or a TOML time). Raises ValueError."""
    if isinstance(value, datetime):
        return _start_time(value)
    if isinstance(value, StartEarliest | StartLatest | StartAt | StartGtid | StartTime):
        return value
    text = value.strip() if isinstance(value, str) else ""
    if text == "earliest":
        return StartEarliest()
    if text == "latest":
        return StartLatest()
    if found := _FILE_OFFSET.fullmatch(text):
        if not 4 <= int(found[2]) < 1 << 63:
            raise ValueError("the offset should be 4 or more: a binlog's first event begins there")
        return StartAt(found[1], int(found[2]))
    gtids = [part.strip() for part in text.split(",")]
    if all(_GTID_MYSQL.fullmatch(part) for part in gtids) or all(_GTID_MARIADB.fullmatch(part) for part in gtids):
        return StartGtid(",".join(gtids))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            'should be "earliest", "latest", a file and offset such as "mysql-bin.000003:4", a GTID set, '
            'or an RFC 3339 time such as "2026-01-31T12:00:00Z"'
        ) from None
    return _start_time(time)


def parse_file_position(value: Any) -> str:
    """Reads a file and the offset of an event in it, from "mysql-bin.000003:1234". Raises ValueError."""
    found = _ANY_FILE_OFFSET.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None or not 4 <= int(found[2]) < 1 << 63:
        raise ValueError('should be a file and the offset of an event, such as "mysql-bin.000003:1234"')
    return f"{found[1]}:{int(found[2])}"


def _start_time(time: datetime) -> StartTime:
    if time.tzinfo is None:
        raise ValueError('the time should have a zone, as in "2026-01-31T12:00:00Z" or "...+08:00"')
    return StartTime(time)


def start_text(start: Start) -> str:
    """Returns [source] start as it is written."""
    if isinstance(start, StartEarliest):
        return "earliest"
    if isinstance(start, StartLatest):
        return "latest"
    if isinstance(start, StartAt):
        return f"{start.file}:{start.offset}"
    if isinstance(start, StartGtid):
        return start.gtid_set
    return start.time.isoformat()
