"""The results as tables: Markdown for people and docs/benchmarks.md, JSON with each run."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.daemon import ROOT
from benchmarks.lines import Lines

_COLUMNS = {
    "rows_per_second": ("rows/s", "{:,.0f}"),
    "times": ("times mysql-replication", "{:.1f}"),
    "cpu_us": ("us of CPU a row", "{:.1f}"),
    "source_us": ("us of the source's CPU", "{:.2f}"),
    "cpu_times": ("times its CPU", "{:.1f}"),
    "memory_mb": ("peak memory, MB", "{:,.0f}"),
    "first_mb": ("memory after a tenth, MB", "{:,.0f}"),
    "last_mb": ("memory at the end, MB", "{:,.0f}"),
    "state_mb": ("state store, MB", "{:.1f}"),
    "w1_us": ("W1", "{:.2f}"),
    "w2l_us": ("W2L", "{:.2f}"),
    "p50_ms": ("p50, ms", "{:.1f}"),
    "p99_ms": ("p99, ms", "{:.1f}"),
    "changes_per_second": ("changes/s", "{:,.0f}"),
    "change_us": ("us of CPU a change", "{:,.0f}"),
    "core_percent": ("% of a core", "{:.1f}"),
    "seconds": ("seconds", "{:.1f}"),
    "read_mb": ("MB read", "{:,.0f}"),
    "rows_ratio": ("rows/s, new to old", "{:.3f}"),
    "cpu_ratio": ("CPU a row, new to old", "{:.3f}"),
    "memory_ratio": ("memory, new to old", "{:.3f}"),
}
"""By the figure's name: the column's head, and how a figure is printed."""
_ALONE = {"times", "cpu_us", "source_us", "cpu_times", "memory_mb"}
"""Figures that are shown without minimum and maximum, so that a line fits on a page; the JSON file has each run."""
_RATE = {"rows_per_second": " rows/s", "times": " times mysql-replication"}
_FIRST: tuple[tuple[str, str, dict[str, str], str], ...] = (
    ("W1 (bulk) into Kafka", "W1, into Kafka", _RATE, "--only 'W1, into'"),
    ("W2L (one-row) into Kafka", "W2L, into Kafka", _RATE, "--only 'W2L, into'"),
    ("99 of 100 changes, commit to Kafka", "at least once", {"p99_ms": " ms"}, "--latency"),
    ("the same, exactly once", "exactly once", {"p99_ms": " ms"}, "--latency"),
    ("peak memory of one destination, W1", "W1, into Kafka", {"memory_mb": " MB"}, "--only 'W1, into'"),
    ("50 idle destinations", "into Kafka", {"core_percent": " % of a core", "memory_mb": " MB"}, "--idle"),
)
"""What users ask first: title, its line, its figures with their units, and the options that measure it."""


@dataclass(slots=True)
class Table:
    """Figures of several things that were measured in the same way: by their names, each figure's runs."""

    title: str
    rows: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, figures: Mapping[str, float]) -> None:
        """Adds one run."""
        runs = self.rows.setdefault(name, {})
        for key, value in figures.items():
            runs.setdefault(key, []).append(value)

    def median(self, name: str, key: str) -> float:
        """Returns the median of all runs."""
        return statistics.median(self.rows[name][key])

    def markdown(self) -> str:
        """Returns medians; of most figures with the minimum and the maximum if there were several runs."""
        keys = [key for key in _COLUMNS if any(key in runs for runs in self.rows.values())]
        out = [f"| {self.title} | {' | '.join(_COLUMNS[key][0] for key in keys)} |", "|---|" + "---:|" * len(keys)]
        for name, runs in self.rows.items():
            out.append(f"| {name} | {' | '.join(_shown(key, runs.get(key, ())) for key in keys)} |")
        return "\n".join(out + (["", *self.notes] if self.notes else []))

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON types only."""
        return {"title": self.title, "rows": self.rows, "notes": self.notes}


def _shown(key: str, runs: Sequence[float]) -> str:
    if not runs:
        return ""
    form = _COLUMNS[key][1].format
    span = f" ({form(min(runs))}..{form(max(runs))})" if len(runs) > 1 and key not in _ALONE else ""
    return form(statistics.median(runs)) + span


def write(path: Path, sections: Mapping[str, Table | Lines]) -> None:
    """Writes all figures of all runs, each section with the commit, the machine and the day."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    origin = {
        "commit": commit.stdout.strip(),
        "machine": f"{os.cpu_count()} x {_processor()}, {platform.python_implementation()} {platform.python_version()}",
        "day": datetime.now(UTC).date().isoformat(),
    }
    made = {name: {**origin, **section.to_dict()} for name, section in sections.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, indent=1) + "\n")


def _processor() -> str:
    """Returns the processor's name, as far as the system gives it."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found[1] if found else platform.machine()


def show(path: Path) -> str:
    """Returns a file that write() wrote as Markdown: the first figures of docs/benchmarks.md, as far as they are in it,
    and all tables."""
    return "\n\n".join(blocks(path).values())


def blocks(path: Path) -> dict[str, str]:
    """Returns the sections of a file that write() wrote as Markdown, by their names, each with its origin; `first` is
    made from the others."""
    figures = json.loads(path.read_text())
    sections = {name: _section(found) for name, found in figures.items()}
    made = {"first": _first([one for one in sections.values() if isinstance(one, Table)])}
    for name, section in sections.items():
        found = figures[name]
        made[name] = f"{section.markdown()}\n\n{found['day']}, commit `{found['commit']}`, {found['machine']}."
    return made


def _section(found: Mapping[str, Any]) -> Table | Lines:
    if "lines" in found:
        return Lines.from_dict(found["lines"])
    return Table(found["title"], found["rows"], found["notes"])


def record(figures: Path, page: Path, measured: Path) -> None:
    """Takes the sections of a file that write() wrote over into the recorded figures, and writes the page's blocks."""
    known = json.loads(figures.read_text()) if figures.exists() else {}
    figures.write_text(json.dumps(known | json.loads(measured.read_text()), indent=1) + "\n")
    page.write_text(filled(page.read_text(), blocks(figures)))


def filled(text: str, made: Mapping[str, str]) -> str:
    """Returns a page in which these blocks, from `<!-- figures: NAME -->` to `<!-- end of figures -->`, are replaced.

    Raises ValueError for a block that the page does not have.
    """
    for name, block in made.items():
        begin, end = f"<!-- figures: {name} -->\n", "<!-- end of figures -->"
        before, found, rest = text.partition(begin)
        if not found:
            raise ValueError(f"the page has no '{begin.strip()}'")
        text = before + begin + block + "\n" + rest[rest.index(end) :]
    return text


def _first(tables: Sequence[Table]) -> str:
    out = ["| figure | median | how to get it again |", "|---|---:|---|"]
    for title, name, keys, options in _FIRST:
        table = next((one for one in tables if name in one.rows and set(keys) <= one.rows[name].keys()), None)
        if table is not None:
            texts = [_COLUMNS[key][1].format(table.median(name, key)) + unit for key, unit in keys.items()]
            out.append(f"| {title} | {', '.join(texts)} | `scripts/bench {options}` |")
    return "\n".join(out)
