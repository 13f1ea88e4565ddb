"""Temporal values and DECIMAL are printed by tables: the same text, or the same error, as by formatting each number."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.mysql.values import values
from tests.examples import examples

FSP = st.integers(0, 6)
_WIDTHS = (0, 1, 1, 2, 2, 3, 3)
_GROUP_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def fraction(raw: bytes, fsp: int) -> str:
    return "." + f"{int.from_bytes(raw, 'big'):0{2 * len(raw)}d}"[:fsp] if fsp else ""


def plain_datetime(raw: bytes, fsp: int) -> str:
    v = int.from_bytes(raw[:5], "big") - 0x8000000000
    year, month = divmod(v >> 22, 13)
    day, hour, minute, second = v >> 17 & 31, v >> 12 & 31, v >> 6 & 63, v & 63
    if not 0 <= year <= 9999 or hour > 23:
        raise ValueError(f"a DATETIME has the bytes {raw.hex()}")
    return f"{year:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{second:02d}{fraction(raw[5:], fsp)}"


def plain_timestamp(raw: bytes, fsp: int, zone: ZoneInfo | None) -> str:
    if not any(raw):
        return "0000-00-00 00:00:00" + ("." + "0" * fsp if fsp else "")
    at = datetime.fromtimestamp(int.from_bytes(raw[:4], "big"), zone or UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}{fraction(raw[4:], fsp)}"


def plain_time(raw: bytes, fsp: int) -> str:
    v = int.from_bytes(raw, "big") - (0x800000 << 8 * (len(raw) - 3))
    size = abs(v).to_bytes(len(raw), "big")
    whole = int.from_bytes(size[:3], "big")
    return f"{'-' if v < 0 else ''}{whole >> 12:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}{fraction(size[3:], fsp)}"


def plain_decimal(raw: bytes, precision: int, scale: int) -> str:
    negative = not raw[0] & 0x80
    bits = bytes([raw[0] ^ 0x80, *raw[1:]])
    rest = bytes(byte ^ 0xFF for byte in bits) if negative else bits

    def take(digits: int) -> int:
        nonlocal rest
        group, rest = rest[: _GROUP_BYTES[digits]], rest[_GROUP_BYTES[digits] :]
        return int.from_bytes(group, "big")

    before, behind = divmod(precision - scale, 9), divmod(scale, 9)
    whole = take(before[1])
    for _ in range(before[0]):
        whole = whole * 1_000_000_000 + take(9)
    tail = "".join(f"{take(digits):0{digits}d}" for digits in [9] * behind[0] + [behind[1]] * bool(behind[1]))
    return f"{'-' if negative else ''}{whole}{'.' if scale else ''}{tail}"


def outcome(made: Callable[[], str]) -> str:
    try:
        return made()
    except ValueError as error:
        return f"ValueError: {error}"


def raw_of(data: st.DataObject, size: int) -> bytes:
    return data.draw(st.binary(min_size=size, max_size=size))


@settings(max_examples=examples(1000), deadline=None)
@given(FSP, st.data())
def test_any_bytes_of_a_datetime_are_the_text_that_they_were(fsp: int, data: st.DataObject) -> None:
    real = st.builds(
        lambda year, rest: (0x8000000000 + (year * 13 << 22) + rest).to_bytes(5, "big"),
        st.integers(0, 9999),
        st.integers(0, (13 << 22) - 1),
    )
    raw = data.draw(real | st.binary(min_size=5, max_size=5)) + raw_of(data, _WIDTHS[fsp])
    assert outcome(lambda: values.datetime2(fsp)(raw)) == outcome(lambda: plain_datetime(raw, fsp))


@settings(max_examples=examples(1000), deadline=None)
@given(FSP, st.sampled_from([None, "Asia/Shanghai", "Africa/Monrovia"]), st.data())
def test_any_bytes_of_a_timestamp_are_the_text_that_they_were(fsp: int, name: str | None, data: st.DataObject) -> None:
    zone = ZoneInfo(name) if name is not None else None
    seconds = data.draw(st.just(bytes(4)) | st.binary(min_size=4, max_size=4))
    raw = seconds + data.draw(st.just(bytes(_WIDTHS[fsp])) | st.binary(min_size=_WIDTHS[fsp], max_size=_WIDTHS[fsp]))
    assert values.timestamp2(fsp, zone)(raw) == plain_timestamp(raw, fsp, zone)


@settings(max_examples=examples(1000), deadline=None)
@given(FSP, st.data())
def test_any_bytes_of_a_time_are_the_text_that_they_were(fsp: int, data: st.DataObject) -> None:
    raw = raw_of(data, 3 + _WIDTHS[fsp])
    assert values.time2(fsp)(raw) == plain_time(raw, fsp)


@pytest.mark.parametrize("raw", ["000000", "800000", "ffffff", "7fffff", "7fffffff", "000000000000", "000001ffffff"])
def test_the_edges_of_a_time_are_the_text_that_they_were(raw: str) -> None:
    fsp = 2 * (len(raw) // 2 - 3)
    assert values.time2(fsp)(bytes.fromhex(raw)) == plain_time(bytes.fromhex(raw), fsp)


@settings(max_examples=examples(1500), deadline=None)
@given(st.integers(1, 65), st.data())
def test_any_bytes_of_a_decimal_are_the_text_that_they_were(precision: int, data: st.DataObject) -> None:
    scale = data.draw(st.integers(0, min(30, precision)))
    raw = raw_of(data, values.decimal_size(precision, scale))
    assert values.decimal_text(precision, scale)(raw) == plain_decimal(raw, precision, scale)
