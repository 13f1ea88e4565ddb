"""TIMESTAMP, DATETIME and TIME as servers stored them before fractions: MySQL up to 5.5, MariaDB with
mysql56_temporal_format=OFF (MariaDB's field.cc)."""

from __future__ import annotations

from collections.abc import Callable
from zoneinfo import ZoneInfo

from headrace.mysql.values.values import seconds_in_zone

_TIME_SIZE = (3, 4, 4, 5, 5, 5, 6)
_DATETIME_SIZE = (5, 6, 6, 7, 7, 7, 8)
_FRACTION_SIZE = (0, 1, 1, 2, 2, 3, 3)
"""Bytes by digits of the fraction, which the event does not have: they come from the declared type."""
_TIME_ZERO = (838 * 3600 + 59 * 60 + 59 + 1) * 1_000_000
"""Microseconds that are added to a TIME so that it is never negative."""

Codec = tuple[str, int, Callable[..., str]]
"""struct code, bytes, and the function that makes the text."""


def timestamp(fsp: int, zone: ZoneInfo | None) -> Codec:
    """Returns the codec of TIMESTAMP: seconds since 1970, little endian; with a fraction big endian, and the fraction
    after it."""
    print_seconds = seconds_in_zone(zone)
    if not fsp:
        return "I", 4, lambda v: print_seconds(v) if v else "0000-00-00 00:00:00"
    zero = "0000-00-00 00:00:00." + "0" * fsp

    def text(raw: bytes) -> str:
        seconds, fraction = int.from_bytes(raw[:4], "big"), int.from_bytes(raw[4:], "big")
        if fraction >= 10**fsp:
            raise ValueError(f"a TIMESTAMP({fsp}) has the bytes {raw.hex()}")
        return f"{print_seconds(seconds)}.{fraction:0{fsp}d}" if any(raw) else zero

    size = 4 + _FRACTION_SIZE[fsp]
    return f"{size}s", size, text


def datetime(fsp: int) -> Codec:
    """Returns the codec of DATETIME: the number YYYYMMDDhhmmss, little endian; with a fraction the units since the year
    0, as if a year had 13 months and a month 32 days, big endian."""
    if not fsp:
        return "Q", 8, _datetime_number
    size = _DATETIME_SIZE[fsp]

    def text(raw: bytes) -> str:
        v, fraction = divmod(int.from_bytes(raw, "big"), 10**fsp)
        v, second = divmod(v, 60)
        v, minute = divmod(v, 60)
        v, hour = divmod(v, 24)
        v, day = divmod(v, 32)
        year, month = divmod(v, 13)
        if year > 9999:
            raise ValueError(f"a DATETIME({fsp}) has the bytes {raw.hex()}")
        return f"{year:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{second:02d}.{fraction:0{fsp}d}"

    return f"{size}s", size, text


def _datetime_number(v: int) -> str:
    t = f"{v:014d}"
    if len(t) > 14 or t[4:6] > "12" or t[6:8] > "31" or t[8:10] > "23" or t[10:12] > "59" or t[12:] > "59":
        raise ValueError(f"a DATETIME is the number {v}")
    return f"{t[:4]}-{t[4:6]}-{t[6:8]} {t[8:10]}:{t[10:12]}:{t[12:]}"


def time(fsp: int) -> Codec:
    """Returns the codec of TIME: the number hhmmss, little endian and signed; with a fraction the units of it since
    -839 hours, big endian."""
    size = _TIME_SIZE[fsp]
    if not fsp:
        return "3s", 3, _time_number
    unit = 10**fsp

    def text(raw: bytes) -> str:
        v = int.from_bytes(raw, "big") - _TIME_ZERO // 10 ** (6 - fsp)
        sign = "-" if v < 0 else ""
        seconds, fraction = divmod(abs(v), unit)
        if seconds >= 839 * 3600:
            raise ValueError(f"a TIME({fsp}) has the bytes {raw.hex()}")
        return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:0{fsp}d}"

    return f"{size}s", size, text


def _time_number(raw: bytes) -> str:
    v = int.from_bytes(raw, "little", signed=True)
    hour, rest = divmod(abs(v), 10000)
    minute, second = divmod(rest, 100)
    if hour > 838 or minute > 59 or second > 59:
        raise ValueError(f"a TIME is the number {v}")
    return f"{'-' if v < 0 else ''}{hour:02d}:{minute:02d}:{second:02d}"
