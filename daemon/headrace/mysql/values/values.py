"""Column values from the binlog's bytes, as MySQL prints them (wire formats: MySQL internals, rows event)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, tzinfo
from functools import cache, lru_cache
from typing import Any

_PAIRS = tuple(f"{n:02d}" for n in range(100))
_TRIPLES = tuple(f"{n:03d}" for n in range(1000))
_CLOCK = tuple(f"{minute:02d}:{second:02d}" for minute in range(64) for second in range(64))
"""Minute and second by their 12 bits, including those that no clock shows."""
_SECONDS = tuple(f"{minute:02d}:{second:02d}" for minute in range(60) for second in range(60))
"""The same by the second of the hour."""
_HOURS = tuple(f"{hour:02d}:" for hour in range(2049))
"""By the part of a TIME before its minutes, up to its lowest value."""
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_from_bytes = int.from_bytes
_CACHE_LIMIT = 100_000
"""Maximum entries of a text cache before it is cleared: enough for 11 years of hours, and about 10 MB."""


@lru_cache(maxsize=65536)
def date_text(raw: bytes) -> str:
    """Prints a DATE: 3 bytes little endian, day 5 bits, month 4, year 15; zero dates are kept."""
    v = raw[0] | raw[1] << 8 | raw[2] << 16
    if v >> 9 > 9999 or (v >> 5) & 15 > 12:
        raise ValueError(f"a DATE has the bytes {raw.hex()}")
    return f"{v >> 9:04d}-{_PAIRS[(v >> 5) & 15]}-{_PAIRS[v & 31]}"


class _Digits(dict[int, str]):
    """By the number in 1 or 2 bytes: its digits after the decimal point. A text is made when first needed; there are at
    most 65,536, and the columns of a table have the same few again and again."""

    def __init__(self, pattern: str, end: int | None = None) -> None:
        """`pattern` prints a number; only the first `end` characters of its text are used."""
        super().__init__()
        self._pattern, self._end = pattern, end

    def __missing__(self, number: int) -> str:
        text = self[number] = (self._pattern % number)[: self._end]
        return text


@cache
def _fraction(fsp: int) -> Callable[[int], str]:
    """Returns a function that prints a fraction of a second with its point: ceil(fsp / 2) bytes, counting in 10**-2,
    10**-4 or 10**-6. A number that no clock shows has its first digits.

    It uses tables, because formatting a number with leading zeros costs more than the rest of a DATETIME."""
    if fsp == 0:
        return {0: ""}.__getitem__
    if fsp <= 4:
        return _Digits(f".%0{2 * ((fsp + 1) // 2)}d", fsp + 1).__getitem__
    thousandths = _TRIPLES if fsp == 6 else tuple(text[:2] for text in _TRIPLES)

    def microseconds(number: int) -> str:
        if number > 999_999:
            return f".{number}"[: fsp + 1]
        return f".{_TRIPLES[number // 1000]}{thousandths[number % 1000]}"

    return microseconds


def datetime2(fsp: int) -> Callable[[bytes], str]:
    """Returns the printer of DATETIME(fsp): 5 bytes big endian (sign, year*13+month 17 bits, day 5, hour 5, minute 6,
    second 6), fraction."""
    hours: dict[int, str] = {}
    fraction, bits = _fraction(fsp), 8 * ((fsp + 1) // 2)
    low, above = (1 << bits) - 1, bits + 12

    def text(raw: bytes) -> str:
        v = _from_bytes(raw, "big")
        try:
            hour = hours[v >> above]
        except KeyError:
            hour = _new_hour(hours, v >> above, raw)
        return f"{hour}{_CLOCK[v >> bits & 4095]}{fraction(v & low)}"

    return text


def _new_hour(hours: dict[int, str], key: int, raw: bytes) -> str:
    """Returns date and hour of a DATETIME by its upper 28 bits. Raises ValueError for values that no calendar has."""
    if len(hours) >= _CACHE_LIMIT:
        hours.clear()
    v = key - 0x8000000
    year, month = divmod(v >> 10, 13)
    if not 0 <= year <= 9999 or v & 31 > 23:
        raise ValueError(f"a DATETIME has the bytes {raw.hex()}")
    text = hours[key] = f"{year:04d}-{_PAIRS[month]}-{_PAIRS[v >> 5 & 31]} {_PAIRS[v & 31]}:"
    return text


def timestamp2(fsp: int, zone: tzinfo | None = None) -> Callable[[bytes], str]:
    """Returns the printer of TIMESTAMP(fsp): 4 bytes big endian seconds since 1970, fraction; printed in the given
    zone, else in UTC, never in the host's."""
    zero = "0000-00-00 00:00:00" + ("." + "0" * fsp if fsp else "")
    print_seconds, fraction, bits = seconds_in_zone(zone), _fraction(fsp), 8 * ((fsp + 1) // 2)
    low = (1 << bits) - 1

    def text(raw: bytes) -> str:
        v = _from_bytes(raw, "big")
        return f"{print_seconds(v >> bits)}{fraction(v & low)}" if v else zero

    return text


def seconds_in_zone(zone: tzinfo | None) -> Callable[[int], str]:
    """Returns a function that prints seconds since 1970 as `YYYY-MM-DD hh:mm:ss`, in UTC if no zone is given."""
    return _seconds_utc() if zone is None else _minutes_in(zone)


def _seconds_utc() -> Callable[[int], str]:
    hours: dict[int, str] = {}

    def text(v: int) -> str:
        hour, second = divmod(v, 3600)
        try:
            return hours[hour] + _SECONDS[second]
        except KeyError:
            if len(hours) >= _CACHE_LIMIT:
                hours.clear()
            days, h = divmod(hour, 24)
            hours[hour] = f"{date.fromordinal(_EPOCH_ORDINAL + days).isoformat()} {_PAIRS[h]}:"
            return hours[hour] + _SECONDS[second]

    return text


def _minutes_in(zone: tzinfo) -> Callable[[int], str]:
    """Returns a function that prints seconds since 1970 in a zone. Minutes are cached: zones have changed their offset
    by seconds, but since 1970 only at whole minutes of UTC."""
    minutes: dict[int, tuple[str, int]] = {}

    def text(v: int) -> str:
        minute, second = divmod(v, 60)
        known = minutes.get(minute)
        if known is None:
            if len(minutes) >= _CACHE_LIMIT:
                minutes.clear()
            local = datetime.fromtimestamp(minute * 60, zone)
            known = minutes[minute] = (f"{local:%Y-%m-%d %H:%M:}", local.second)
        if known[1]:  # Liberia's offset had seconds until 1972
            return f"{datetime.fromtimestamp(v, zone):%Y-%m-%d %H:%M:%S}"
        return f"{known[0]}{_PAIRS[second]}"

    return text


def time2(fsp: int) -> Callable[[bytes], str]:
    """Returns the printer of TIME(fsp): 3 bytes big endian around 0x800000 (hour 10 bits, minute 6, second 6) and the
    fraction; a negative value is the two's complement of all bytes together."""
    fraction, bits = _fraction(fsp), 8 * ((fsp + 1) // 2)
    middle, low, above = 0x800000 << bits, (1 << bits) - 1, bits + 12

    def text(raw: bytes) -> str:
        v = _from_bytes(raw, "big") - middle
        if v < 0:
            v = -v
            return f"-{_HOURS[v >> above]}{_CLOCK[v >> bits & 4095]}{fraction(v & low)}"
        return f"{_HOURS[v >> above]}{_CLOCK[v >> bits & 4095]}{fraction(v & low)}"

    return text


_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""Bytes of 0 to 9 decimal digits."""


def decimal_size(precision: int, scale: int) -> int:
    """Returns the bytes of a DECIMAL(precision, scale) in a row image."""
    whole = precision - scale
    return whole // 9 * 4 + _DIGIT_BYTES[whole % 9] + scale // 9 * 4 + _DIGIT_BYTES[scale % 9]


@cache
def _digits(scale: int) -> Callable[[int], str]:
    """Returns a function that prints the decimal point of a DECIMAL and the digits after it; one or two bytes are up to
    4 digits, and have a table."""
    if scale == 0:
        return {0: ""}.__getitem__
    pattern = f".%0{scale}d"
    return _Digits(pattern).__getitem__ if scale <= 4 else pattern.__mod__


def decimal_text(precision: int, scale: int) -> Callable[[bytes], str]:
    """Returns the printer of DECIMAL: groups of 9 digits in 4 bytes big endian, short group first before the point and
    last after it; the first bit inverted, all bytes inverted for a negative number. Keeps the scale, also of zero."""
    whole = precision - scale
    lead, leads = _DIGIT_BYTES[whole % 9], whole // 9
    tails, tail_digits = scale // 9, scale % 9
    tail = _DIGIT_BYTES[tail_digits]
    size = decimal_size(precision, scale)
    sign_bit = 1 << (8 * size - 1)
    mask = (1 << (8 * size)) - 1
    inverted = mask ^ sign_bit
    whole_bytes = lead + 4 * leads

    def general(raw: bytes) -> str:
        v = int.from_bytes(raw, "big") ^ sign_bit
        sign = ""
        if not raw[0] & 0x80:
            v ^= mask
            sign = "-"
        b = v.to_bytes(size, "big")
        n = int.from_bytes(b[:lead], "big")
        at = lead
        for _ in range(leads):
            n = n * 1_000_000_000 + int.from_bytes(b[at : at + 4], "big")
            at += 4
        if not scale:
            return f"{sign}{n}"
        digits = ""
        for _ in range(tails):
            digits += f"{int.from_bytes(b[at : at + 4], 'big'):09d}"
            at += 4
        if tail:
            digits += f"{int.from_bytes(b[at:], 'big'):0{tail_digits}d}"
        return f"{sign}{n}.{digits}"

    if leads > 1 or tails + (tail > 0) > 1:
        return general

    # At most two groups before the point and one after it, such as (10,2) or (20,4): integers are enough.
    shift = 8 * (size - whole_bytes)
    low, digits = (1 << shift) - 1, _digits(scale)

    def short(raw: bytes) -> str:
        v = _from_bytes(raw, "big")
        if v & sign_bit:
            v ^= sign_bit
            return f"{v >> shift}{digits(v & low)}"
        v ^= inverted
        return f"-{v >> shift}{digits(v & low)}"

    if not (lead and leads):
        return short
    upper, group = shift + 32, (1 << 32) - 1

    def longer(raw: bytes) -> str:
        v = _from_bytes(raw, "big")
        if v & sign_bit:
            v ^= sign_bit
            return f"{(v >> upper) * 1_000_000_000 + (v >> shift & group)}{digits(v & low)}"
        v ^= inverted
        return f"-{(v >> upper) * 1_000_000_000 + (v >> shift & group)}{digits(v & low)}"

    return longer


def enum_label(labels: tuple[str, ...]) -> Callable[[int], str]:
    """Returns the printer of ENUM: 1 or 2 bytes; 0 is the empty string, for an invalid value."""
    table = ("", *labels)
    return table.__getitem__


def set_labels(labels: tuple[str, ...]) -> Callable[[bytes], str]:
    """Returns the printer of SET: a bit for each member, joined by commas as MySQL prints it."""
    known = (1 << len(labels)) - 1

    @lru_cache(maxsize=4096)
    def text(raw: bytes) -> str:
        bits = int.from_bytes(raw, "little")
        if bits & ~known:
            raise ValueError(f"a SET value has bits {bits:#x}, its column has {len(labels)} members")
        return ",".join(label for i, label in enumerate(labels) if bits >> i & 1)

    return text


def big_int(raw: bytes) -> int:
    """Reads BIT(n): big endian."""
    return int.from_bytes(raw, "big")


def little_int(raw: bytes) -> int:
    """Reads MEDIUMINT UNSIGNED, or the bits of a SET: little endian."""
    return int.from_bytes(raw, "little")


def int24(raw: bytes) -> int:
    """Reads MEDIUMINT."""
    return int.from_bytes(raw, "little", signed=True)


def year_text(raw: int) -> str:
    """Prints YEAR: years since 1900, 0 is the year 0000."""
    return str(1900 + raw) if raw else "0000"


def packed_datetime(packed: int) -> str:
    """Prints a DATE, DATETIME or TIMESTAMP inside JSON: 24 bits of microseconds below the 40 bits of DATETIME2."""
    micros, v = packed & 0xFFFFFF, packed >> 24
    year, month = divmod(v >> 22, 13)
    text = f"{year:04d}-{month:02d}-{(v >> 17) & 31:02d}"
    return f"{text} {(v >> 12) & 31:02d}:{(v >> 6) & 63:02d}:{v & 63:02d}.{micros:06d}"


def packed_time(packed: int) -> str:
    """Prints a TIME inside JSON: 24 bits of microseconds, below hour, minute and second; negative as a whole."""
    sign = "-" if packed < 0 else ""
    packed = abs(packed)
    micros, v = packed & 0xFFFFFF, packed >> 24
    return f"{sign}{(v >> 12) & 1023:02d}:{(v >> 6) & 63:02d}:{v & 63:02d}.{micros:06d}"


Post = Callable[[Any], Any]
"""Turns a raw field into a value."""
