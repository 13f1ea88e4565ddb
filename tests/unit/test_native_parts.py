"""Large rows events in native code: the same parts, numbers and positions as in Python, and the loop stays free."""

from __future__ import annotations

import asyncio
import gc
import random
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import pytest

from headrace.cli.wiring import new_format
from headrace.errors import NotUnderstood
from headrace.mysql import native_parts
from headrace.mysql.change_stream import MysqlStream
from headrace.mysql.decoder import Decoder
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.events.splitter import EventSplitter
from headrace.mysql.native_parts import NativeParts
from headrace.mysql.values import column_types as ct
from headrace.mysql.values.mariadb import decompressed
from headrace.native import find
from headrace.pipeline.message_builder import MessageBuilder, make_builder
from headrace.ports.source import Receiver
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings
from tests import native_differential
from tests.examples import examples
from tests.made_binlog import Binlog, captured, payload
from tests.native_differential import WHOLE, Reading, events_of, outcome
from tests.random_tables import Column, Table
from tests.streams import START, Again, Dump, no_schemas, opened
from tests.streams import settings as destination

MODULE: Any = find().module
pytestmark = pytest.mark.skipif(MODULE is None, reason="headrace-native is not installed: scripts/build-native")
MIB = 1 << 20
JOINED = Reading(WHOLE, [1 << 30], joined=True)
TEXT = Column(ct.BLOB, b"\x04", ct.BLOB, 4, "utf8mb4")
DEFLATED = Column(ct.BLOB_COMPRESSED, b"\x04", ct.BLOB_COMPRESSED, 4, "utf8mb4")
FORMATS: list[dict[str, Any]] = [{}, {"rows_per_message": 3}, {"format": "debezium"}, {"format": "canal-protobuf"}]


def table(*columns: Column) -> Table:
    return Table(random.Random(1), "t", 7, [Column(ct.LONG, b"", ct.LONG, 4), *columns], [0])


def image(number: int, *texts: bytes) -> bytes:
    return b"\0" + struct.pack("<i", number) + b"".join(struct.pack("<I", len(text)) + text for text in texts)


def deflated(text: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return b"\x8c" + len(text).to_bytes(4, "big") + deflate.compress(text) + deflate.flush()


def put(log: Binlog, of: Table, kind: int, images: list[bytes], gno: int = 1) -> None:
    log.gtid(gno, 1_700_000_000_000_000 + gno)
    log.query("BEGIN")
    log.event(19, of.body())
    body = of.event(kind, images)
    log.event(*(of.compressed(kind, body) if log.mariadb else (kind, body)))
    log.event(16, struct.pack("<Q", gno))


def both_ways(data: bytes, config: DestinationSettings, way: Reading = JOINED) -> tuple[list[Any], int]:
    """What comes of a binlog, the same both ways, and how many changes of rows Python had to format for native code."""
    python = outcome(data, config, None, way)
    with mock.patch.object(MessageBuilder, "emit", autospec=True, side_effect=MessageBuilder.emit) as emit:
        native = outcome(data, config, MODULE, way)
    assert len(python) == len(native)
    for mine, others in zip(native, python, strict=True):
        assert mine == others
    return native, emit.call_count


@pytest.mark.hypothesis
def test_random_large_events_become_the_same_messages_both_ways() -> None:
    assert native_differential.made(examples(28), seed=13, large=1.0) > 20 * examples(28)


@pytest.mark.parametrize("message", FORMATS)
@pytest.mark.parametrize("kind", [30, 31, 32])
@pytest.mark.parametrize("marks", [False, True])
def test_an_event_of_many_rows_is_made_by_native_code(message: dict[str, Any], kind: int, marks: bool) -> None:
    if marks and message.get("format") == "debezium":
        return  # it has no such messages
    log, of = Binlog().begin_file(), table(TEXT)
    images = [image(number, b"text %d" % number) for number in range(12_000)]
    put(log, of, kind, [one for one in images for _ in range(2 if kind == 31 else 1)])
    put(log, of, 30, images[:1], gno=2)
    config = destination(message=message, filter={"transactions": marks})
    found, emitted = both_ways(bytes(log.packets), config)
    assert emitted == 0
    assert "1200" in str(found[-1])


@pytest.mark.parametrize("message", [*FORMATS, {"rows_per_message": 1}])
@pytest.mark.parametrize("rows", [5_000, 5_001])
def test_rows_of_a_part_are_spread_as_by_python(message: dict[str, Any], rows: int) -> None:
    log, of = Binlog().begin_file(), table(TEXT)
    put(log, of, 30, [image(number, b"a text of %d" % number) for number in range(rows)])
    route = {"topic": "shop", "partitions": 3, "partition_hash": ".*\\..*:$pk$"}
    kafka = {"type": "kafka", "bootstrap_servers": "k:9092"}
    found, emitted = both_ways(bytes(log.packets), destination(message=message, route=route, sink=kafka))
    assert emitted == 0
    assert len({one[1] for one in found if isinstance(one, tuple) and one[0] == "shop"}) == 3


@pytest.mark.parametrize("way", ["packets", "transaction", "event"])
def test_a_row_of_any_size_is_made_by_native_code_wherever_it_is(way: str) -> None:
    log = Binlog().begin_file(version=b"10.11.6-MariaDB" if way == "event" else b"9.7")
    of, rows = table(TEXT), [image(1, b"small"), image(2, "plain words, é".encode() * 1_200_000), image(3, b"small")]
    assert len(rows[1]) > 1 << 24 or way != "packets"
    if way == "transaction":
        log.event(40, payload(captured(log, partial(put, log, of, 30, rows))))
    else:
        put(log, of, 30, rows)
    _, emitted = both_ways(bytes(log.packets), destination(), replace(JOINED, mariadb=way == "event"))
    assert emitted == 0


def read(data: bytes, config: DestinationSettings, module: Any, start: DumpStart) -> Iterator[tuple[Any, list[Any]]]:
    """Yields each position on the way, and the messages before it."""
    builder = make_builder(config, new_format(config), "server", 5, module)
    into = Receiver(rows=builder.emit, large=builder.emit_large, native=builder.native)
    reader = Decoder(start, into, captures=builder.captures, options=DecoderOptions.of(config, DaemonSettings()))
    at, more = 0, True
    while more:
        at, more = reader.feed(data, at, lambda: True)
        taken = builder.take(reader.position(), 0.0)
        yield reader.position(), [headers for batch in taken for headers in batch.headers]
    reader.close()


def test_a_position_within_an_event_is_pythons_and_native_code_goes_on_there() -> None:
    log, of = Binlog().begin_file(), table(TEXT)
    put(log, of, 30, [image(0, b"x")])
    start = log.at
    put(log, of, 30, [image(number, b"text %d" % number) for number in range(11_000)], gno=2)
    data, config = bytes(log.packets), destination()
    steps = list(read(data, config, MODULE, WHOLE))
    assert [one for one in steps if one[1]] == [one for one in read(data, config, None, WHOLE) if one[1]]
    within = [number for number, (position, _) in enumerate(steps) if position.rows_done]
    assert {steps[number][0].rows_done for number in within} == {5_000, 10_000}
    head, begin = [at for at, _, _ in events_of(data)][2], next(at for at, _, at_ in events_of(data) if at_ == start)
    for number in within:
        rest = data[:head] + data[begin:]
        again = [
            headers for _, made in read(rest, config, MODULE, DumpStart(steps[number][0], True)) for headers in made
        ]
        assert again == [headers for _, made in steps[number + 1 :] for headers in made]


class Held:
    """Native code that waits in its thread until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, make: native_parts._Make) -> Any:
        def held(most: int) -> Any:
            assert self.go.wait(30)
            return make(most)

        return native_parts_in_thread(held)


native_parts_in_thread = native_parts._in_thread


@pytest.mark.parametrize("watched", [False, True])
async def test_the_loop_is_free_while_a_thread_makes_a_large_row(watched: bool) -> None:
    """If the table is watched meanwhile, the row is Python's."""
    log, config, held = Binlog().begin_file(), destination(), Held()
    put(log, table(TEXT), 30, [image(1, b"x" * 2 * MIB)])
    builder = make_builder(config, new_format(config), "server", 5, MODULE)
    assert builder.native is not None
    emitted = list[Any]()
    into = Receiver(rows=emitted.append, native=builder.native)
    first = opened(Dump(bytes(log.packets)), START, config.source)
    unasked: Any = None
    stream = MysqlStream(first, no_schemas(first.server), into, DecoderOptions(), Again(unasked))
    with (
        mock.patch.object(native_parts, "_in_thread", held),
        mock.patch.object(EventSplitter, "feed", autospec=True, side_effect=EventSplitter.feed) as feed,
    ):
        stream._decoder.feed = stream._decoder.splitter.feed

        async def go_on() -> None:
            while stream._decoder.splitter.thread is None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            calls = feed.call_count
            await asyncio.sleep(0.1)
            assert feed.call_count <= calls + 1, "it waits for the thread, and does not ask again and again"
            if watched and builder.native is not None:
                builder.native.watch = lambda: frozenset({("shop", "t")})
            held.go.set()

        going = asyncio.create_task(go_on())
        while stream.progress().offset < log.at:
            await stream.read()
        await going
    assert len(emitted) == watched
    (batch,) = builder.take(stream.position(), 0.0)
    assert [len(value or b"") > 2 * MIB for value in batch.values] == ([] if watched else [True])
    await stream.close()


async def test_a_row_that_native_code_refuses_in_its_thread_is_pythons_and_no_error_is_logged() -> None:
    failures, emitted = list[Any](), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    log, config = Binlog().begin_file(), destination()
    put(log, table(Column(ct.BLOB, b"\x04", ct.BLOB, 4, "gbk")), 30, [image(1, b"x" * 2 * MIB + b"\xa1\x40")])
    builder = make_builder(config, new_format(config), "server", 5, MODULE)
    into = Receiver(rows=emitted.append, native=builder.native)
    first = opened(Dump(bytes(log.packets)), START, config.source)
    unasked: Any = None
    stream = MysqlStream(first, no_schemas(first.server), into, DecoderOptions(), Again(unasked))
    while stream.progress().offset < log.at:
        await stream.read()
    gc.collect()
    assert len(emitted) == 1
    assert failures == []
    await stream.close()


def test_a_message_that_would_be_too_large_is_refused_as_by_python() -> None:
    log = Binlog().begin_file()
    put(log, table(TEXT), 30, [image(1, b"\x01" * 2 * MIB)])  # each byte becomes six
    found, _ = both_ways(bytes(log.packets), destination(source={"max_event": "4MiB"}))
    assert "makes a message of more than" in str(found)


def test_a_fault_within_a_part_stops_the_destination_with_a_remedy() -> None:
    log = Binlog().begin_file()
    put(log, table(TEXT), 30, [image(1, b"x" * 100_000)] * 10)
    panic = type("PanicException", (BaseException,), {})("a fault")
    with (
        mock.patch.object(native_parts, "_AT_ONCE", 1000),
        mock.patch("headrace.mysql.native_parts._in_thread", side_effect=panic),
        pytest.raises(NotUnderstood, match="native code fails after this position") as raised,
    ):
        list(read(bytes(log.packets), destination(), MODULE, WHOLE))
    assert 'native = "off"' in raised.value.remedy


@pytest.mark.parametrize("message", [{"format": "debezium"}, {"key": ["$pk$"]}, {}])
def test_a_large_row_that_python_makes_is_added_to_those_of_native_code(message: dict[str, Any]) -> None:
    """Its keys come to those of native code."""
    log, of, ends = Binlog().begin_file(), table(TEXT), [0]
    for gno in range(1, 7):
        put(log, of, 30, [image(gno, b"x" * (70_000 if gno == 4 else 7))], gno)
        ends.append(len(log.packets))
    sizes, seen = [ends[3], ends[4] - ends[3], ends[6]], frozenset({("shop", "t")})
    way = replace(JOINED, sizes=sizes, watched=(frozenset(), seen, frozenset()))
    config = destination(
        message=message, route={"topic": "shop"}, sink={"type": "kafka", "bootstrap_servers": "k:9092"}
    )
    found, emitted = both_ways(bytes(log.packets), config, way)
    assert 0 < emitted < 6
    assert len([one for one in found if isinstance(one, tuple) and isinstance(one[0], bytes)]) == 6


# -- compressed columns ----------------------------------------------------------------------------------------------


def stored_forms() -> Iterator[bytes]:
    """Values as compressed columns may have them, and damaged ones."""
    yield b""
    for text in (b"", b"a", 'é😀"\\\x01'.encode() * 30, bytes(range(256)) * 5):
        yield b"\0" + text
        for wbits, digits in ((zlib.MAX_WBITS, 4), (-zlib.MAX_WBITS, 2), (9, 3), (-9, 4)):
            deflate = zlib.compressobj(wbits=wbits)
            packed = deflate.compress(text) + deflate.flush()
            head = bytes([0x80 | 8 * (wbits < 0) | digits])
            for size in (len(text), len(text) + 1, max(0, len(text) - 1)):
                yield head + size.to_bytes(digits, "big") + packed
            yield head + len(text).to_bytes(digits, "big") + packed + b"behind"
            yield bytes([head[0] ^ 8]) + len(text).to_bytes(digits, "big") + packed
    for head in (0x80, 0x85, 0x87, 0x01, 0x10, 0x90, 0xFF):
        yield bytes([head]) + b"\0\0\0\x01a"
    yield b"\x84"
    yield b"\x84\xff\xff\xff\xff" + zlib.compress(bytes(1000))


def test_values_of_compressed_columns_are_the_same() -> None:
    layout, seen = ("compressed", 4, 4000, ("bytes", 4, 0)), 0
    for raw in stored_forms():
        try:
            made = decompressed(raw, 4000).hex()
        except ValueError:
            with pytest.raises(ValueError, match="not what native code reads"):
                MODULE.cell(layout, ("text", "hex"), raw)
            continue
        assert MODULE.cell(layout, ("text", "hex"), raw) == f'"{made}"', raw
        seen += 1
    assert seen > 20


@pytest.mark.parametrize("message", FORMATS)
@pytest.mark.parametrize(
    "rule", [{}, {"mask": "hash", "salt": "s"}, {"mask": "truncate", "length": 2}, {"rows": "c1 like '%5%'"}]
)
def test_rows_with_compressed_columns_are_made_by_native_code(message: dict[str, Any], rule: dict[str, Any]) -> None:
    binary = Column(ct.VARCHAR_COMPRESSED, b"\xd0\x07", ct.VARCHAR_COMPRESSED, 2000, "binary")
    log, of = Binlog().begin_file(), table(DEFLATED, binary)
    for number in range(1, 40):
        text, other = deflated(f"text {number} é ".encode() * 20), deflated(bytes([number]) * 300)
        after = deflated(f"text {number} é ".encode() * (20 + number % 2))
        cells = [image(number, one) + len(other).to_bytes(2, "little") + other for one in (text, after)]
        kind = 30 + number % 3
        put(log, of, kind, cells if kind == 31 else cells[:1], number)
    rules = {"where": [{"tables": ".*", **rule}]} if "rows" in rule else {}
    rules |= {"mask": [{"tables": ".*", "columns": ["c1"], **rule}]} if "mask" in rule else {}
    found, emitted = both_ways(bytes(log.packets), destination(message=message, filter=rules), WAY)
    assert emitted <= 3
    assert len(found) >= 10


WAY = Reading(WHOLE, [1 << 30])


@pytest.mark.parametrize("rows", [1, 5_000, 5_001])
@pytest.mark.parametrize("size", [8192, 8193, 300_000, 3_000_000])
def test_a_compressed_value_of_any_size_is_made_by_native_code(rows: int, size: int) -> None:
    """A value of more than 8 kB lets an event go out in parts."""
    log, of = Binlog().begin_file(), table(DEFLATED)
    put(log, of, 30, [image(0, b"\0a")])
    put(log, of, 30, [*[image(1, b"")] * (rows - 1), image(2, deflated(b"x" * size))], gno=2)
    put(log, of, 30, [image(3, b"\0a")], gno=3)
    found, emitted = both_ways(bytes(log.packets), destination())
    assert emitted <= 1
    messages = [one for one in found if isinstance(one, tuple) and isinstance(one[0], bytes)]
    assert len(messages) == 3 + (rows == 5_001 and size > 8192)


def test_a_small_event_whose_values_are_very_large_takes_no_more_memory_than_pythons() -> None:
    log, of = Binlog().begin_file(), table(DEFLATED)
    bomb = deflated(bytes(16 * MIB))
    put(log, of, 30, [image(number, bomb) for number in range(5)])
    began = time.thread_time()
    with mock.patch.object(NativeParts, "_publish", autospec=True, side_effect=NativeParts._publish) as publish:
        made = [headers for _, headers in read(bytes(log.packets), destination(), MODULE, WHOLE)]
    assert publish.call_count == 0, "80 MB are more than native code makes at once"
    assert len(made) > 10
    assert time.thread_time() - began < 20
