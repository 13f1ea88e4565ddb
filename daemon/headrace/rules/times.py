"""Dates and times in rules, converted to the form in which MySQL prints them."""

from __future__ import annotations

import re
from calendar import isleap
from functools import lru_cache

_DATETIME = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})(?:[ T]([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?)?"
)
_TIME = re.compile(r"(-?)([0-9]{1,3}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?")
_DAYS = (31, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""Maximum days of each month, including month 0 of MySQL's zero dates."""
_MAX_TIME = (838 * 3600 + 59 * 60 + 59) * 1_000_000


def datetime_parts(text: str) -> tuple[str, str, str]:
    """Returns `YYYY-MM-DD`, `HH:MM:SS` and the fraction's digits without trailing zeros, from a date or a date and
    time.

    Without a time it is midnight. Dates with zeros are MySQL's. Raises ValueError."""
    found = _DATETIME.fullmatch(text)
    if found is None:
        raise ValueError('should be a date such as "2026-01-31", or with a time, "2026-01-31 12:30:00", without a zone')
    year, month, day = int(found[1]), int(found[2]), int(found[3])
    if month > 12 or day > _DAYS[month] or (month == 2 and day == 29 and not isleap(year)):
        raise ValueError("is no date of the calendar")
    hour, minute, second = (int(found[group] or 0) for group in (4, 5, 6))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("is no time of a day")
    return f"{year:04d}-{month:02d}-{day:02d}", f"{hour:02d}:{minute:02d}:{second:02d}", (found[7] or "").rstrip("0")


def date_key(text: str) -> str:
    """Returns a literal for comparison with a DATE's text: the date alone at midnight, otherwise with the time after
    it, which sorts it after that date and before the next."""
    date, time, fraction = datetime_parts(text)
    if time == "00:00:00" and not fraction:
        return date
    return datetime_key(text)


def datetime_key(text: str) -> str:
    """Returns a literal for comparison with what datetime_value() makes of a DATETIME's or TIMESTAMP's text."""
    date, time, fraction = datetime_parts(text)
    return f"{date} {time}" + (f".{fraction}" if fraction else "")


def datetime_value(text: str) -> str:
    """Returns a DATETIME's text without trailing zeros of the fraction, so that texts are in the order of times."""
    return text.rstrip("0").rstrip(".") if "." in text else text


@lru_cache(maxsize=4096)
def time_micros(text: str) -> int:
    """Returns a TIME in microseconds; it may be negative or above 24 hours. Raises ValueError."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError('should be a time such as "12:30:00" or "-01:00:00.5"')
    minutes, seconds = int(found[3]), int(found[4] or 0)
    micros = ((int(found[2]) * 60 + minutes) * 60 + seconds) * 1_000_000 + int((found[5] or "").ljust(6, "0"))
    if minutes > 59 or seconds > 59 or micros > _MAX_TIME:
        raise ValueError("is no TIME: they go from -838:59:59 to 838:59:59")
    return -micros if found[1] else micros


def print_temporal(text: str, kind: str, digits: int) -> str:
    """Returns a literal as MySQL prints it in a DATE, DATETIME, TIMESTAMP or TIME column whose fraction has `digits`
    digits. Raises ValueError, also if something would be lost."""
    if kind == "time":
        micros = time_micros(text)
        seconds, rest = divmod(abs(micros), 1_000_000)
        sign = "-" if micros < 0 else ""
        clock = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        return clock + _digits(f"{rest:06d}".rstrip("0"), digits)
    date, clock, fraction = datetime_parts(text)
    if kind != "date":
        return f"{date} {clock}{_digits(fraction, digits)}"
    if clock != "00:00:00" or fraction:
        raise ValueError("should be a date without a time")
    return date


def _digits(fraction: str, digits: int) -> str:
    if len(fraction) > digits:
        raise ValueError(f"has more digits of a second than the column's {digits}")
    return "." + fraction.ljust(digits, "0") if digits else ""
