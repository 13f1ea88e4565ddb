"""The lines of the table: what each measures, how it is run, and how it is printed."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.workloads import Workload

Figures = dict[str, float]
ROCKETMQ_MESSAGES = 8_000
RABBITMQ_MESSAGES = 60_000
_UNITS = {
    "rows_per_cpu_second": (" rows/CPU s", 0),
    "rows_per_second": (" rows/s", 0),
    "rss_mb": (" MB", 0),
    "_ms": (" ms", 1),
    "_s": (" s", 2),
    "ratio": ("", 2),
    "starved": ("", 2),
}


@dataclass(slots=True)
class Line:
    """One line of the table: what is measured, on which workload, and its target."""

    name: str
    kind: str
    workload: Workload
    figure: str
    target: float | None = None
    job: dict[str, Any] = field(default_factory=dict)
    runs: list[Figures] = field(default_factory=list)
    missing: str = ""
    """Why it can't be measured here."""

    @property
    def value(self) -> float:
        """Returns the median of the main figure."""
        return statistics.median(run[self.figure] for run in self.runs)

    @property
    def met(self) -> str:
        """Returns whether the target is reached; memory must stay below its own."""
        if self.target is None or self.missing:
            return ""
        least = self.figure == "rss_mb" or self.figure.endswith("_s")
        good = self.value <= self.target if least else self.value >= self.target
        return "yes" if good else "NO"

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON types only."""
        made = {"name": self.name, "figure": self.figure, "target": self.target, "runs": self.runs}
        return made | ({"missing": self.missing} if self.missing else {})


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of the measurements."""

    source: Any = None
    kafka: Any = None
    rabbitmq: Any = None
    rocketmq: Any = None
    scale: int = 1
    """A broker that is measured alone gets this many times fewer messages."""


def run(line: Line, servers: Servers) -> None:
    """Runs one measurement in a separate process."""
    job: dict[str, Any] = {"kind": line.kind, "topic": f"bench-{uuid.uuid4().hex[:8]}"}
    if servers.source is not None:
        job["source"] = servers.source.connection()
    job |= line.workload.to_dict() | line.job
    if job.get("to_kafka"):
        job["kafka"] = servers.kafka.bootstrap_servers
    if line.kind == "rabbitmq":
        address = (servers.rabbitmq.host, servers.rabbitmq.port)
        job |= {"rabbitmq": address, "messages": max(RABBITMQ_MESSAGES // servers.scale, 2_000), "value_bytes": 600}
    if line.kind == "rocketmq":
        servers.rocketmq.create_topic(job["topic"], 8, "FIFO")
        job |= {
            "rocketmq": servers.rocketmq.endpoints,
            "messages": ROCKETMQ_MESSAGES // servers.scale,
            "value_bytes": 600,
        }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.measure", json.dumps(job)], capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise SystemExit(f"bench: '{line.name}' failed:\n{done.stderr[-3000:]}")
    line.runs.append(json.loads(done.stdout.splitlines()[-1]))


def _shown(figure: str) -> tuple[str, int]:
    """Returns unit and decimal places, by the end of a figure's name."""
    return next(shown for end, shown in _UNITS.items() if figure.endswith(end))


class Lines(list[Line]):
    """Lines that are shown as one table."""

    def markdown(self) -> str:
        """Returns the medians, with the least and the most, and whether the targets are met."""
        out = ["| measurement | median | least..most | target | met |", "|---|---:|---:|---:|---|"]
        for line in self:
            if line.missing:
                out.append(f"| {line.name} | {line.missing} |  |  |  |")
                continue
            values, (unit, digits) = [r[line.figure] for r in line.runs], _shown(line.figure)
            target = f"{line.target:,.{digits}f}" if line.target else ""
            span = f"{min(values):,.{digits}f}..{max(values):,.{digits}f}"
            out.append(f"| {line.name} | {line.value:,.{digits}f}{unit} | {span} | {target} | {line.met} |")
        return "\n".join(out)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON types only."""
        return {"lines": [line.to_dict() for line in self]}

    @classmethod
    def from_dict(cls, found: Sequence[Mapping[str, Any]]) -> Lines:
        """Returns the lines of to_dict(), to be shown."""
        return cls(Line(kind="", workload=Workload("", "", 0), **one) for one in found)


def run_all(measured: Sequence[Line], runs: int, servers: Servers) -> None:
    """Runs all lines in turn, several times, so that a slow moment of the machine does not affect one line alone."""
    for number in range(runs):
        for line in measured:
            if line.missing or len(line.runs) > number:
                continue  # it shares the runs of the line before
            print(f"bench: run {number + 1} of {runs}: {line.name}", flush=True)
            run(line, servers)
