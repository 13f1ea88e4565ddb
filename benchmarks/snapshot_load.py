"""The cost of a snapshot for the stream: throughput of a stream that always has more, latency of one that seldom has.

A chunk of a table is published once the stream has reached the end of the binlog at the time when the chunk was read.
So a binlog that was written before is useless here: all of it would be published first, and the snapshot after it. The
changes must be written while the two run. MySQL can't store rows on one core as fast as headrace reads them on another;
but it can log them: the streamed table has the engine BLACKHOLE, which stores no row, and whose events in the binlog
are those of any other table. It has a JSON column, which costs headrace more than the server. The writer continues, a
transaction at a time, as soon as fewer than a certain number of its transactions are unconfirmed. So the stream always
has more to read, and is never far behind, as with a source whose rate is close to the daemon's.

The figures show whether that was so: `starved` is the share of checks at which all that was written was confirmed. If
it is not near 0, the rate is the writer's, and the ratio says too little. `busy` is the share of the time that the
process had the CPU; with nothing else on its core, and with a stream that always has more, it is near 1."""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.destinations import Running, running
from benchmarks.workloads import SCHEMA
from headrace.adapters.null.sink import NullSink
from headrace.destination.status import DestinationStatus
from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.snapshot.commands import SnapshotCommand
from headrace.tasks import alongside

_ALONE_SECONDS = 5.0
"""Seconds that the stream runs alone, before the snapshot and again after it."""
_QUIET_SECONDS = 10.0
"""The same for the stream of few changes, once."""
_RESYNC_SECONDS = 60.0
"""Maximum seconds for which the snapshot is measured."""
_LIMIT_SECONDS = 240.0
_WINDOW = 16
"""Transactions that are written and unconfirmed: a tenth of a second of the stream. A chunk waits about this long, so
more would delay the snapshot, and with fewer the stream would wait for the writer."""
_REPORTED = 0.002
_AT = re.compile(rb'"at_us":"?(\d+)')
_SMALL = 1000
"""Maximum bytes of a message of the streamed table; those of the snapshot are larger."""


@dataclass(slots=True)
class _Writer:
    """The two ends of a writer, and how many times the stream that reads it was checked, and had nothing more to
    read."""

    orders: int
    answers: int
    written: int = 0
    checks: int = 0
    starved: int = 0

    async def feed(self, status: DestinationStatus) -> None:
        """Makes the writer continue, so that the stream never reaches its end."""
        reported, before = 0, status.published.transactions
        while True:
            confirmed = status.published.transactions - before
            if (due := _WINDOW - reported + confirmed) > 0:
                os.write(self.orders, b"." * due)
                reported += due
            self.count()
            self.checks += 1
            self.starved += self.written <= confirmed
            await asyncio.sleep(_REPORTED)

    def count(self) -> None:
        """Counts what was written."""
        with suppress(BlockingIOError):
            self.written += len(os.read(self.answers, 1 << 16))


@contextmanager
def _writer(job: dict[str, Any], rate: float) -> Iterator[_Writer]:
    """Yields a process that writes the job's statements, on the cores that are not measured."""
    orders = {"connection": job["root"], "statements": job["statements"], "rate": rate}
    command = [sys.executable, "-m", "benchmarks.writer", json.dumps(orders)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdin is not None
        assert one.stdout is not None
        if job["other_cores"]:
            os.sched_setaffinity(one.pid, job["other_cores"])
        os.set_blocking(one.stdout.fileno(), False)
        try:
            yield _Writer(one.stdin.fileno(), one.stdout.fileno())
        finally:
            one.stdin.close()
            one.wait()  # before the pipe of its answers is closed, which it may still write to


@dataclass(frozen=True, slots=True)
class _Moment:
    """The counters at one time."""

    clock: float
    cpu: float
    transactions: int
    checks: int
    starved: int

    @classmethod
    def of(cls, run: Running, writer: _Writer) -> _Moment:
        """Returns the present counters."""
        times = time.perf_counter(), time.process_time()
        return cls(*times, run.status.published.transactions, writer.checks, writer.starved)


async def stream(job: dict[str, Any]) -> dict[str, float]:
    """Returns rows per second of a stream that always has more: alone, and during a resync of another table. Rows of
    the stream are counted by its transactions, which all have the same number of them."""
    each = job["rows_per_transaction"]
    with _writer(job, 0) as writer:
        async with running(job) as run, asyncio.timeout(_LIMIT_SECONDS):
            await run.until(lambda: bool(run.status.holding.epoch))
            async with alongside({"feed": writer.feed(run.status)}):
                await run.until(lambda: run.status.published.transactions >= 10 * _WINDOW)
                moments = [_Moment.of(run, writer)]
                await _pass(run, _ALONE_SECONDS)
                moments.append(_Moment.of(run, writer))
                given = await _resync(run, job, each)
                moments.append(_Moment.of(run, writer))
                await _pass(run, _ALONE_SECONDS)
                moments.append(_Moment.of(run, writer))
    before, during, after = pairwise(moments)
    spans = (before, after), (during,)
    alone, with_snapshot = (each * _share("transactions", "clock", some) for some in spans)
    alone_cpu, with_snapshot_cpu = (each * _share("transactions", "cpu", some) for some in spans)
    return {
        "rows_per_second": alone,
        "during_rows_per_second": with_snapshot,
        "ratio": with_snapshot / alone,
        "rows_per_cpu_second": alone_cpu,
        "during_rows_per_cpu_second": with_snapshot_cpu,
        "cpu_ratio": with_snapshot_cpu / alone_cpu,
        "snapshot_rows_per_second": given / (during[1].clock - during[0].clock),
        "busy": _share("cpu", "clock", (before, after)),
        "during_busy": _share("cpu", "clock", (during,)),
        "starved": _share("starved", "checks", (before, after)),
        "during_starved": _share("starved", "checks", (during,)),
    }


def _share(part: str, whole: str, spans: Iterable[tuple[_Moment, _Moment]]) -> float:
    def grown(name: str) -> float:
        return float(sum(getattr(last, name) - getattr(first, name) for first, last in spans))

    return grown(part) / grown(whole)


async def _pass(run: Running, seconds: float) -> None:
    end = time.monotonic() + seconds
    await run.until(lambda: time.monotonic() >= end)


async def _resync(run: Running, job: dict[str, Any], each: int) -> int:
    """Waits until all rows of the table are confirmed, or for a minute; returns how many were. Those of the stream are
    `each` a transaction."""
    status, end = run.status, time.monotonic() + _RESYNC_SECONDS

    def others() -> int:
        return status.published.rows - each * status.published.transactions

    async def ask() -> None:
        await run.operator.snapshot(SnapshotCommand("resync", tables=f"{SCHEMA}\\.{job['table']}"))

    before = others()
    async with alongside({"command": ask()}) as tasks:
        await run.until(lambda: others() - before >= job["rows"] or time.monotonic() > end or _failed(tasks["command"]))
        given = others() - before
        await tasks["command"]
    return given


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and task.exception() is not None


class _Noting(NullSink):
    """Records for each row of the streamed table how long after its statement it was confirmed."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(lease)
        self.milliseconds: list[float] = []

    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        done = await super().publish(batch)
        small = [value for value in batch.values if value is not None and len(value) < _SMALL]
        if begun := [int(match[1]) for value in small if (match := _AT.search(value))]:
            done.add_done_callback(lambda _: self._note(begun))
        return done

    def _note(self, begun: list[int]) -> None:
        now = time.time_ns() // 1000
        self.milliseconds += [(now - one) / 1000 for one in begun]


async def latency(job: dict[str, Any]) -> dict[str, float]:
    """Returns milliseconds from a statement of one row, its commit included, until the row is confirmed: the stream
    alone, and during a resync. Rows come at a steady rate, and contain when the server began their statement."""
    sinks: list[_Noting] = []

    def new_sink(lease: Lease) -> _Noting:
        sinks.append(_Noting(lease))
        return sinks[-1]

    with _writer(job, job["rate"]):
        async with running(job, new_sink) as run, asyncio.timeout(_LIMIT_SECONDS):
            await run.until(lambda: run.status.published.rows >= job["rate"])
            noted = sinks[-1].milliseconds
            first = len(noted)
            await _pass(run, _QUIET_SECONDS)
            last = len(noted)
            began = time.perf_counter()
            given = await _resync(run, job, 1)
            took, end = time.perf_counter() - began, len(noted)
    return {
        **_quantiles("", noted[first:last]),
        **_quantiles("during_", noted[last:end]),
        "snapshot_rows_per_second": given / took,
    }


def _quantiles(name: str, milliseconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(milliseconds, n=100)
    return {f"{name}p50_ms": cuts[49], f"{name}p99_ms": cuts[98], f"{name}most_ms": max(milliseconds)}
