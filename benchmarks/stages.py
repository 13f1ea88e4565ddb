"""The CPU of a row by stage: the same recorded binlog through more and more of the daemon's components, in one process.

Each *cut* runs the product's own components up to a seam and drops their result there. A stage costs what its cut takes
more than the one before it. Other work of the machine can only add to a run, so the minimum of several counts: of every
second round, and of the others, which makes two figures whose difference is the error.

A seam is a call in Python from one component to the next, so the stages are those of Python alone: native code does the
work of several components at once. The first round, which is not measured, counts what reaches each seam, and a stage
whose seam nothing reaches is shown as one with the next."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from aiokafka.record.util import calc_crc32c

from benchmarks.destinations import settings_of
from benchmarks.race import PYTHON, YARDSTICK, Entry, race
from benchmarks.report import Table
from benchmarks.yardstick import MOST_ROWS
from headrace.adapters.kafka import producer as producers
from headrace.cli.run import spare_collector
from headrace.cli.wiring import new_format
from headrace.model import MessageBatch, Position, RowsChange
from headrace.mysql.decoder import Decoder
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.values.column_types import Field
from headrace.mysql.values.jsonb import json_text
from headrace.mysql.values.rowcode import RowDecoder, make_decoder
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.pipeline.message_builder import make_builder
from headrace.pipeline.projection import Projections
from headrace.ports.format import ValueFormat
from headrace.ports.source import Receiver
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings

ROUNDS = 8
REST = "receiving, loop, queue, sending, confirming"
TOTAL = "the daemon as a whole, into Kafka, Python alone"
_BYTES = 16 << 20
"""Size of a workload's binlog: about 50,000 rows of W1 and 25,000 of W2L."""
_CHUNK = 64 << 10
"""Bytes of one chunk."""


@dataclass(slots=True)
class Seam:
    """What a cut drops, and what follows each chunk. `counted` is set in the first round only."""

    settings: DestinationSettings
    position: Position
    patches: ExitStack
    counting: bool
    counted: int = 0
    receive: Callable[[RowsChange], None] = lambda change: None
    full: Callable[[], bool] = lambda: False
    begin: Callable[[], None] = lambda: None
    take: Callable[[], None] = lambda: None
    more: dict[str, Any] = field(default_factory=dict)

    def count(self, *anything: Any) -> None:
        """Counts a call of the seam."""
        self.counted += 1

    @property
    def drop(self) -> Callable[..., None]:
        """Returns a function that drops its arguments, and counts if requested."""
        return self.count if self.counting else _nothing

    def replace(self, name: str, by: Any) -> None:
        """Replaces an attribute until this run's end."""
        self.patches.enter_context(patch(name, by))


def _nothing(*anything: Any) -> None:
    """Drops its arguments."""


def _headers(seam: Seam) -> None:
    drop = seam.drop
    seam.replace("headrace.mysql.rows.RowsReader.handler", lambda reader, kind: drop)


def _decoded(keep: Callable[[Field], bool]) -> Callable[[Seam], None]:
    """Decodes rows, but only those fields that `keep` selects as the product does."""

    def cut(seam: Seam) -> None:
        def make(fields: Sequence[Field], *images: int, visible: int | None = None) -> RowDecoder:
            kept = [one if keep(one) else replace(one, post=None) for one in fields]
            decode = make_decoder(kept, *images, visible=visible)

            def counted(data: bytes, at: int, stop: int) -> list[Any]:
                seam.count()
                return decode(data, at, stop)

            return counted if seam.counting else decode

        seam.replace("headrace.mysql.rows.make_decoder", make)

    return cut


def _messages(seam: Seam) -> None:
    made = new_format(seam.settings)
    assert isinstance(made, ValueFormat)
    projections, encode, now = Projections(seam.settings), made.encode, time.time_ns() // 1_000_000

    def receive(change: RowsChange) -> None:
        encode(projections.of(change.schema).whole(change), now)
        if seam.counting:
            seam.count()

    seam.receive = receive


def _batches(seam: Seam) -> None:
    _build(seam, seam.drop)


def _records(seam: Seam) -> None:
    producer = seam.more["producer"] = producers.make_producer(seam.settings.sink)  # type: ignore[arg-type]
    zeros = memoryview(bytes(4 << 20))

    def build(batch: MessageBatch) -> None:
        for part in producers.build_batches(producer, batch):
            calc_crc32c(zeros[: part.size()])
        if seam.counting:
            seam.count()

    _build(seam, build)


def _build(seam: Seam, use: Callable[[MessageBatch], None]) -> None:
    builder = make_builder(seam.settings, new_format(seam.settings), seam.position.server_uuid, 1)
    seam.receive, seam.full, seam.begin = builder.emit, builder.full, builder.tick

    def take() -> None:
        for batch in builder.take(seam.position, 0.0):
            use(batch)

    seam.take = take


CUTS: dict[str, Callable[[Seam], None]] = {
    "joining, CRC, cutting, GTID, BEGIN, TABLE_MAP, XID": _headers,
    "rows into values": _decoded(lambda one: one.post is None),
    "values to text": _decoded(lambda one: one.post is not json_text),
    "JSON to text": _decoded(lambda one: True),
    "Canal's message": _messages,
    "ids, headers, batches": _batches,
    "record batches, CRC32C": _records,
}
"""By the stage that ends there."""


async def seconds(cut: Callable[[Seam], None], job: dict[str, Any], data: bytes, counting: bool) -> tuple[float, int]:
    """Runs once up to a cut; returns CPU time, and the count at its seam if requested."""
    settings = settings_of(job)
    position = Position(job["server_uuid"], job["file"], 4)
    with ExitStack() as patches:
        seam = Seam(settings, position, patches, counting)
        cut(seam)
        decoder = Decoder(
            DumpStart(position, job["checksums"]),
            Receiver(rows=seam.receive),
            captures=Projections(settings).captures,
            options=DecoderOptions.of(settings, DaemonSettings()),
        )
        used = feed(decoder, seam, data)
        decoder.close()
        if "producer" in seam.more:
            await producers.close(seam.more["producer"])
    return used, seam.counted


def feed(decoder: Decoder, seam: Seam, data: bytes) -> float:
    """Feeds all of it to the decoder, in chunks as they might come; returns seconds of CPU."""
    begun, view, left, at = time.process_time(), memoryview(data), b"", 0
    for start in range(0, len(data), _CHUNK):
        left, at, more = b"".join((left[at:], view[start : start + _CHUNK])), 0, True
        while more:
            seam.begin()
            at, more = decoder.feed(left, at, seam.full)
            seam.take()
    assert decoder.described.wanted is None, "the binlog was not written with binlog_row_metadata = FULL"
    return time.process_time() - begun


async def measure(job: dict[str, Any], data: bytes, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Returns microseconds of CPU a row of each stage, two figures each. Stages that are one have one name."""
    counts = {name: (await seconds(cut, job, data, True))[1] for name, cut in CUTS.items()}
    # Without its counter a cut for rows can't report how many they were.
    total = await _count_rows(job, data)
    cuts = {name: CUTS[name] for name in CUTS if counts[name]}
    names, waiting = list[str](), list[str]()
    for name in CUTS:
        waiting.append(name)
        if name in cuts:
            names.append("; ".join(waiting))
            waiting = []
    times = [[(await seconds(cut, job, data, False))[0] for cut in cuts.values()] for _ in range(rounds)]
    figures: dict[str, list[float]] = {name: [] for name in names}
    for half in (times[::2], times[1::2]):
        for name, (before, behind) in zip(names, pairwise([0.0, *map(min, zip(*half, strict=True))]), strict=True):
            figures[name].append((behind - before) * 1e6 / total)
    return figures


async def _count_rows(job: dict[str, Any], data: bytes) -> int:
    counted = 0

    def cut(seam: Seam) -> None:
        builder = make_builder(seam.settings, new_format(seam.settings), seam.position.server_uuid, 1)
        seam.receive = builder.emit

        def take() -> None:
            nonlocal counted
            counted += sum(batch.rows for batch in builder.take(seam.position, 0.0))

        seam.take = take

    await seconds(cut, job, data, False)
    return counted


async def record(job: dict[str, Any], size: int) -> bytes:
    """Returns the first bytes of a dump as the server sends it, with packet headers."""
    settings = settings_of(job).source
    connection = await SourceConnection.open(address_of(settings))
    variables = await connection.load_variables()
    job |= {"server_uuid": variables["server_uuid"], "checksums": connection.writes_checksums}
    await connection.register(settings.server_id, 5)
    stream = await connection.dump(settings.server_id, file=job["file"], offset=4, gtids=None, buffer=2 << 20)
    data = bytearray()
    while len(data) < size:
        data += await stream.read(b"", 1, 30)
    await stream.close()
    await connection.close()
    return bytes(data[:size])


def split(chosen: list[Entry], table: Table, runs: int) -> Table:
    """Measures the stages of W1 and W2L into Kafka by Python alone. `table` has the race's results;
    missing ones are run."""
    stages = Table("stage, us of CPU a row")
    with TemporaryDirectory(prefix="bench-") as folder:
        for entry in (one for one in chosen if one.way is PYTHON and one.workload.name in MOST_ROWS):
            name, servers = entry.workload.name, entry.servers
            key = f"{name}_us"
            if entry.name not in table.rows:
                table.rows |= race([entry], runs).rows
            print(f"bench: {name.upper()} by stage", flush=True)
            sizes = {row[0]: int(row[1]) for row in servers.mysql.sql("SHOW BINARY LOGS")}
            job = {"source": servers.source, **entry.workload.to_dict(), "heartbeat": False}
            job |= {"size": min(_BYTES, sizes[entry.workload.file]), "dump": str(Path(folder) / name)}
            job |= {"kafka": servers.kafka.bootstrap_servers}
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.stages", json.dumps(job)], capture_output=True, text=True
            )
            if done.returncode:
                raise SystemExit(f"bench: the stages of {name} failed:\n{done.stderr[-3000:]}")
            for stage, figures in json.loads(done.stdout.splitlines()[-1]).items():
                stages.rows.setdefault(stage, {})[key] = figures
            known = sum(stages.median(stage, key) for stage in stages.rows if key in stages.rows[stage])
            whole = table.rows[entry.name]["cpu_us"]
            stages.rows.setdefault(REST, {})[key] = [one - known for one in whole]
            stages.rows.setdefault(TOTAL, {})[key] = whole
            stages.rows.setdefault(YARDSTICK, {})[key] = table.rows[entry.yardstick]["cpu_us"]
    return stages


async def main() -> None:
    """Reads the job as JSON from the command line; prints the figures as JSON."""
    job = json.loads(sys.argv[1])
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    spare_collector()
    print(json.dumps(await measure(job, await record(job, job["size"]))))


if __name__ == "__main__":
    asyncio.run(main())
