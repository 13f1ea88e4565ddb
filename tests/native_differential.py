"""The same binlogs through Python and through native code: all that comes out has to be the same.

usage: python -m tests.native_differential made|damaged [INPUTS] [SEED]
"""

from __future__ import annotations

import random
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

from headrace.adapters.rabbitmq.frames import Encoder
from headrace.cli.wiring import new_format
from headrace.errors import HeadraceError
from headrace.model import MessageBatch, Position, TableRows
from headrace.mysql.decoder import Decoder
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.schema.history import SchemaHistory
from headrace.native import find
from headrace.pipeline import message_builder
from headrace.pipeline.message_builder import make_builder
from headrace.ports.source import Receiver
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings
from tests.configured import destination_of
from tests.fuzz import Mutator
from tests.made_binlog import FULL
from tests.random_tables import stream

_ENTRIES: tuple[dict[str, Any], ...] = (
    {"format": "canal-protobuf"},
    {"format": "canal-protobuf", "rows_per_message": 1},
    {"format": "canal-protobuf", "rows_per_message": 3, "compat": "none", "binary": "hex"},
    {"format": "canal-protobuf", "binary": "base64", "enum": "label"},
)
_UNWRAPPED: tuple[dict[str, Any], ...] = (
    {},
    {"deletes": "drop", "schemas": False, "add_fields": ["op", "ts_ns", "table", "source.ts_ms", "source.gtid"]},
    {"deletes": "rewrite", "add_fields": ["source.db", "source.row", "source.thread", "source.file", "source.pos"]},
    {"deletes": "rewrite-with-tombstone", "add_fields": ["ts_ms", "ts_us", "source.ts_us", "source.ts_ns"]},
    {"deletes": "tombstone", "add_fields": ["source.snapshot", "source.server_id", "source.query", "source.name"]},
)
_MESSAGES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {"rows_per_message": 1},
    {"rows_per_message": 3},
    {"binary": "hex", "enum": "index"},
    {"binary": "latin1"},
    {"compat": "canal", "old": "uniform"},
    {"old": "uniform", "rows_per_message": 2},
    {"key": ["$pk$"]},
    {"key": ["c1"], "compat": "canal"},
    {"time_zone": "Asia/Shanghai"},
    {"time_zone": "America/St_Johns"},
    {"format": "debezium"},
    {"format": "debezium"},
    {"format": "debezium", "debezium": {"schemas": True, "tombstones": True}},
    {"format": "debezium", "debezium": {"decimal": "string", "bigint_unsigned": "long", "time_precision": "adaptive"}},
    {"format": "debezium", "debezium": {"decimal": "double", "time_precision": "connect", "binary": "hex"}},
    {"format": "debezium", "debezium": {"binary": "base64-url-safe"}},
    *({"format": "debezium", "debezium": {"unwrap": True, **more}} for more in _UNWRAPPED),
    {"format": "maxwell"},
    {"format": "maxwell"},
    {"format": "maxwell", "fields": ["gtid", "primary_key", "server_id"]},
    {"format": "maxwell", "fields": ["position", "thread_id", "primary_key_columns"]},
    *_ENTRIES,
)
_ROUTES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"dynamic_topic": "one:shop\\.t1,two:shop\\.t2"},
    {"partitions": 4, "partition_hash": ".*\\..*:$pk$"},
    {"partitions": 3, "partition_hash": ".*\\..*:c1"},
    {"partitions": 3, "partition_hash": ".*\\..*:c1^c2"},
    {"partitions": 4, "partition_hash": ".*\\..*:$pk$", "hash": "canal"},
    {"partitions": 7, "partition_hash": ".*\\..*:c1^c2", "hash": "canal", "canal_hash_database": False},
    {"partitions": 8, "partition_hash": "shop\\.t0:$pk$,shop\\.t1:c1,shop\\.t2", "ddl_partition": "all"},
    {
        "dynamic_topic": "x_{table}:shop\\..*",
        "dynamic_topic_partitions": "x_t1:7",
        "partitions": 3,
        "partition_hash": ".*\\..*:$pk$",
    },
)
_FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {"exclude": "shop\\.t1"},
    {"exclude_columns": "shop\\.t0:c1/c2"},
    {"ddl": False},
    {"dml_queries": True},
    {"table_errors": "skip"},
    {"transactions": True},
    {"rows": False},
    {"include_columns": "shop\\.t1:c1"},
    {"operations": ["insert", "update"]},
    {"operations": ["update", "delete"], "unchanged_updates": "skip"},
    {"unchanged_updates": "skip", "exclude_columns": "shop\\.t0:c1/c2,shop\\.t1:c2/c3"},
    {"where": [{"tables": "shop\\.t1", "rows": "c1 is not null"}]},
    {"where": [{"tables": ".*", "rows": "c1 is null or c2 is not null"}], "unchanged_updates": "skip"},
    {"where": [{"tables": ".*", "rows": "not c2 is null"}], "operations": ["insert", "update"]},
    {"mask": [{"tables": "shop\\.t0", "columns": ["c1", "c3"], "mask": "null"}]},
    {"mask": [{"tables": "shop\\.t0", "columns": ["c1"], "mask": "hash", "salt": "s"}]},
    {"mask": [{"tables": ".*", "columns": ["c1", "c2", "c3", "c4", "c5"], "mask": "hash", "salt": "s" * 70}]},
    {"mask": [{"tables": ".*", "columns": ["c1", "c2", "c3", "c4", "c5"], "mask": "null"}]},
    {"mask": [{"tables": ".*", "columns": ["c2"], "mask": "fixed", "value": "7"}]},
    {"mask": [{"tables": ".*", "columns": ["c2"], "mask": "truncate", "length": 2}]},
)
_KAFKA = {"type": "kafka", "bootstrap_servers": "k:9092"}
_SINKS: tuple[dict[str, Any], ...] = (
    _KAFKA,
    _KAFKA,
    {"type": "jsonl", "path": "-"},
    {"type": "jsonl", "path": "-"},
    {**_KAFKA, "on_oversize": "park"},
    {"type": "canal"},
    {"type": "rabbitmq", "hosts": "h:5672", "user": "u", "password": "p", "exchange": "e"},
    {"type": "rocketmq", "hosts": "h:8081", "tag": "{schema}-{table}-{type}"},
)


@dataclass(frozen=True, slots=True)
class Reading:
    """How a binlog is read. `sizes` are those of its pieces, and `takes` says behind how many of them messages are
    taken; `eager`: reading stops between transactions. `watched`: tables that Python sees, by piece, in turn."""

    start: DumpStart
    sizes: Sequence[int]
    takes: int = 0
    eager: bool = False
    mariadb: bool = False
    watched: Sequence[frozenset[tuple[str, str]]] = (frozenset(),)
    joined: bool = False
    """Whether batches are compared that one can be made of: Python ends one behind a large message."""


_NONE = (frozenset[tuple[str, str]](),)
_WATCHED = (*_NONE, frozenset({("shop", "t0")}), frozenset({("shop", "t0"), ("shop", "t1")}), *_NONE)
WHOLE = DumpStart(Position("server", "b.000001", 4), checksums=True)


def settings(rng: random.Random, places: Sequence[int] = ()) -> DestinationSettings:
    """A destination's settings at random, which may pass over what begins at some of `places`."""
    sink, route = rng.choice(_SINKS), rng.choice(_ROUTES)
    message = rng.choice(_ENTRIES if sink["type"] == "canal" else _MESSAGES)
    filters = rng.choice(_FILTERS)
    if message in _ENTRIES and rng.random() < 0.3:
        filters = filters | {"transactions": True}
    source: dict[str, Any] = {"row_image": rng.choice(("full", "any"))}
    if places and rng.random() < 0.3:
        source["skip_event"] = [f"b.000001:{rng.choice(places)}" for _ in range(rng.choice((1, 1, 3)))]
    return destination_of(
        {
            "name": "shop",
            "source": {"host": "h", "user": "u", "password": "p", **source},
            # files have no topics
            "route": {"topic": "shop", **(route if sink["type"] not in ("jsonl", "canal") else {})},
            "message": message,
            "filter": filters,
            "sink": sink,
        }
    )


def outcome(
    data: bytes,
    config: DestinationSettings,
    native: Any,
    way: Reading,
    positions: list[Position] | None = None,
) -> list[Any]:
    """All that comes of a binlog: messages, positions, counts, and the error. `positions` gets those on the way."""
    # What a message is charged besides its bytes differs on purpose; with one figure for both, sizes can be compared.
    with (
        mock.patch.object(message_builder, "_NATIVE_OVERHEAD", message_builder._MESSAGE_OVERHEAD),
        mock.patch.object(message_builder, "_NATIVE_UNIT_OVERHEAD", message_builder._UNIT_OVERHEAD),
    ):
        builder = make_builder(config, new_format(config), "server", 5, native)
    reported: list[Any] = []
    frames = Encoder("e", 1, 4096, mandatory=True, persistent=True)
    history = SchemaHistory(lambda *_: True, mariadb=way.mariadb, version="9.7.4", lower_case_table_names=0)
    options = DecoderOptions.of(config, DaemonSettings())
    decoder = Decoder(
        way.start,
        Receiver(
            rows=builder.emit,
            large=builder.emit_large,
            statement=builder.emit_schema,
            mark=builder.emit_mark if config.wants_marks else None,
            native=builder.native,
            heartbeat=lambda beat: reported.append(("heartbeat", beat)),
        ),
        captures=builder.captures,
        history=history,
        options=options,
    )
    decoder.splitter.eager = way.eager

    def enough() -> bool:
        return way.eager and not decoder.transactions.in_group

    def take() -> None:
        taken: Sequence[MessageBatch] = builder.take(decoder.position(), 0.0)
        for batch in joined(taken, one_log=config.sink.capabilities.one_log) if way.joined else taken:
            reported.append((batch.topic, batch.partition, batch.rows, batch.size, batch.commit_time_us, batch.barrier))
            none = [None] * len(batch.values)
            reported.extend(zip(batch.values, batch.headers, batch.keys or none, strict=True))
            reported.append(list(zip(batch.units or none, batch.tags or none, strict=True)))
            if config.sink.type == "rabbitmq":
                reported.append(b"".join(frames.encode(batch, range(len(batch.values)))))
            totals: dict[tuple[str, str], TableRows] = {}
            for one in batch.tables:
                totals.setdefault((one.schema, one.table), TableRows(one.schema, one.table)).add(one)
            reported.append(sorted((*name, of.inserted, of.updated, of.deleted) for name, of in totals.items()))

    try:
        rest, at, turn = b"", 0, 0
        while at < len(data):
            step = way.sizes[turn % len(way.sizes)]
            if builder.native is not None:
                builder.native.watch = partial(way.watched.__getitem__, turn % len(way.watched))
            turn += 1
            rest, at = rest + data[at : at + step], at + step
            done, more = 0, True
            while more:
                builder._now_ms = 1_800_000_000_000
                if builder.native is not None:
                    builder.native.now_ms = builder._now_ms
                done, more = decoder.feed(rest, done, enough)
                between = ("between", str(decoder.position().to_dict()))
                if enough() and between not in reported[-1:]:
                    reported.append(between)
                if decoder.described.wanted is not None:
                    decoder.described.learned("it was never read")
                    more = True
            rest = rest[done:]
            if positions is not None:
                positions.append(decoder.position())
            reported.append((str(decoder.position().to_dict()), decoder.splitter.events, decoder.transactions.count))
            if way.takes and not turn % way.takes:
                take()
        reported.append(decoder.splitter.need)
    except HeadraceError as error:
        reported.append(("error", str(error), error.remedy, decoder.splitter.whole))
    cursor = decoder.cursor
    reported.append(
        (str(decoder.position().to_dict()), cursor.file, cursor.end, cursor.start, decoder.transactions.count)
    )
    take()
    if positions is not None:
        positions.append(decoder.position())
    decoder.close()
    return reported


def joined(batches: Sequence[MessageBatch], *, one_log: bool) -> list[MessageBatch]:
    """One batch of all for a topic's partition, as far as that leaves the order of messages as it is."""
    found: dict[tuple[Any, ...], MessageBatch] = {}
    run, before = 0, ("", 0, False)
    for batch in batches:
        of = batch.topic, batch.partition, batch.barrier
        if batch.barrier or before[2] or (one_log and of != before):
            run += 1
        before = of
        whole = found.setdefault((run, *of), MessageBatch(*of[:2], barrier=batch.barrier))
        whole.keys = [*(whole.keys or ()), *(batch.keys or [None] * len(batch.values))]
        for name in ("values", "headers", "units", "tags"):
            if (more := getattr(batch, name)) is not None:
                setattr(whole, name, [*(getattr(whole, name) or ()), *more])
        whole.rows, whole.size = whole.rows + batch.rows, whole.size + batch.size
        whole.commit_time_us = batch.commit_time_us or whole.commit_time_us
    made = list(found.values())
    made[-1].tables = [one for batch in batches for one in batch.tables]
    return made


def events_of(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Of each packet of a sound binlog: where it begins, the type of its event, and the offset of that in the file; -1
    for one that is in no file."""
    at = 0
    while at < len(data):
        size, end = struct.unpack_from("<II", data, at + 14)
        yield at, data[at + 9], end - size if end else -1
        while (packet := int.from_bytes(data[at : at + 3], "little")) == FULL:
            at += 4 + packet
        at += 4 + packet


def begun_at(rng: random.Random, data: bytes, config: DestinationSettings, way: Reading) -> tuple[bytes, DumpStart]:
    """What a server sends to one who goes on from a place where reading has been, and what a decoder is told of it."""
    positions: list[Position] = []
    outcome(data, config, None, replace(way, sizes=[rng.randrange(50, 3000)]), positions)
    position = rng.choice(positions)
    if rng.random() < 0.3:
        return data, DumpStart(replace(position, gtid_set=""), way.start.checksums, skip_before=position.offset)
    if rng.random() < 0.5:
        position = replace(position, gtid_set="")
    packets = [*events_of(data), (len(data), 0, position.offset)]
    head = packets[2][0]  # ROTATE and the description of the format
    begin = next((at for at, _, offset in packets[2:] if offset == position.offset), head)
    return data[:head] + data[begin:], DumpStart(position, way.start.checksums)


def compare(data: bytes, rng: random.Random, *, sound: bool, mariadb: bool = False) -> int:
    """Raises AssertionError where both ways differ; how many messages were made. `sound`: its packets are whole."""
    config = settings(
        rng, [offset for _, kind, offset in events_of(data) if kind != 15 and offset > 0] if sound else ()
    )
    coarse = 1 + len(data) // 50_000  # otherwise a large event is copied too often
    pieces = [len(data), *(coarse * size for size in (4096, 500, 37, 1 + rng.randrange(2000)))]
    sizes = [len(data)] if rng.random() < 0.3 else [rng.choice(pieces) for _ in range(5)]
    watched = _WATCHED if rng.random() < 0.3 else _NONE
    way = Reading(
        *(WHOLE, sizes, rng.choice((0, 0, 1, 3)), rng.random() < 0.2, mariadb, watched),
        joined=len(data) > 64 << 10,
    )
    if sound:
        size = struct.unpack_from("<I", data, 14)[0]
        way = replace(
            way,
            start=replace(
                WHOLE, checksums=zlib.crc32(data[5 : 1 + size]) == int.from_bytes(data[1 + size : 5 + size], "little")
            ),
        )
        if rng.random() < 0.3:
            data, start = begun_at(rng, data, config, way)
            way = replace(way, start=start)
    python = outcome(data, config, None, way)
    native = outcome(data, config, find().module, way)
    for i, (a, b) in enumerate(zip(python, native, strict=False)):
        assert a == b, f"entry {i}\npython {a!r}\nnative {b!r}\n{config!r}\n{way}"
    assert len(python) == len(native), (python[len(native) :], native[len(python) :])
    return sum(1 for one in python if isinstance(one, tuple) and len(one) == 3 and isinstance(one[1], list))


def made(inputs: int, seed: int, large: float = 0.15) -> int:
    """Compares so many random binlogs, of which some have large events; messages in all."""
    total = 0
    for number in range(inputs):
        rng = random.Random(f"{seed} {number}")
        mariadb = rng.random() < 0.25
        data = stream(rng, broken=rng.choice((0.0, 0.0, 0.002, 0.05)), mariadb=mariadb, large=large)
        try:
            total += compare(data, rng, sound=True, mariadb=mariadb)
        except Exception as error:
            raise AssertionError(f"input {number} of seed {seed}: {error}") from error
    return total


def damaged(inputs: int, seed: int) -> int:
    """The same with recorded binlogs that are damaged."""
    mutator, total = Mutator(random.Random(seed)), 0
    for number in range(inputs):
        data = mutator.stream()
        try:
            mariadb = b"MariaDB" in data[:120]
            total += compare(data, random.Random(f"{seed} {number}"), sound=False, mariadb=mariadb)
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
