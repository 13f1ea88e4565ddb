"""The small languages inside the configuration: durations, sizes, places to start, addresses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace.rules.patterns import compile_filter as compile_filter
from headrace.rules.patterns import split_patterns as split_patterns

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|m|h|d)")
_DURATION_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"([0-9]+)\s*(B|KiB|MiB|GiB|kB|MB|GB)?")
_SIZE_UNITS = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_INTERVAL = r"[1-9][0-9]*(?:-[1-9][0-9]*)?"
_TAG = r"[A-Za-z_][A-Za-z0-9_]{0,31}"
_GTID_MYSQL = re.compile(rf"{_UUID}(?::(?:{_TAG}:)?{_INTERVAL})+")
_GTID_MARIADB = re.compile(r"[0-9]+-[0-9]+-[0-9]+")
_FILE_OFFSET = re.compile(r"([^\s:/]+\.[0-9]{6,}):([0-9]+)")


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


def parse_duration(value: Any) -> float:
    """Seconds from a number of seconds or a text such as "500ms". Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        if found := _DURATION.fullmatch(value.strip()):
            return float(found[1]) * _DURATION_UNITS[found[2]]
        if re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", value.strip()):
            return float(value)
    raise ValueError('should be a duration such as "10s", "500ms" or "2m", or a number of seconds')


def parse_size(value: Any) -> int:
    """Bytes from a number or a text such as "64MiB". Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())):
        return int(found[1]) * _SIZE_UNITS[found[2]]
    raise ValueError('should be a size such as "64MiB" or "900KiB", or a number of bytes')


def parse_int(value: Any) -> int:
    """A whole number, also one that came as text out of the environment; true and false are none. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value.strip()):
        return int(value)
    raise ValueError("should be a whole number")


def parse_start(value: Any) -> Start:
    """Where to begin, from its text (or a TOML time). Raises ValueError."""
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
    """A file and the offset of an event in it, from "mysql-bin.000003:1234". Raises ValueError."""
    found = _FILE_OFFSET.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None or not 4 <= int(found[2]) < 1 << 63:
        raise ValueError('should be a file and the offset of an event, such as "mysql-bin.000003:1234"')
    return f"{found[1]}:{int(found[2])}"


def _start_time(time: datetime) -> StartTime:
    if time.tzinfo is None:
        raise ValueError('the time should have a zone, as in "2026-01-31T12:00:00Z" or "...+08:00"')
    return StartTime(time)


def parse_host_port(text: str) -> tuple[str, int]:
    """Host and port from "host:port" or "[address]:port". Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError('should have an IPv6 address in brackets, as in "[::1]:9180"')
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError('should be a host and a port, as in "127.0.0.1:9180"')
    return host, int(port)


def split_servers(value: Any) -> Any:
    """Addresses as a tuple, out of a list or of text with commas. Raises ValueError."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError('should be "host:port", several of them with commas between, or a list of them')
    servers = tuple(part.strip() for part in parts if part.strip())
    if not servers:
        raise ValueError("should name at least one server")
    for server in servers:
        parse_host_port(server)
    return servers
