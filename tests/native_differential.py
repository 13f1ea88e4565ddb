"""Native code against Python: the same binlogs through both, and all that comes out has to be the same.

usage: python -m tests.native_differential made|damaged [INPUTS] [SEED]
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

from headrace.cli.wiring import new_format
from headrace.errors import HeadraceError
from headrace.model import Position, TableRows
from headrace.mysql.decoder import Decoder
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.schema.history import SchemaHistory
from headrace.native import find
from headrace.pipeline.message_builder import make_builder
from headrace.ports.source import Receiver
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings
from tests.configured import destination_of
from tests.fuzz import Mutator
from tests.random_tables import stream

_MESSAGES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {"rows_per_message": 1},
    {"rows_per_message": 3},
    {"binary": "hex", "enum": "index"},
    {"binary": "latin1"},
    {"compat": "canal"},
    {"time_zone": "Asia/Shanghai"},
    {"format": "debezium"},
    {"format": "debezium"},
    {"format": "debezium", "debezium": {"schemas": True, "tombstones": True}},
    {"format": "debezium", "debezium": {"decimal": "string", "bigint_unsigned": "long", "time_precision": "adaptive"}},
    {"format": "debezium", "debezium": {"decimal": "double", "time_precision": "connect", "binary": "hex"}},
    {"format": "debezium", "debezium": {"binary": "base64-url-safe"}},
)
_ROUTES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"dynamic_topic": "one:shop\\.t1,two:shop\\.t2"},
    {"partitions": 4, "partition_hash": ".*\\..*:$pk$"},
    {"partitions": 3, "partition_hash": ".*\\..*:c1"},
    {"partitions": 3, "partition_hash": ".*\\..*:c1^c2"},
    {"partitions": 4, "partition_hash": ".*\\..*:$pk$", "hash": "canal"},
)
_FILTERS: tuple[dict[str, Any], ...] = ({}, {}, {}, {"exclude": "shop\\.t1"}, {"exclude_columns": "shop\\.t0:c1/c2"})
_SINKS: tuple[dict[str, Any], ...] = ({"type": "kafka", "bootstrap_servers": "k:9092"}, {"type": "jsonl", "path": "-"})


def settings(rng: random.Random) -> DestinationSettings:
    """A destination's settings at random."""
    sink, message = rng.choice(_SINKS), rng.choice(_MESSAGES)
    return destination_of(
        {
            "name": "shop",
            "source": {"host": "h", "user": "u", "password": "p"},
            "route": {"topic": "shop", **rng.choice(_ROUTES)},
            "message": message,
            "filter": rng.choice(_FILTERS),
            "sink": sink,
        }
    )


def outcome(
    data: bytes, config: DestinationSettings, native: Any, sizes: Sequence[int], *, mariadb: bool, takes: int
) -> list[Any]:
    """All that comes of a binlog that is fed in pieces of these sizes: messages, positions, counts, and the error."""
    builder = make_builder(config, new_format(config), "server", 5, native)
    history = SchemaHistory(lambda *_: True, mariadb=mariadb, version="9.7.4", lower_case_table_names=0)
    options = DecoderOptions.of(config, DaemonSettings())
    decoder = Decoder(
        DumpStart(Position("server", "b.000001", 4), checksums=True),
        Receiver(rows=builder.emit, statement=builder.emit_schema, native=builder.native),
        captures=builder.captures,
        history=history,
        options=options,
    )
    told: list[Any] = []

    def take() -> None:
        for batch in builder.take(decoder.position(), 0.0):
            told.append((batch.topic, batch.partition, batch.rows, batch.size, batch.commit_time_us, batch.barrier))
            told.extend(zip(batch.values, batch.headers, batch.keys or [None] * len(batch.values), strict=True))
            totals: dict[tuple[str, str], TableRows] = {}
            for one in batch.tables:
                totals.setdefault((one.schema, one.table), TableRows(one.schema, one.table)).add(one)
            told.append(sorted((*name, of.inserted, of.updated, of.deleted) for name, of in totals.items()))

    try:
        rest, at, turn = b"", 0, 0
        while at < len(data):
            step = sizes[turn % len(sizes)]
            turn += 1
            rest, at = rest + data[at : at + step], at + step
            done, more = 0, True
            while more:
                builder._now_ms = 1_800_000_000_000
                if builder.native is not None:
                    builder.native.now_ms = builder._now_ms
                done, more = decoder.feed(rest, done, lambda: False)
                if decoder.described.wanted is not None:
                    decoder.described.learned("it was never read")
                    more = True
            rest = rest[done:]
            told.append((str(decoder.position().to_dict()), decoder.cutter.events, decoder.transactions.count))
            if takes and not turn % takes:
                take()
        told.append(decoder.cutter.need)
    except HeadraceError as error:
        told.append(("error", str(error), error.remedy, decoder.cutter.whole))
    cursor = decoder.cursor
    told.append((str(decoder.position().to_dict()), cursor.file, cursor.end, cursor.start, decoder.transactions.count))
    take()
    decoder.close()
    return told


def compare(data: bytes, rng: random.Random, *, mariadb: bool = False) -> int:
    """Raises AssertionError where both ways differ; how many messages were made."""
    config = settings(rng)
    sizes = [rng.choice((len(data), 4096, 500, 37, 1 + rng.randrange(2000))) for _ in range(5)]
    takes = rng.choice((0, 0, 1, 3))
    python = outcome(data, config, None, sizes, mariadb=mariadb, takes=takes)
    native = outcome(data, config, find().module, sizes, mariadb=mariadb, takes=takes)
    for i, (a, b) in enumerate(zip(python, native, strict=False)):
        assert a == b, f"entry {i}\npython {a!r}\nnative {b!r}\n{config!r}\n{sizes}"
    assert len(python) == len(native), (python[len(native) :], native[len(python) :])
    return sum(1 for one in python if isinstance(one, tuple) and len(one) == 3 and isinstance(one[1], list))


def made(inputs: int, seed: int) -> int:
    """Compares so many random binlogs; messages in all."""
    total = 0
    for number in range(inputs):
        rng = random.Random(f"{seed} {number}")
        data = stream(rng, broken=rng.choice((0.0, 0.0, 0.002, 0.05)))
        try:
            total += compare(data, rng)
        except Exception as error:
            raise AssertionError(f"input {number} of seed {seed}: {error}") from error
    return total


def damaged(inputs: int, seed: int) -> int:
    """The same with recorded binlogs that are damaged."""
    mutator, total = Mutator(random.Random(seed)), 0
    for number in range(inputs):
        data = mutator.stream()
        try:
            total += compare(data, random.Random(f"{seed} {number}"), mariadb=b"MariaDB" in data[:120])
        except Exception as error:
            raise AssertionError(f"input {number} of seed {seed}: {error}") from error
    return total


def main() -> None:
    """The command line."""
    run = made if sys.argv[1] == "made" else damaged
    inputs, seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1000, int(sys.argv[3]) if len(sys.argv) > 3 else 1
    print(run(inputs, seed), "messages")


if __name__ == "__main__":
    main()
