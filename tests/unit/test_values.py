"""Values out of the binlog's bytes, at their edges, against what MySQL's documentation defines."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.mysql.values import values
from headrace_common.numbers import float32
from tests.examples import examples


def pack_decimal(text: str, precision: int, scale: int) -> bytes:
    """MySQL's DECIMAL table schema, written independently of the decoder."""
    negative = text.startswith("-")
    whole, _, fraction = text.lstrip("-").partition(".")
    whole, fraction = (
        whole.zfill(precision - scale)[-(precision - scale) :] if precision > scale else "",
        fraction.ljust(scale, "0"),
    )
    sizes = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
    lead = len(whole) % 9
    groups = [whole[:lead]] if lead else []
    groups += [whole[i : i + 9] for i in range(lead, len(whole), 9)]
    groups += [fraction[i : i + 9] for i in range(0, scale, 9)]
    out = bytearray(b"".join(int(g).to_bytes(sizes[len(g)], "big") for g in groups if g))
    if negative:
        out = bytearray(b ^ 0xFF for b in out)
    out[0] ^= 0x80
    return bytes(out)


@settings(max_examples=examples(500), deadline=None)
@given(st.data())
def test_decimals_of_every_size_come_back_exactly(data: st.DataObject) -> None:
    precision = data.draw(st.integers(1, 65))
    scale = data.draw(st.integers(0, min(30, precision)))
    digits = data.draw(st.integers(0, 10**precision - 1))
    plain = str(digits).zfill(scale + 1)
    number = f"{plain[: len(plain) - scale]}.{plain[len(plain) - scale :]}" if scale else plain
    text = f"-{number}" if digits and data.draw(st.booleans()) else number
    raw = pack_decimal(text, precision, scale)
    assert len(raw) == values.decimal_size(precision, scale)
    assert values.decimal_text(precision, scale)(raw) == text


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float_keeps_its_32_bits_through_its_shortest_text(x: float) -> None:
    assert struct.pack("<f", float32(x)) == struct.pack("<f", x)


@given(st.integers(-838, 838), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999_999))
def test_times_keep_sign_and_fraction(hour: int, minute: int, second: int, micros: int) -> None:
    negative = hour < 0
    packed = ((abs(hour) << 12 | minute << 6 | second) << 24) + micros
    raw = ((0x800000 << 24) + (-packed if negative else packed)).to_bytes(6, "big")
    expected = f"{'-' if negative else ''}{abs(hour):02d}:{minute:02d}:{second:02d}.{micros:06d}"
    assert values.time2(6)(raw) == expected


def test_zero_dates_stay_zero() -> None:
    assert values.date_text(b"\0\0\0") == "0000-00-00"
    assert values.datetime2(0)(bytes.fromhex("8000000000")) == "0000-00-00 00:00:00"
    assert values.timestamp2(3)(bytes(6)) == "0000-00-00 00:00:00.000"
    assert values.year_text(0) == "0000"


@pytest.mark.parametrize(
    ("fsp", "tail", "text"), [(1, "5a", ".9"), (2, "63", ".99"), (3, "26ac", ".990"), (6, "0f423f", ".999999")]
)
def test_fractions_of_a_second_have_the_declared_digits(fsp: int, tail: str, text: str) -> None:
    raw = bytes.fromhex("7fffffff") + bytes.fromhex(tail)
    assert values.timestamp2(fsp)(raw) == "2038-01-19 03:14:07" + text


def test_a_set_with_a_bit_too_many_is_an_error() -> None:
    decode = values.set_labels(("a", "b"))
    assert decode(b"\x03") == "a,b"
    assert decode(b"\x00") == ""
    with pytest.raises(ValueError, match="2 members"):
        decode(b"\x04")


def test_dates_that_can_not_be_are_errors() -> None:
    with pytest.raises(ValueError, match="DATE has"):
        values.date_text(b"\xa0\x01\x00")
    for raw in ("7fffffffff", "ffffffffff", "80000180" + "00"):
        with pytest.raises(ValueError, match="DATETIME has"):
            values.datetime2(0)(bytes.fromhex(raw))
