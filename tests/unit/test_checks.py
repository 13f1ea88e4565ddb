"""The settings of a source that lose changes, one by one: each is named, with the SQL that mends it."""

from __future__ import annotations

import pytest

from headrace.errors import SourceMisconfigured
from headrace.mysql.checks import refuse_incomplete, variable_findings

GOOD = {
    "version": "9.7.4",
    "log_bin": "ON",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
}


def test_a_complete_server_passes() -> None:
    refuse_incomplete(variable_findings(GOOD))


@pytest.mark.parametrize(
    ("version", "how"), [("9.7.4", "SET PERSIST"), ("10.11.18-MariaDB", "SET GLOBAL")], ids=["mysql", "mariadb"]
)
@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("binlog_format", "MIXED", "ROW"),
        ("binlog_format", "STATEMENT", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_metadata", "MINIMAL", "FULL"),
    ],
)
def test_a_setting_that_loses_something_is_refused_with_its_sql(
    name: str, value: str, wanted: str, version: str, how: str
) -> None:
    with pytest.raises(SourceMisconfigured) as caught:
        refuse_incomplete(variable_findings({**GOOD, "version": version, name: value}))
    assert f"{name} is {value}" in str(caught.value)
    assert f"{how} {name} = '{wanted}';" in caught.value.remedy


def test_a_server_without_a_binlog_is_refused() -> None:
    with pytest.raises(SourceMisconfigured, match="writes no binlog"):
        refuse_incomplete(variable_findings({**GOOD, "log_bin": "OFF"}))


def test_a_server_too_old_for_row_metadata_is_named_as_such() -> None:
    old = {name: value for name, value in GOOD.items() if name != "binlog_row_metadata"} | {"version": "5.7.44"}
    with pytest.raises(SourceMisconfigured, match=r"version 5\.7\.44 has no binlog_row_metadata"):
        refuse_incomplete(variable_findings(old))


def test_all_that_is_missing_is_said_at_once() -> None:
    with pytest.raises(SourceMisconfigured) as caught:
        refuse_incomplete(variable_findings({**GOOD, "binlog_format": "MIXED", "binlog_row_image": "NOBLOB"}))
    assert "binlog_format" in str(caught.value)
    assert "binlog_row_image" in str(caught.value)
