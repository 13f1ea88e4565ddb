"""The comparison of our reader of rows with mysql-replication's parser, on recorded binlog files."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.decode import printing_settings
from headrace.cli.main import main
from headrace.model import Column, RowsChange
from headrace.mysql.inspection import decode_file
from headrace.mysql.second_opinion import Sample, Tail, compare, known_error, same_value
from headrace.mysql.wire.binlog_file import packets
from headrace.ports.inspection import Opinion

RECORDED = Path(__file__).parents[1] / "fixtures" / "binlogs"


def samples(name: str, count: int = 10_000) -> Tail:
    """The newest rows events of a recorded file."""
    tail, offset = Tail(name, lambda schema, table: True, count), 4
    for chunk in packets(RECORDED / name):
        at = 0
        while at < len(chunk):
            size = int.from_bytes(chunk[at : at + 3], "little")
            event = chunk[at + 5 : at + 4 + size]
            tail.take(offset, event)
            offset, at = offset + len(event), at + 4 + size
    return tail


def opinion_of(found: Sequence[Sample], tmp_path: Path, changed: Any = None) -> Opinion:
    """`changed` is called with each of our changes."""

    def decode(path: Path) -> Sequence[RowsChange]:
        changes = decode_file(printing_settings(), tmp_path, path)
        return [changed(change) if changed else change for change in changes]

    opinion = Opinion()
    for sample in found:
        compare(sample, opinion, decode, tmp_path)
    return opinion


@pytest.mark.parametrize("name", ["mysql-full.bin", "mariadb.bin"])
def test_both_readers_agree_on_recorded_files(name: str, tmp_path: Path) -> None:
    opinion = opinion_of(samples(name).kept, tmp_path)
    assert (opinion.differences, opinion.shown) == (0, [])
    assert opinion.events > 0
    assert opinion.values > opinion.events


def test_a_different_value_is_reported_with_position_table_column_and_both_values(tmp_path: Path) -> None:
    newest = samples("mysql-full.bin", 1).kept

    def spoil(change: RowsChange) -> RowsChange:
        row = list(change.rows[-1])
        row[0] = 4711
        return dataclasses.replace(change, rows=[*change.rows[:-1], tuple(row)])

    opinion = opinion_of(newest, tmp_path, spoil)
    assert opinion.differences == 1
    (line,) = opinion.shown
    assert line.startswith(f"mysql-full.bin:{newest[0].offset} ")
    assert " column id (" in line
    assert ": 4711, mysql-replication " in line


def test_a_changed_byte_that_only_one_reader_sees_is_reported(tmp_path: Path) -> None:
    (sample,) = samples("mysql-full.bin", 1).kept
    spoilt = dataclasses.replace(sample, rows=sample.rows[:-5] + bytes([sample.rows[-5] ^ 1]) + sample.rows[-4:])
    decode = functools.partial(decode_file, printing_settings(), tmp_path)
    right = decode_changes(sample, tmp_path)
    opinion = Opinion()
    compare(spoilt, opinion, lambda path: right, tmp_path)
    assert opinion.differences == 1
    assert "column id (int): 50, mysql-replication 16777266" in opinion.shown[0]
    opinion = Opinion()
    compare(spoilt, opinion, decode, tmp_path)  # what both read alike is no difference
    assert opinion.differences == 0


def decode_changes(sample: Sample, folder: Path) -> Sequence[RowsChange]:
    kept: list[RowsChange] = []

    def decode(path: Path) -> Sequence[RowsChange]:
        kept.extend(decode_file(printing_settings(), folder, path))
        return kept

    compare(sample, Opinion(), decode, folder)
    return kept


def test_only_captured_tables_and_only_the_newest_events_are_kept() -> None:
    everything = samples("mysql-full.bin").kept
    newest = samples("mysql-full.bin", 2).kept
    assert list(newest) == list(everything)[-2:]
    tail = Tail("f", lambda schema, table: False, 10)
    for sample in everything:
        tail.take(4, sample.format)
        tail.take(4, sample.table_map)
        tail.take(4, sample.rows)
    assert not tail.kept


def test_a_table_without_names_in_the_binlog_is_left_out_with_the_remedy(tmp_path: Path) -> None:
    opinion = opinion_of(samples("mysql-minimal.bin").kept, tmp_path)
    assert opinion.differences == opinion.events == 0
    assert [what for what in opinion.left_out if "binlog_row_metadata=FULL" in what]


def test_many_differences_are_counted_and_the_first_are_reported() -> None:
    opinion = Opinion()
    for number in range(1000):
        opinion.differs(str(number))
    assert (opinion.differences, len(opinion.shown), opinion.shown[0]) == (1000, 200, "0")


@pytest.mark.parametrize(
    ("kind", "ours", "theirs"),
    [("binary(4)", b"a\0\0\0", b"a"), ("year", "0000", 1900), ("date", "2026-00-05", None), ("json", "null", None)],
)
def test_known_errors_are_distinguished(kind: str, ours: Any, theirs: Any) -> None:
    column = Column("c", kind, 0)
    assert not same_value(column, ours, theirs)
    assert known_error(column, ours, theirs)


def test_values_of_unexpected_types_differ_and_are_not_known() -> None:
    for kind in ("date", "datetime", "time", "bit(3)", "decimal(3,1)", "set('a')", "json", "timestamp", "char(3)"):
        column = Column("c", kind, 0, charset="big5")
        for ours, theirs in ((None, ""), (None, 1), ("x", object())):
            assert not same_value(column, ours, theirs)
            assert not known_error(column, ours, theirs)


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_a_count_that_is_none_is_refused(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["check", "--second-opinion", count])
    assert caught.value.code == 2
    assert "should be a whole number of 1 or more" in capsys.readouterr().err


def test_the_daemon_does_not_load_mysql_replication() -> None:
    code = "import sys, headrace.cli.main; sys.exit('pymysqlreplication' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
