"""The decoder that is generated for the rows of a SELECT: values, NULLs, lengths of every form, and broken rows."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.large_values import settled
from headrace.model import ABSENT, Column
from headrace.mysql.values.charsets import UnknownType
from headrace.mysql.values.column_types import ValueOptions
from headrace.mysql.values.textcode import BROKEN, make_text_decoder
from tests.unit.test_query_stream import packets, row

HOSTILE = "c0 = 1; import os #\n`'\"\\{}F%s"


def column(kind: str, name: str = HOSTILE, **more: Any) -> Column:
    return Column(name, kind, 0, **more)


def decoded(columns: list[Column], *rows: bytes, options: ValueOptions | None = None) -> list[tuple[Any, ...]]:
    decode = make_text_decoder(columns, range(len(columns)), options or ValueOptions())
    data = packets(*rows)
    found, end, last = decode(data, 0, len(rows), 0)
    assert end == len(data)
    assert last == len(data) - len(packets(rows[-1]))
    return settled(found)


ENUM = column("enum('x','it''s')", labels=("x", "it's"), charset="utf8mb4")
SET = column("set('a','b','c')", labels=("a", "b", "c"), charset="utf8mb4")


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (column("bigint"), b"-9223372036854775808", -(1 << 63)),
        (column("bigint unsigned", unsigned=True), b"18446744073709551615", (1 << 64) - 1),
        (column("tinyint unsigned zerofill", unsigned=True), b"007", 7),
        (column("bit(9)"), b"\x01\xff", 511),
        (column("decimal(10,2)"), b"-0.50", "-0.50"),
        (column("decimal(10,2) unsigned zerofill", unsigned=True), b"00000010.50", "10.50"),
        (column("decimal(5,0) unsigned zerofill", unsigned=True), b"00000", "0"),
        (column("decimal(5,2) unsigned zerofill", unsigned=True), b"000.25", "0.25"),
        (column("float"), b"1.100000023841858", 1.1),
        (column("double"), b"-0", -0.0),
        (column("date"), b"2026-00-00", "2026-00-00"),
        (column("year"), b"0000", "0000"),
        (column("time(2)"), b"-838:59:59.00", "-838:59:59.00"),
        (column("timestamp(3)"), b"2026-03-29 01:00:00.125", "2026-03-29 01:00:00.125"),
        (ENUM, b"2", "it's"),
        (ENUM, b"0", ""),
        (SET, b"5", "a,c"),
        (SET, b"0", ""),
        (column("varchar(9)", charset="utf8mb4"), "中😀".encode(), "中😀"),
        (column("text", charset="gbk"), "中文".encode("gbk"), "中文"),
        (column("char(3)", charset="latin1"), b"\x80", "€"),
        (column("blob", charset="binary"), b"\0\xff", b"\0\xff"),
        (column("json"), b'{"a": 1.0}', '{"a": 1.0}'),
        (column("vector(2)"), b"\0\0\x80?\0\0\0@", "[1,2]"),
        (column("point"), b"\0\0\0\0\1", b"\0\0\0\0\1"),
        (column("uuid"), b"11111111-2222-3333-4444-555555555555", "11111111-2222-3333-4444-555555555555"),
    ],
)
def test_a_value_is_what_the_binlogs_decoder_gives(kind: Column, raw: bytes, value: Any) -> None:
    (got,) = decoded([kind, column("int")], row(raw, b"1"))
    assert repr(got[0]) == repr(value)


def test_enums_and_sets_are_numbers_when_asked_for() -> None:
    assert decoded([ENUM, SET], row(b"2", b"5"), options=ValueOptions(enum_index=True)) == [(2, 5)]


def test_timestamps_are_printed_in_the_zone_that_is_asked_for_and_zero_stays_zero() -> None:
    berlin = ValueOptions(time_zone="Europe/Berlin")
    rows = [b"2026-03-29 00:59:59.5", b"2026-03-29 01:00:00.5", b"0000-00-00 00:00:00.0"]
    got = decoded([column("timestamp(1)")], *map(row, rows), options=berlin)
    assert [value for (value,) in got] == ["2026-03-29 01:59:59.5", "2026-03-29 03:00:00.5", "0000-00-00 00:00:00.0"]


@pytest.mark.parametrize("size", [0, 1, 250, 251, 252, 65535, 65536, 70000])
def test_lengths_of_every_form_and_nulls_between_them(size: int) -> None:
    text = column("longtext", charset="utf8mb4")
    rows = [row(b"x" * size, None, b"y" * size), row(None, b"x" * size, None)]
    assert decoded([text] * 3, *rows) == [("x" * size, None, "y" * size), (None, "x" * size, None)]


def test_columns_that_were_not_selected_are_absent() -> None:
    decode = make_text_decoder([column("int")] * 3, [1], ValueOptions())
    assert decode(packets(row(b"7"), row(None)), 0, 2, 0)[0] == [(ABSENT, 7, ABSENT), (ABSENT, None, ABSENT)]


def test_rows_are_taken_a_few_at_a_time() -> None:
    data = packets(*(row(str(i).encode()) for i in range(10)))
    decode = make_text_decoder([column("int")], [0], ValueOptions())
    rows, at, last = decode(data, 0, 4, 0)
    assert (rows, data[last + 4 : at]) == ([(0,), (1,), (2,), (3,)], row(b"3"))
    assert decode(data, at, 6, 0)[0] == [(i,) for i in range(4, 10)]


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (column("int"), row(b"12", b"3")),
        (column("int"), b"\x05" + b"1"),
        (column("int"), row(b"x")),
        (column("int"), b"\xff"),
        (column("text", charset="utf8mb4"), b"\xfe\1"),
        (column("text", charset="utf8mb4"), row(b"\xff")),
        (ENUM, row(b"3")),
        (SET, row(b"8")),
        (column("vector(2)"), row(b"\0")),
        (column("double"), row(b"nothing")),
    ],
)
def test_a_row_that_does_not_fit_is_an_error(kind: Column, content: bytes) -> None:
    with pytest.raises(BROKEN):
        decoded([kind], content)


def test_an_unknown_type_is_reported() -> None:
    with pytest.raises(UnknownType, match="thing"):
        make_text_decoder([column("thing")], [0], ValueOptions())
