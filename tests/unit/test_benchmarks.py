"""What scripts/bench reckons, without servers: workloads, spans, stages, verdicts and tables."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import compare, options, report, stages, workloads
from benchmarks.__main__ import FIGURES, PAGE
from benchmarks.compare import verdict
from benchmarks.daemon import HERE, Sample, Version, toml
from benchmarks.lines import Line, Lines
from benchmarks.race import span
from benchmarks.report import Table
from benchmarks.workloads import Workload
from headrace.mysql.wire.binlog_file import packets

WHOLE = 9_000
"""Bytes up to the first rows that lack columns, which take another way."""
BINLOG = Path(__file__).parents[1] / "fixtures" / "binlogs" / "mysql-full.bin"


def kinds(statements: list[str]) -> list[int]:
    return [sum(one.startswith(word) for one in statements) for word in ("INSERT", "UPDATE", "DELETE")]


def test_w1_has_its_share_of_each_kind() -> None:
    statements = list(workloads.w1_statements("w1", 56_000))
    assert kinds(statements) == [500, 50, 10]
    inserted = [int(n) for one in statements if one.startswith("INSERT") for n in re.findall(r"\((\d+),", one)]
    assert inserted == list(range(50_000))


def test_w2l_changes_only_rows_that_are_there() -> None:
    there: set[int] = set()
    statements = list(workloads.w2l_statements("w2l", 1000))
    assert kinds(statements) == [600, 300, 100]
    for one in statements:
        if one.startswith("INSERT"):
            found = re.search(r"\((\d+),", one)
            assert found is not None
            there.add(int(found[1]))
            continue
        row = int(one.rpartition(" ")[2])
        assert row in there, one
        if one.startswith("DELETE"):
            there.remove(row)


def test_texts_have_100_to_140_characters() -> None:
    texts = [workloads.mixed_row(i).split("'")[5] for i in range(200)]
    assert {len(one) for one in texts} == set(range(100, 141))


def sample(clock: float, rows: int) -> Sample:
    return Sample(clock, clock, 0, rows, rows, 1)


def test_rates_are_taken_between_two_advances() -> None:
    steps = [(0, 0), (1, 0), (2, 10), (3, 10), (4, 30), (5, 50), (6, 50), (7, 70), (8, 90), (9, 95)]
    first, last = span([sample(*one) for one in steps])
    assert ((first.clock, first.rows), (last.clock, last.rows)) == ((2, 10), (8, 90))


def test_few_samples_are_measured_from_before_the_first_row() -> None:
    first, last = span([sample(0, 0), sample(1, 0), sample(2, 90)])
    assert (first.clock, last.clock) == (1, 2)


@pytest.fixture
def job() -> dict[str, Any]:
    source = {"host": "127.0.0.1", "port": 1, "user": "u", "password": "p"}
    filters = {"include": "fz\\..*"}
    return {
        "source": source,
        "table": "t",
        "file": "b.000001",
        "filter": filters,
        "kafka": "127.0.0.1:1",
        "server_uuid": "u",
        "checksums": False,
    }


async def test_each_stage_has_two_figures(job: dict[str, Any]) -> None:
    figures = await stages.measure(job, b"".join(packets(BINLOG))[:WHOLE], 2)
    assert list(figures) == list(stages.CUTS)
    assert {len(both) for both in figures.values()} == {2}


async def test_a_stage_whose_seam_nothing_passes_is_one_with_the_next(
    job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rows into values", "values to text", "JSON to text"):
        monkeypatch.setitem(stages.CUTS, name, lambda seam: None)
    figures = await stages.measure(job, b"".join(packets(BINLOG))[:WHOLE], 2)
    assert list(figures) == [
        "joining, CRC, cutting, GTID, BEGIN, TABLE_MAP, XID",
        "rows into values; values to text; JSON to text; Canal's message",
        "ids, headers, batches",
        "record batches, CRC32C",
    ]


def test_what_moved_is_beyond_the_noise_of_all_pairs() -> None:
    pairs = {
        "W1": (1.2, 1.1, 1.3, 1.2, 1.25),
        "W2L": (0.9, 1.2, 1.1, 1.3, 1.2),
        "wide": (1.01, 1.02, 1.2, 1.03, 1.05),
        "little": (1.004, 1.002, 1.003, 1.005, 1.004),
    }
    table = Table("against main", {name: {"rows_ratio": list(ratios)} for name, ratios in pairs.items()})
    assert verdict(table, "rows_ratio") == "rows/s: moved: W1 (+20.0%); within the noise: W2L, wide, little."


def test_four_pairs_say_nothing() -> None:
    table = Table("against main", {"W1": {"cpu_ratio": [0.5] * 4}})
    assert verdict(table, "cpu_ratio") == "cpu: fewer than 5 pairs say nothing."


def test_a_run_that_is_too_short_to_be_measured_ends_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"rows_per_second": 0.0, "cpu_us": 0.0, "memory_mb": 90.0}
    figures = {HERE: {"rows_per_second": 1.0, "cpu_us": 1.0, "memory_mb": 90.0}}
    monkeypatch.setattr(compare, "run", lambda entry, version: figures.get(version, short))
    with pytest.raises(SystemExit, match="W1, before ended before it could be measured"):
        compare.compare([SimpleNamespace(name="W1")], Version(Path("old"), HERE.venv), "before", 1)  # type: ignore[list-item]


def table_of(*rates: float) -> Table:
    table = Table("workload")
    for rate in rates:
        table.add("W1, into Kafka", {"rows_per_second": rate, "times": rate / 500, "memory_mb": 99.6})
    return table


def test_figures_come_back_as_tables(tmp_path: Path) -> None:
    line = Line("messages into RabbitMQ", "rabbitmq", Workload("", "", 0), "rows_per_second", 1500)
    line.runs = [{"rows_per_second": 2000.0}]
    report.write(tmp_path / "figures.json", {"race": table_of(1000, 3000), "brokers": Lines([line])})
    shown = report.show(tmp_path / "figures.json")
    assert "| W1 (bulk) into Kafka | 2,000 rows/s, 4.0 times mysql-replication |" in shown
    assert "| W1, into Kafka | 2,000 (1,000..3,000) | 4.0 | 100 |" in shown
    assert "| messages into RabbitMQ | 2,000 rows/s | 2,000..2,000 | 1,500 | yes |" in shown


def test_recorded_figures_replace_the_blocks_of_the_page_and_keep_the_others(tmp_path: Path) -> None:
    figures, page, measured = (tmp_path / name for name in ("figures.json", "page.md", "measured.json"))
    blocks = "".join(
        f"{name}:\n<!-- figures: {name} -->\nold\n<!-- end of figures -->\n" for name in ("first", "race", "idle")
    )
    page.write_text(blocks)
    report.write(figures, {"idle": table_of(7)})
    report.write(measured, {"race": table_of(1000)})
    report.record(figures, page, measured)
    assert "race:\n<!-- figures: race -->\n| workload | rows/s |" in page.read_text()
    assert "| W1, into Kafka | 1,000 | 2.0 | 100 |\n\n2" in page.read_text()
    assert "| W1, into Kafka | 7 | 0.0 | 100 |" in page.read_text()
    assert "old" not in page.read_text()


def test_figures_without_a_block_in_the_page_are_refused() -> None:
    with pytest.raises(ValueError, match="the page has no '<!-- figures: race -->'"):
        report.filled("", {"race": ""})


def test_another_commit_is_built_apart_from_this_one(tmp_path: Path) -> None:
    """Cargo gives the native library of both the same name, and the next wheel here would contain the other's."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "lib.sh").write_text('ensure_venv() { echo "${CARGO_TARGET_DIR:-its own}"; }\n')
    command = ["bash", "-c", compare._SET_UP]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "CARGO_TARGET_DIR": "ours"}, capture_output=True)
    assert done.stdout == b"its own\n", done.stderr


@pytest.mark.parametrize("other", ["--quick", "--scale=2", "--only=W1", "--compare=main"])
def test_only_whole_measurements_are_recorded(other: str) -> None:
    with pytest.raises(SystemExit):
        options.parse(["--record", other])


def test_the_page_has_the_recorded_figures() -> None:
    text = PAGE.read_text()
    assert report.filled(text, report.blocks(FIGURES)) == text


def test_a_destination_is_written_as_toml() -> None:
    sections: dict[str, dict[str, object]] = {
        "source": {"port": 3306, "start": "latest"},
        "filter": {"include": r"bench\.t"},
        "message": {},
    }
    sections["message"] = {"format": "debezium", "debezium": {"schemas": False}}
    assert tomllib.loads(toml(sections)) == sections


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_figures_of_the_readme_are_on_the_page(name: str) -> None:
    figures = re.findall(r"\d{2,3},\d{3}", (PAGE.parents[1] / name).read_text())
    assert len(figures) == 4
    assert [figure for figure in figures if figure not in PAGE.read_text()] == []
