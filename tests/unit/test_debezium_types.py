"""Columns as Debezium's documentation maps them: schema and value of each type, in each mode."""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.debezium.settings import DebeziumSettings
from headrace.formats.debezium.types import days, field_of
from headrace.model import Column


def column(mysql_type: str, **facts: Any) -> Column:
    return Column("c", mysql_type, 0, **facts)


def mapped(col: Column, value: Any, **settings: Any) -> tuple[dict[str, Any], Any]:
    schema, printer = field_of(col, DebeziumSettings(**settings))
    return schema, json.loads(printer(value))


def named(kind: str, name: str, **parameters: str) -> dict[str, Any]:
    made: dict[str, Any] = {"type": kind, "name": name, "version": 1}
    return {**made, "parameters": parameters} if parameters else made


@pytest.mark.parametrize(
    ("mysql_type", "unsigned", "kind", "values"),
    [
        ("tinyint(1)", False, "int16", (0, 1, -128)),
        ("tinyint unsigned", True, "int16", (255,)),
        ("smallint", False, "int16", (-32768,)),
        ("smallint unsigned", True, "int32", (65535,)),
        ("mediumint", False, "int32", (-8388608,)),
        ("mediumint unsigned", True, "int32", (16777215,)),
        ("int", False, "int32", (-2147483648,)),
        ("int unsigned", True, "int64", (4294967295,)),
        ("bigint", False, "int64", (-(1 << 63),)),
    ],
)
def test_integers(mysql_type: str, unsigned: bool, kind: str, values: tuple[int, ...]) -> None:
    for value in values:
        assert mapped(column(mysql_type, unsigned=unsigned), value) == ({"type": kind}, value)


def java_integer(text: str) -> int:
    """What Java's `new BigInteger(bytes)` reads; it writes as few bytes as will do, and so must we."""
    raw = b64decode(text)
    number = int.from_bytes(raw, "big", signed=True)
    bits = (number if number >= 0 else ~number).bit_length()
    assert len(raw) == bits // 8 + 1
    return number


def test_bigint_unsigned_keeps_its_value_unless_long_is_asked_for() -> None:
    col = column("bigint unsigned", unsigned=True)
    schema, value = mapped(col, (1 << 64) - 1)
    decimal = {"scale": "0", "connect.decimal.precision": "20"}
    assert schema == named("bytes", "org.apache.kafka.connect.data.Decimal", **decimal)
    assert java_integer(value) == (1 << 64) - 1
    assert mapped(col, (1 << 64) - 1, bigint_unsigned="long") == ({"type": "int64"}, -1)
    assert mapped(col, (1 << 63) - 1, bigint_unsigned="long") == ({"type": "int64"}, (1 << 63) - 1)


def test_decimals() -> None:
    col = column("decimal(10,2)", length=10, scale=2)
    schema, value = mapped(col, "-123.45")
    decimal = {"scale": "2", "connect.decimal.precision": "10"}
    assert schema == named("bytes", "org.apache.kafka.connect.data.Decimal", **decimal)
    assert java_integer(value) == -12345
    assert mapped(col, "0.00")[1] == "AA=="
    assert mapped(col, "1.28")[1] == "AIA="  # 128 needs a sign bit
    assert mapped(col, "-1.28")[1] == "gA=="  # -128 does not
    assert mapped(col, "-123.40", decimal="string") == ({"type": "string"}, "-123.40")
    assert mapped(col, "-123.45", decimal="double") == ({"type": "double"}, -123.45)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=30, min_value=-(10**34), max_value=10**34))
def test_any_decimal_is_its_unscaled_number(number: Decimal) -> None:
    text = f"{number:.30f}"
    assert java_integer(mapped(column("decimal(65,30)", length=65, scale=30), text)[1]) == int(text.replace(".", ""))


def test_floats() -> None:
    assert mapped(column("float"), 1.1) == ({"type": "float"}, 1.1)
    assert mapped(column("float(10,2)"), 1.5) == ({"type": "double"}, 1.5)
    assert mapped(column("double"), 1e300) == ({"type": "double"}, 1e300)


def test_bits() -> None:
    assert mapped(column("bit(1)", length=1), 1) == ({"type": "boolean"}, True)
    assert mapped(column("bit(1)", length=1), 0) == ({"type": "boolean"}, False)
    schema, value = mapped(column("bit(11)", length=11), 0b101_00000001)
    assert schema == named("bytes", "io.debezium.data.Bits", length="11")
    assert b64decode(value) == bytes([1, 5])  # little endian
    assert b64decode(mapped(column("bit(64)", length=64), 1)[1]) == bytes([1, 0, 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("kind", ["binary(3)", "varbinary(9)", "tinyblob", "blob", "mediumblob", "longblob"])
def test_binary_strings(kind: str) -> None:
    raw = b"\xfb\xff\xfe"
    assert mapped(column(kind), raw) == ({"type": "bytes"}, "+//+")
    assert mapped(column(kind), raw, binary="base64") == ({"type": "string"}, "+//+")
    assert mapped(column(kind), raw, binary="base64-url-safe") == ({"type": "string"}, "-__-")
    assert mapped(column(kind), raw, binary="hex") == ({"type": "string"}, "fbfffe")


@pytest.mark.parametrize("kind", ["char(5)", "varchar(9)", "tinytext", "text", "mediumtext", "longtext", "uuid"])
def test_texts(kind: str) -> None:
    assert mapped(column(kind), 'a"b\n保洁') == ({"type": "string"}, 'a"b\n保洁')


def test_labels_and_json() -> None:
    enum = column("enum('a','b,c','d\\\\')", labels=("a", "b,c", "d\\"))
    assert mapped(enum, "b,c") == (named("string", "io.debezium.data.Enum", allowed="a,b\\,c,d\\\\"), "b,c")
    assert mapped(column("set('a','b')", labels=("a", "b")), "a,b") == (
        named("string", "io.debezium.data.EnumSet", allowed="a,b"),
        "a,b",
    )
    assert mapped(column("json"), '{"a": 1}') == (named("string", "io.debezium.data.Json"), '{"a": 1}')


POINT = struct.pack("<IBIdd", 4326, 1, 1, 1.5, -2.0)


def test_geometries() -> None:
    schema, value = mapped(column("geometry"), POINT)
    assert schema["name"] == "io.debezium.data.geometry.Geometry"
    assert [(field["field"], field["type"], field["optional"]) for field in schema["fields"]] == [
        ("wkb", "bytes", False),
        ("srid", "int32", True),
    ]
    assert (b64decode(value["wkb"]), value["srid"]) == (POINT[4:], 4326)
    assert mapped(column("polygon"), bytes(4) + POINT[4:])[1]["srid"] is None


def test_points_show_their_coordinates() -> None:
    schema, value = mapped(column("point"), POINT)
    assert schema["name"] == "io.debezium.data.geometry.Point"
    assert [field["field"] for field in schema["fields"]] == ["x", "y", "wkb", "srid"]
    assert (value["x"], value["y"], b64decode(value["wkb"]), value["srid"]) == (1.5, -2.0, POINT[4:], 4326)
    big = struct.pack("<I", 0) + struct.pack(">BIdd", 0, 1, 3.0, 4.0)
    assert mapped(column("point"), big)[1] == {
        **value,
        "x": 3.0,
        "y": 4.0,
        "srid": None,
        "wkb": "AAAAAAFACAAAAAAAAEAQAAAAAAAA",
    }


def test_vectors() -> None:
    schema, value = mapped(column("vector(2)"), "[1,-2.5]")
    assert schema == {
        "type": "array",
        "items": {"type": "float", "optional": False},
        "name": "io.debezium.data.FloatVector",
        "version": 1,
    }
    assert value == [1, -2.5]


# The values are those of Debezium's documentation: DATETIME 2018-06-20 06:37:03 is 1529476623000.
MOMENT = "2018-06-20 06:37:03"


@pytest.mark.parametrize(
    ("mysql_type", "length", "mode", "kind", "name", "text", "value"),
    [
        ("date", 0, "adaptive_time_microseconds", "int32", "io.debezium.time.Date", "2018-06-20", 17702),
        ("date", 0, "connect", "int32", "org.apache.kafka.connect.data.Date", "1969-12-31", -1),
        ("datetime", 0, "adaptive_time_microseconds", "int64", "io.debezium.time.Timestamp", MOMENT, 1529476623000),
        (
            "datetime(3)",
            3,
            "adaptive_time_microseconds",
            "int64",
            "io.debezium.time.Timestamp",
            MOMENT + ".123",
            1529476623123,
        ),
        (
            "datetime(6)",
            6,
            "adaptive",
            "int64",
            "io.debezium.time.MicroTimestamp",
            MOMENT + ".123456",
            1529476623123456,
        ),
        (
            "datetime(6)",
            6,
            "connect",
            "int64",
            "org.apache.kafka.connect.data.Timestamp",
            MOMENT + ".123456",
            1529476623123,
        ),
        ("time", 0, "adaptive_time_microseconds", "int64", "io.debezium.time.MicroTime", "17:51:04", 64264000000),
        (
            "time(3)",
            3,
            "adaptive_time_microseconds",
            "int64",
            "io.debezium.time.MicroTime",
            "-838:59:59.500",
            -3020399500000,
        ),
        ("time(3)", 3, "adaptive", "int32", "io.debezium.time.Time", "17:51:04.777", 64264777),
        ("time(6)", 6, "adaptive", "int64", "io.debezium.time.MicroTime", "17:51:04.000001", 64264000001),
        ("time(6)", 6, "connect", "int32", "org.apache.kafka.connect.data.Time", "17:51:04.777777", 64264777),
        ("time(6)", 6, "connect", "int32", "org.apache.kafka.connect.data.Time", "-00:00:00.001999", -1),
        ("year", 0, "connect", "int32", "io.debezium.time.Year", "0000", 0),
        ("year", 0, "adaptive", "int32", "io.debezium.time.Year", "2155", 2155),
        ("timestamp", 0, "connect", "string", "io.debezium.time.ZonedTimestamp", MOMENT, "2018-06-20T06:37:03Z"),
        (
            "timestamp(3)",
            3,
            "adaptive",
            "string",
            "io.debezium.time.ZonedTimestamp",
            MOMENT + ".100",
            "2018-06-20T06:37:03.100Z",
        ),
    ],
)
def test_times(mysql_type: str, length: int, mode: str, kind: str, name: str, text: str, value: Any) -> None:
    assert mapped(column(mysql_type, length=length), text, time_precision=mode) == (named(kind, name), value)


@pytest.mark.parametrize(
    ("mysql_type", "texts", "epoch"),
    [
        ("date", ["0000-00-00", "2026-00-00", "2026-05-00", "2026-02-31"], 0),
        ("datetime", ["0000-00-00 00:00:00", "2026-00-01 10:00:00"], 0),
        ("timestamp", ["0000-00-00 00:00:00"], "1970-01-01T00:00:00Z"),
    ],
)
def test_what_is_no_date_is_null_or_the_epoch(mysql_type: str, texts: list[str], epoch: Any) -> None:
    for text in texts:
        assert mapped(column(mysql_type), text)[1] is None
        assert mapped(column(mysql_type, nullable=False), text)[1] == epoch


@given(st.dates())
def test_days_are_those_of_the_calendar(day: date) -> None:
    assert days(day.isoformat()) == day.toordinal() - date(1970, 1, 1).toordinal()


def test_the_year_0_is_a_leap_year_before_the_year_1() -> None:
    first = days("0001-01-01")
    assert first is not None
    assert days("0000-12-31") == first - 1
    assert days("0000-02-29") == first - 366 + 31 + 28


@given(st.datetimes())
def test_datetimes_are_those_of_the_calendar(moment: datetime) -> None:
    text = f"{moment.date().isoformat()} {moment.strftime('%H:%M:%S.%f')}"
    value = mapped(column("datetime(6)", length=6), text)[1]
    assert value == (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)


def test_a_type_that_nobody_knew_is_a_string() -> None:
    assert mapped(column("inet6"), "::1") == ({"type": "string"}, "::1")
    assert mapped(column("thing"), b"\x01") == ({"type": "string"}, "AQ==")
