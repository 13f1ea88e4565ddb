"""Masks: what becomes of values and of the column's description, and which columns can't have which mask."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr

from headrace.model import ABSENT, Column
from headrace.rules.masks import Mask
from headrace.settings.route import MaskSettings

NAME = Column("name", "varchar(5)", 12, charset="utf8mb4", length=5, nullable=False, default="x", comment="who")
BODY = Column("body", "text", 2005, charset="utf8mb4")
RAW = Column("raw", "varbinary(9)", 2004, charset="binary", length=9)
ID = Column("id", "bigint unsigned", 3, unsigned=True, nullable=False, auto_increment=True)
TINY = Column("tiny", "tinyint", -6)
BITS = Column("bits", "bit(4)", -7, length=4)
PRICE = Column("price", "decimal(6,2)", 3, length=6, scale=2)
COUNT = Column("count", "decimal(3,0) unsigned", 3, unsigned=True, length=3)
FLOAT = Column("f", "float", 7)
DOUBLE = Column("d", "double", 8)
LEVEL = Column("level", "enum('low','high')", 12, charset="utf8mb4", labels=("low", "high"))
TAGS = Column("tags", "set('a','b')", 12, charset="utf8mb4", labels=("a", "b"))
BORN = Column("born", "date", 91)
SEEN = Column("seen", "datetime(3)", 93, length=3)
LASTED = Column("lasted", "time(1)", 92, length=1)
MADE = Column("made", "year", 12)
DOC = Column("doc", "json", 12)


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        (NAME, "***", "***"),
        (NAME, "", ""),
        (NAME, "北京北京北", "北京北京北"),
        (BODY, "hidden", "hidden"),
        (ID, "0", 0),
        (ID, "18446744073709551615", (1 << 64) - 1),
        (TINY, "-128", -128),
        (BITS, "15", 15),
        (PRICE, "0", "0.00"),
        (PRICE, "-1.5", "-1.50"),
        (PRICE, "9999.990", "9999.99"),
        (PRICE, ".5", "0.50"),
        (COUNT, "007", "7"),
        (FLOAT, "1.5", 1.5),
        (DOUBLE, "-1e3", -1000.0),
        (LEVEL, "high", "high"),
        (BORN, "1970-1-1", "1970-01-01"),
        (BORN, "0000-00-00", "0000-00-00"),
        (SEEN, "1970-01-01", "1970-01-01 00:00:00.000"),
        (SEEN, "1970-01-01 12:00:00.5", "1970-01-01 12:00:00.500"),
        (LASTED, "-100:00", "-100:00:00.0"),
        (MADE, "2000", "2000"),
    ],
)
def test_a_fixed_value_takes_every_values_place_but_that_of_null(column: Column, text: str, value: Any) -> None:
    masked, change = Mask("fixed", value=text).bind(column, key=False)
    assert masked == column
    assert change("anything") == value
    assert type(change("anything")) is type(value)
    assert change(None) is None
    assert change(ABSENT) is ABSENT


def test_a_fixed_enum_is_a_number_where_rows_have_numbers() -> None:
    _, change = Mask("fixed", value="high").bind(LEVEL, key=False)
    assert change(1) == 2


@pytest.mark.parametrize(
    ("column", "text", "problem"),
    [
        (NAME, "123456", "'123456' for name (varchar(5)) has 6 characters, and the column 5"),
        (replace(BODY, mysql_type="tinytext"), "京" * 86, "is too long"),
        (ID, "-1", "should be from 0 to 18446744073709551615"),
        (ID, "x", "should be a number that the column can have"),
        (ID, "1.5", "should be a number"),
        (ID, "", "should be a number"),
        (TINY, "128", "should be from -128 to 127"),
        (BITS, "16", "should be from 0 to 15"),
        (PRICE, "1.234", "should have at most 6 digits, 2 of them after the point"),
        (PRICE, "12345", "should have at most 6 digits"),
        (PRICE, "1e3", "should be a number"),
        (COUNT, "-1", "should not be below 0"),
        (FLOAT, "1e39", "is too large"),
        (DOUBLE, "nan", "should be a number"),
        (DOUBLE, "1e999", "is too large"),
        (LEVEL, "medium", "should be one of low, high"),
        (BORN, "1970-01-01 12:00", "should be a date without a time"),
        (BORN, "gone", "should be a date such as"),
        (SEEN, "1970-01-01 00:00:00.1234", "has more digits of a second than the column's 3"),
        (MADE, "1800", "should be a year from 1901 to 2155"),
        (RAW, "x", 'is not possible: take mask = "null" or "hash"'),
        (DOC, "{}", "is not possible"),
        (TAGS, "a", "is not possible"),
    ],
)
def test_a_fixed_value_that_does_not_fit_is_refused(column: Column, text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        Mask("fixed", value=text).bind(column, key=False)


@pytest.mark.parametrize(
    ("column", "value", "hashed"),
    [
        (NAME, "北京", "北京".encode()),
        (NAME, "", b""),
        (ID, 7, b"7"),
        (PRICE, "1.50", b"1.50"),
        (DOUBLE, 1.0, b"1"),
        (DOUBLE, 1.25, b"1.25"),
        (RAW, b"\xff\0", b"\xff\0"),
        (DOC, '{"a": 1}', b'{"a": 1}'),
    ],
)
def test_a_hash_is_hmac_sha_256_of_the_values_text(column: Column, value: Any, hashed: bytes) -> None:
    _, change = Mask("hash", salt="grain").bind(column, key=False)
    assert change(value) == hmac.new(b"grain", hashed, hashlib.sha256).hexdigest()
    assert change(None) is None
    assert change(ABSENT) is ABSENT


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
def test_a_salt_may_have_any_length(length: int) -> None:
    salt = "盐" + "x" * (length - 1)
    _, change = Mask("hash", salt=salt).bind(BODY, key=False)
    for value in ("", "a" * 55, "b" * 200):
        assert change(value) == hmac.new(salt.encode(), value.encode(), hashlib.sha256).hexdigest()
        assert change(value) == change(value)


def test_the_hash_of_a_known_value_stays_what_it_was() -> None:
    _, change = Mask("hash", salt="key").bind(NAME, key=False)
    text = "The quick brown fox jumps over the lazy dog"  # the example of HMAC's article in Wikipedia
    assert change(text) == "f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8"


def test_a_hashed_column_is_a_text_of_64_characters() -> None:
    masked, _ = Mask("hash", salt="grain").bind(ID, key=True)
    assert masked == Column("id", "varchar(64)", 12, nullable=False, charset="utf8mb4", length=64)
    masked, _ = Mask("hash", salt="grain").bind(LEVEL, key=False)
    assert masked == Column("level", "varchar(64)", 12, charset="utf8mb4", length=64)


def test_the_salt_is_in_no_text_of_the_mask() -> None:
    assert "grain" not in repr(Mask("hash", salt="grain"))


def test_a_truncated_text_keeps_its_first_characters_and_a_binary_string_its_first_bytes() -> None:
    masked, change = Mask("truncate", length=2).bind(NAME, key=False)
    assert masked == NAME
    assert [change(value) for value in ("北京市", "😀😀😀", "a", "", None, ABSENT)] == [
        "北京",
        "😀😀",
        "a",
        "",
        None,
        ABSENT,
    ]
    _, change = Mask("truncate", length=2).bind(RAW, key=False)
    assert change(b"\xff\xfe\xfd") == b"\xff\xfe"


@pytest.mark.parametrize("column", [ID, PRICE, DOUBLE, LEVEL, TAGS, BORN, DOC])
def test_only_texts_and_binary_strings_are_truncated(column: Column) -> None:
    with pytest.raises(ValueError, match=f"^{column.name} .* can't be truncated"):
        Mask("truncate", length=2).bind(column, key=False)


def test_null_makes_the_column_nullable() -> None:
    masked, change = Mask("null").bind(NAME, key=False)
    assert masked == replace(NAME, nullable=True, default=None)
    assert change("x") is change(None) is None
    assert change(ABSENT) is ABSENT


@pytest.mark.parametrize("mask", [Mask("fixed", value="1"), Mask("truncate", length=1), Mask("null")])
def test_a_primary_key_can_only_be_hashed(mask: Mask) -> None:
    with pytest.raises(ValueError, match='name is part of the primary key and can only be masked with "hash"'):
        mask.bind(NAME, key=True)


def test_a_mask_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="salt should not be empty"):
        MaskSettings(tables="shop.people", columns=("name",), mask="hash", salt=SecretStr(""))
    with pytest.raises(ValueError, match=r"length\n.*greater than or equal to 0"):
        MaskSettings(tables="shop.people", columns=("name",), mask="truncate", length=-1)
