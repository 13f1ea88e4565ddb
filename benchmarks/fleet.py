"""The cost of a daemon that waits, or has many destinations: latency, idle, many in catch-up, a first start."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory

from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.daemon import Sample, running, used
from benchmarks.race import EXACTLY_ONCE, KAFKA, NULL, Servers, Way, destination, reported, topic
from benchmarks.report import Table
from benchmarks.workloads import SCHEMA, Filler, Workload
from headrace.model import POS_SHIFT

RATE = 500
"""Changes a second whose latency is measured."""
IDLE, MANY = 50, 20
"""Destinations."""
_WARM = 3.0
"""Seconds before anything is counted."""
_POLL = 0.5


def latency(servers: Servers, runs: int, seconds: float) -> Table:
    """Returns milliseconds from a commit until the record is read back, at a steady rate of one-row transactions."""
    table = Table(f"latency at {RATE} changes/s, {seconds:.0f} s")
    filler = Filler(servers.mysql)
    ways = [(way, filler.steady(f"steady{number}")) for number, way in enumerate((KAFKA, EXACTLY_ONCE))]
    filler.close()
    for run in range(runs):
        for number, (way, statements) in enumerate(ways):
            name = "at least once" if way is KAFKA else way.name
            reported(run, runs, f"latency, {name}")
            table.add(name, _latency(servers, f"steady{number}", way, statements, seconds))
    return table


def _latency(servers: Servers, table: str, way: Way, statements: list[str], seconds: float) -> dict[str, float]:
    with topic(servers) as name:
        made = destination(servers, name, rf"{SCHEMA}\.{table}", "latest", way)
        with running({name: made}) as daemon:
            daemon.until(lambda now: now.streaming > 0, _POLL)
            with _written(servers, statements, RATE):
                daemon.until(lambda now: now.rows > RATE * _WARM)
                before = daemon.sample()
                delays = asyncio.run(_read_back(servers.kafka.bootstrap_servers, name, seconds))
                behind = daemon.sample()
    changes = behind.rows - before.rows
    cuts = statistics.quantiles(delays, n=100)
    return {
        "p50_ms": cuts[49],
        "p99_ms": cuts[98],
        "changes_per_second": changes / (behind.clock - before.clock),
        "change_us": (behind.cpu - before.cpu) * 1e6 / changes,
    }


@contextmanager
def _written(servers: Servers, statements: list[str], rate: float) -> Iterator[None]:
    """Runs statements in turn, this many per second, in a separate process."""
    job = {"connection": servers.mysql.connection("root"), "statements": statements, "rate": rate}
    command = [sys.executable, "-m", "benchmarks.writer", json.dumps(job)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as writer:
        try:
            yield
        finally:
            assert writer.stdin is not None
            writer.stdin.close()


async def _read_back(brokers: str, name: str, seconds: float) -> list[float]:
    """Returns milliseconds between each message's commit, which its number contains, and when a consumer had it."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=brokers,
        enable_auto_commit=False,
        auto_offset_reset="latest",
        isolation_level="read_committed",
    )
    await consumer.start()
    delays: list[float] = []
    try:
        consumer.assign([TopicPartition(name, 0)])
        await consumer.seek_to_end()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = await consumer.getmany(timeout_ms=100)
            now = time.time_ns() // 1000
            for records in found.values():
                for record in records:
                    pos = int(dict(record.headers)["headrace-pos"])
                    delays.append((now - (pos >> POS_SHIFT)) / 1000)
    finally:
        await consumer.stop()
    return delays


def idle(servers: Servers, runs: int, seconds: float) -> Table:
    """Measures destinations that have nothing to do: CPU as a share of one core, and memory."""
    table = Table(f"{IDLE} idle destinations, {seconds:.0f} s")
    for number in range(runs):
        reported(number, runs, table.title)
        with topic(servers) as name:
            made = {
                f"{name}-{one}": destination(servers, name, rf"{SCHEMA}\.idle{one}", "latest", KAFKA)
                for one in range(IDLE)
            }
            with running(made) as daemon:
                daemon.until(lambda now: now.streaming == IDLE, _POLL)
                time.sleep(_WARM)
                before = daemon.sample()
                time.sleep(seconds)
                behind = daemon.sample()
        share = 100 * (behind.cpu - before.cpu) / (behind.clock - before.clock)
        table.add("into Kafka", {"core_percent": share, "memory_mb": daemon.peak_mb})
    return table


def many(servers: Servers, workload: Workload, runs: int, seconds: float) -> Table:
    """Measures destinations that all have W1 to read, in one process: rows per second of all, CPU of the daemon and of
    the source, and memory, until the first is at its end or for some seconds. For comparison the same destinations with
    an archive, which they read instead of the source."""
    table = Table(f"{MANY} destinations in catch-up, at most {seconds:.0f} s")
    with TemporaryDirectory(dir=servers.cache.root) as folder:
        _archive(servers, workload, folder)
        for number in range(runs):
            for name, archive in (("one process", None), ("one process, with an archive", {"path": folder})):
                reported(number, runs, name)
                table.add(name, _many(servers, workload, seconds, archive))
    return table


def _archive(servers: Servers, workload: Workload, folder: str) -> None:
    """Archives all of a workload."""
    made = destination(servers, "archived", rf"{SCHEMA}\.none", "latest", NULL) | {"archive": {"path": folder}}
    with running({"archived": made}) as daemon:

        def done(_: Sample) -> bool:
            found = daemon.destinations().get("archived", {}).get("archive") or {}
            return (found.get("file") or "") >= workload.next_file

        daemon.until(done, _POLL)


def _many(
    servers: Servers, workload: Workload, seconds: float, archive: Mapping[str, object] | None
) -> dict[str, float]:
    with ExitStack() as topics, running(_catch_up(servers, workload, topics, archive)) as daemon:
        first = daemon.until(lambda now: now.least > 0, _POLL)
        source, _ = used(servers.mysql.pid)

        def over(now: Sample, end: float = first.clock + seconds) -> bool:
            return now.clock > end or now.least >= workload.rows

        last = daemon.until(over, _POLL)
        source_used = used(servers.mysql.pid)[0] - source
    rows = last.rows - first.rows
    if not rows:
        raise SystemExit("bench: all rows were published before anything could be measured: use a smaller --scale")
    return {
        "rows_per_second": rows / (last.clock - first.clock),
        "cpu_us": (last.cpu - first.cpu) * 1e6 / rows,
        "source_us": source_used * 1e6 / rows,
        "memory_mb": daemon.peak_mb,
    }


def _catch_up(
    servers: Servers, workload: Workload, topics: ExitStack, archive: Mapping[str, object] | None
) -> dict[str, dict[str, dict[str, object]]]:
    names = [topics.enter_context(topic(servers)) for _ in range(MANY)]
    tables, start = rf"{SCHEMA}\.{workload.table}", f"{workload.file}:4"
    more = {} if archive is None else {"archive": dict(archive)}
    return {name: destination(servers, name, tables, start, KAFKA) | more for name in names}


def first_start(servers: Servers, runs: int, size: int) -> Table:
    """Measures a daemon without a position that begins at an old one, followed by this many bytes of binlog: seconds
    from the process's start, and what the server has sent, until the first row is published. For comparison the same
    with almost nothing after it, which is the time of the process's own start."""
    table = Table("first start")
    filler = Filler(servers.mysql)
    _start_at(servers, table, "nothing after the start", filler.w1(5_600, "near"), runs)
    print("bench: writing the old binlog", flush=True)
    _start_at(servers, table, f"{size / 1e9:.2g} GB after the start", filler.old(size), runs)
    filler.close()
    return table


def _start_at(servers: Servers, table: Table, name: str, workload: Workload, runs: int) -> None:
    for number in range(runs):
        reported(number, runs, f"first start, {name}")
        with topic(servers) as made:
            section = destination(servers, made, rf"{SCHEMA}\.{workload.table}", f"{workload.file}:4", KAFKA)
            sent, begun = _sent(servers), time.monotonic()
            with running({made: section}) as daemon:
                took = daemon.until(lambda now: now.rows > 0, 0.02).clock - begun
                table.add(name, {"seconds": took, "read_mb": (_sent(servers) - sent) / 1e6})


def _sent(servers: Servers) -> int:
    """Returns the bytes that the server has sent to all clients."""
    return int(servers.mysql.sql("SHOW GLOBAL STATUS LIKE 'Bytes_sent'")[0][1])
