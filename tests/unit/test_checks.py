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


@pytest.mark.parametrize("metadata", ["MINIMAL", "NO_LOG", None])
def test_without_full_metadata_the_schema_history_serves_and_full_is_advised(metadata: str | None) -> None:
    variables = {name: value for name, value in GOOD.items() if name != "binlog_row_metadata"}
    if metadata:
        variables["binlog_row_metadata"] = metadata
    findings = variable_findings(variables)
    refuse_incomplete(findings)
    assert "binlog_row_metadata = 'FULL'" in findings[-1].sentence
    assert "SELECT" in findings[-1].sentence


def test_row_images_that_lack_columns_are_taken_when_the_operator_says_so() -> None:
    refuse_incomplete(variable_findings({**GOOD, "binlog_row_image": "MINIMAL"}, row_image="any"))


def test_all_that_is_missing_is_said_at_once() -> None:
    with pytest.raises(SourceMisconfigured) as caught:
        refuse_incomplete(variable_findings({**GOOD, "binlog_format": "MIXED", "binlog_row_image": "NOBLOB"}))
    assert "binlog_format" in str(caught.value)
    assert "binlog_row_image" in str(caught.value)
