"""Fields, declared types and character sets of columns, where no server is needed to know what is right."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model import Column
from headrace.mysql.values import mariadb as mariadb_values
from headrace.mysql.values import old_temporal
from headrace.mysql.values.charsets import UnknownType, charset_of, codec_of
from headrace.mysql.values.column_types import (
    ValueOptions,
    column_from_map,
    field_of,
    java_type,
    real_type,
)
from headrace_common.numbers import float_text, vector_text


@pytest.mark.parametrize(
    ("kind", "meta", "facts", "declared", "sql_type", "length", "scale"),
    [
        (1, 0, {"unsigned": True}, "tinyint unsigned", 5, 0, 0),
        (8, 0, {"unsigned": True}, "bigint unsigned", 3, 0, 0),
        (9, 0, {}, "mediumint", 4, 0, 0),
        (13, 0, {"unsigned": True}, "year", 12, 0, 0),
        (246, 10 | 2 << 8, {}, "decimal(10,2)", 3, 10, 2),
        (16, 3 | 1 << 8, {}, "bit(11)", -7, 11, 0),
        (18, 3, {}, "datetime(3)", 93, 3, 0),
        (15, 1020, {"charset": "utf8mb4"}, "varchar(255)", 12, 255, 0),
        (254, 16, {"charset": "binary"}, "binary(16)", 2004, 16, 0),
        (252, 2, {"charset": "gbk"}, "text", 2005, 0, 0),
        (252, 4, {"charset": "binary"}, "longblob", 2004, 0, 0),
        (247, 1, {"charset": "utf8mb4", "labels": ("a", "it's")}, "enum('a','it''s')", 12, 0, 0),
        (255, 4, {}, "geometry", 2004, 0, 0),
    ],
)
def test_a_column_as_the_event_shows_it(
    kind: int, meta: int, facts: dict[str, object], declared: str, sql_type: int, length: int, scale: int
) -> None:
    column = column_from_map("c", kind, meta, **facts)  # type: ignore[arg-type]
    assert (column.mysql_type, column.sql_type) == (declared, sql_type)
    assert (column.length, column.scale) == (length, scale)


def test_java_types_are_those_that_canal_writes() -> None:
    assert [java_type(kind) for kind in ("tinyint", "smallint", "int", "bigint")] == [-6, 5, 4, -5]
    assert [java_type(kind, unsigned=True) for kind in ("tinyint", "smallint", "int", "bigint")] == [5, 4, -5, 3]
    assert [java_type(kind) for kind in ("enum", "set", "text", "blob", "varbinary", "float")] == [
        12,
        12,
        2005,
        2004,
        2004,
        7,
    ]
    assert java_type("something new") == 1111


def test_long_chars_carry_two_bits_of_their_length_in_the_type() -> None:
    assert real_type(254, 0xCE | 0xFC << 8) == (254, 1020)
    assert real_type(254, 0xFE | 0x10 << 8) == (254, 16)
    assert real_type(254, 0xF7 | 0x01 << 8) == (247, 1)


@pytest.mark.parametrize("collation", [0, 29999, 1023])
def test_a_collation_that_is_not_known_is_an_error(collation: int) -> None:
    with pytest.raises(UnknownType, match=str(collation)):
        charset_of(collation)


def test_a_type_that_is_not_known_is_an_error() -> None:
    with pytest.raises(UnknownType, match="999"):
        column_from_map("c", 999, 0)
    with pytest.raises(UnknownType, match="klingon"):
        field_of(15, 20, Column("c", "varchar(20)", 12, charset="klingon"))
    with pytest.raises(UnknownType, match="old datetime"):
        field_of(12, 0, Column("c", "int", 4))


@pytest.mark.parametrize(
    ("charset", "raw", "text"),
    [
        ("latin1", b"caf\xe9 \x80\x81", "café €\x81"),
        ("gbk", "家庭保洁".encode("gbk"), "家庭保洁"),
        ("gb18030", b"\xa8\xbc\x81\x35\xf4\x37\x94\x39\xda\x33", "\u1e3f\ue7c7💩"),
        ("big5", b"\xf9\xd6a\xa2\xcc\xae\x61", "碁a\ufffd家"),
        ("sjis", b"\x81\x5f\\\x95\x5c~", "\\\\表~"),
        ("cp932", b"\x81\x60\x87\x40", "～①"),
        ("ujis", b"\xa1\xc0\xa1\xc1\x8e\xb1\xf5\xa1\x8f\xf5\xa1", "\\〜ｱ\ue000\ue3ac"),
        ("eucjpms", b"\xa1\xc1\xad\xa1\x8f\xf3\xf3\x8f\xa2\xb7a", "～①ⅰ～a"),
        ("euckr", b"\xb0\xa1\x81\x41", "가갂"),
        ("ucs2", b"\x4e\x2d\x00a", "中a"),
        ("utf16le", "😀".encode("utf-16-le"), "😀"),
        ("utf32", "😀".encode("utf-32-be"), "😀"),
        ("swe7", b"@[\\]", "ÉÄÖÅ"),
        ("koi8u", b"\x95", "•"),
        ("utf8", b"\xe4\xb8\xad", "中"),
    ],
)
def test_text_of_a_character_set(charset: str, raw: bytes, text: str) -> None:
    assert codec_of(charset).decode(raw) == text


@pytest.mark.parametrize(
    ("charset", "raw"),
    [
        *(
            ("utf8mb4", b"\xff"),
            ("utf8mb4", b"\xed\xa0\x80"),
            ("ascii", b"\x80"),
            ("gbk", b"\x80"),
            ("cp932", b"a\xa0"),
        ),
        *(
            ("ucs2", b"\xd8\x3d\xde\x00"),
            ("ucs2", b"a"),
            ("ujis", b"\xa1\xc0\xa1"),
            ("eucjpms", b"\x8f\xf3\xa1"),
            ("hebrew", b"\xa1"),
        ),
        *(("geostd8", b"\x81"), ("big5", b"\xf9\xd6\xff"), ("sjis", b"\x81\x5f\x81")),
    ],
)
def test_bytes_that_are_no_text_are_an_error(charset: str, raw: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        codec_of(charset).decode(raw)


def test_enums_and_sets_as_numbers_need_no_labels() -> None:
    column = Column("c", "set('a')", 12, charset="utf8mb4", labels=("a",))
    field = field_of(248, 1, column, ValueOptions(enum_index=True))
    assert field.post is not None
    assert field.post(b"\x01") == 1
    assert field_of(247, 2, column, ValueOptions(enum_index=True)).post is None


def test_a_timestamp_is_printed_in_its_zone_also_where_the_offset_has_seconds() -> None:
    field = field_of(17, 2, Column("c", "timestamp(2)", 93), ValueOptions(time_zone="Africa/Monrovia"))
    assert field.post is not None
    assert field.post(struct.pack(">IB", 59, 7)) == "1969-12-31 23:16:29.07"
    assert field.post(bytes(5)) == "0000-00-00 00:00:00.00"


def test_vectors_are_lists_of_the_shortest_numbers() -> None:
    assert vector_text(struct.pack("<5f", 1, 2.5, 0.1, -0.0, 3.4028234663852886e38)) == "[1,2.5,0.1,-0.0,3.4028235e38]"
    with pytest.raises(ValueError, match="5 bytes"):
        vector_text(bytes(5))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_keeps_its_bits_through_its_text(x: float) -> None:
    assert struct.pack("<d", float(float_text(x))) == struct.pack("<d", x)


@pytest.mark.parametrize("x", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_an_error(x: float) -> None:
    with pytest.raises(ValueError, match="no number"):
        float_text(x)


@pytest.mark.parametrize("wrap", [zlib.MAX_WBITS, -zlib.MAX_WBITS])
def test_compressed_columns(wrap: int) -> None:
    data = b"x" * 300
    squeeze = zlib.compressobj(wbits=wrap)
    packed = squeeze.compress(data) + squeeze.flush()
    head = bytes((0x82 | (8 if wrap < 0 else 0),)) + (300).to_bytes(2, "big")
    assert mariadb_values.decompressed(head + packed) == data
    assert mariadb_values.decompressed(b"\0plain") == b"plain"
    assert mariadb_values.decompressed(b"") == b""


@pytest.mark.parametrize(
    "raw",
    ["82", "8200", "90000161", "86000000000001", "820001789c", "82000300", "81ff" + zlib.compress(b"x" * 9).hex()],
)
def test_a_damaged_compressed_column_is_an_error(raw: str) -> None:
    with pytest.raises(ValueError, match="compressed column"):
        mariadb_values.decompressed(bytes.fromhex(raw))


def test_a_compressed_column_that_lies_about_its_length_is_not_unpacked_further() -> None:
    bomb = b"\x81\x05" + zlib.compress(bytes(50_000_000))
    with pytest.raises(ValueError, match="instead of 5"):
        mariadb_values.decompressed(bomb)


def test_old_times_that_can_not_be_are_errors() -> None:
    _, _, datetime = old_temporal.datetime(0)
    assert datetime(20261121235959) == "2026-11-21 23:59:59"
    assert datetime(0) == "0000-00-00 00:00:00"
    for number in (20261321000000, 20261132000000, 20261121240000, 20261121006000, 99999999999999999):
        with pytest.raises(ValueError, match="DATETIME"):
            datetime(number)
    _, _, time = old_temporal.time(0)
    assert time((-8385959).to_bytes(3, "little", signed=True)) == "-838:59:59"
    with pytest.raises(ValueError, match="TIME"):
        time((126060).to_bytes(3, "little"))
