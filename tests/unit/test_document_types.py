"""Columns of MySQL as fields of Elasticsearch: mappings, and values that fit them."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_documents.indexes.types import TypeRules, field_type

TEXT = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}


@pytest.mark.parametrize(
    ("mysql_type", "mapping", "text", "value"),
    [
        ("bigint(20)", {"type": "long"}, "-5", -5),
        ("BIGINT UNSIGNED", {"type": "unsigned_long"}, "18446744073709551615", 18446744073709551615),
        ("int(10) unsigned zerofill", {"type": "long"}, "0000000042", 42),
        ("year", {"type": "long"}, "2026", 2026),
        ("bit(64)", {"type": "unsigned_long"}, "18446744073709551615", 18446744073709551615),
        ("bit(9)", {"type": "long"}, "511", 511),
        ("float(10,2)", {"type": "float"}, "1.50", 1.5),
        ("double", {"type": "double"}, "1e400", "1e400"),
        ("date", {"type": "date"}, "2026-11-21", "2026-11-21"),
        ("date", {"type": "date"}, "0000-00-00", None),
        ("date", {"type": "date"}, "2026-00-00", None),
        ("datetime(6)", {"type": "date"}, "2026-11-21 09:30:00.000001", "2026-11-21T09:30:00.000001+00:00"),
        ("datetime", {"type": "date"}, "2026-11-00 09:30:00", None),
        ("timestamp", {"type": "date"}, "2026-11-21 09:30:00", "2026-11-21T09:30:00+00:00"),
        ("varbinary(8)", {"type": "binary"}, "AQI=", None),
        ("inet6", {"type": "ip"}, "::1", None),
        ("vector(2)", {"type": "float"}, "[1,-2.5]", [1, -2.5]),
        ("varchar(50)", TEXT, "家庭保洁", None),
        ("json", {"type": "text"}, "{}", None),
    ],
)
def test_a_column_has_the_mapping_of_its_type_and_a_value_that_fits_it(
    mysql_type: str, mapping: dict[str, Any], text: str, value: object
) -> None:
    found = field_type(mysql_type, TypeRules())
    assert found.mapping == mapping
    if found.convert is not None:
        assert found.convert(text) == value


@pytest.mark.parametrize(
    ("mysql_type", "decimals", "mapping", "value"),
    [
        ("decimal(10,2)", "keyword", {"type": "keyword", "ignore_above": 8191}, "199.00"),
        ("decimal(10,2)", "double", {"type": "double"}, 199.0),
        ("decimal(10,2)", "scaled_float", {"type": "scaled_float", "scaling_factor": 100}, 199.0),
        ("decimal(30,10)", "scaled_float", {"type": "keyword", "ignore_above": 8191}, "199.00"),
    ],
)
def test_decimals_are_what_is_asked_for_and_scaled_only_where_a_long_holds_them(
    mysql_type: str, decimals: Any, mapping: dict[str, Any], value: object
) -> None:
    found = field_type(mysql_type, TypeRules(decimals=decimals))
    assert found.mapping == mapping
    assert (found.convert("199.00") if found.convert else "199.00") == value


@pytest.mark.parametrize("mysql_type", ["tinyint(1)", "bool", "bit(1)"])
def test_booleans_are_booleans_when_asked(mysql_type: str) -> None:
    found = field_type(mysql_type, TypeRules(booleans=True))
    assert found.mapping == {"type": "boolean"}
    assert found.convert is not None
    assert [found.convert(text) for text in ("0", "1", "2")] == [False, True, True]
    assert field_type(mysql_type, TypeRules()).mapping == {"type": "long"}
    assert field_type("tinyint(4)", TypeRules(booleans=True)).mapping == {"type": "long"}


def test_times_have_the_zone_in_which_they_were_written() -> None:
    rules = TypeRules(zone="Asia/Shanghai", timestamp_zone="-03:00")
    local, stamp = field_type("datetime(3)", rules).convert, field_type("timestamp", rules).convert
    assert local is not None
    assert stamp is not None
    assert local("2026-11-21 09:30:00.250") == "2026-11-21T09:30:00.250000+08:00"
    assert local("1986-06-01 00:00:00") == "1986-06-01T00:00:00+09:00"  # summer time
    assert stamp("2026-11-21 09:30:00") == "2026-11-21T09:30:00-03:00"


def test_texts_have_the_analyzer_and_what_is_not_known_has_no_mapping() -> None:
    assert field_type("text", TypeRules(analyzer="smartcn")).mapping == {**TEXT, "analyzer": "smartcn"}
    assert field_type("", TypeRules()) == (None, None)
    assert field_type("some_new_type(3)", TypeRules()) == (None, None)
