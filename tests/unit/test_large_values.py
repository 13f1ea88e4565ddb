"""Large values and large events go out in slices, and what comes out is what comes out of them at once."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import random
import re
import struct
import time
import tracemalloc
import zlib
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import pytest
import zstandard

from headrace.cli.wiring import new_format
from headrace.errors import NotUnderstood, SpoolError
from headrace.model import Position
from headrace.mysql import rows
from headrace.mysql.decoder import Decoder
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events import inner
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.values import column_types as ct
from headrace.mysql.values import large, large_json
from headrace.mysql.values.charsets import WIDTHS, codec_of
from headrace.mysql.values.jsonb import json_text
from headrace.pipeline.message_builder import make_builder
from headrace.ports.source import Receiver
from headrace.settings.daemon import DaemonSettings
from tests.made_binlog import Binlog
from tests.native_differential import WHOLE, Reading, events_of, outcome, settings
from tests.random_tables import Column, Opaque, Table, json_bytes, stream
from tests.streams import settings as destination

MIB = 1 << 20


@contextmanager
def tiny_slices(*, value: int = 7, part: int = 1 << 30, part_rows: int = 1 << 30) -> Iterator[None]:
    """Everything counts as large, and pieces are a few bytes."""
    with (
        mock.patch.multiple(rows, _AT_ONCE=16, _SOME=2, PART_BYTES=part, PART_ROWS=part_rows),
        mock.patch.multiple(large, LARGE_VALUE=value, PIECE=6),
        mock.patch.multiple(large_json, PIECE=6, _SMALL=5, _ENTRIES=2, _LINE=57),
    ):
        yield


def json_column() -> Column:
    return Column(ct.JSON, b"\x04", ct.JSON, 4)


def blob(charset: str) -> Column:
    return Column(ct.BLOB, b"\x04", ct.BLOB, 4, charset)


def number() -> Column:
    return Column(ct.LONG, b"", ct.LONG, 4)


def cell(raw: bytes) -> bytes:
    return struct.pack("<I", len(raw)) + raw


def table_of(*columns: Column, name: str = "t0") -> Table:
    return Table(random.Random(1), name, 7, [number(), *columns], [0])


def transaction(log: Binlog, table: Table, kind: int, *images: bytes, gno: int = 1) -> None:
    log.gtid(gno, 1_700_000_000_000_000 + gno)
    log.query("BEGIN")
    log.event(19, table.body())
    log.event(kind, table.event(kind, images))
    log.event(16, struct.pack("<Q", gno))


class Reader:
    """Reads a binlog as a destination does, and takes what is made after each reading."""

    def __init__(
        self,
        config: Any,
        start: Position | None = None,
        *,
        room: int = 1 << 60,
        hung: str = "",
        daemon: dict[str, Any] | None = None,
    ) -> None:
        self.builder = make_builder(config, new_format(config), "server", 5)
        self.room = room
        self.decoder = Decoder(
            DumpStart(start or Position("server", "b.000001", 4), checksums=True),
            Receiver(
                rows=self.builder.emit, large=self.builder.emit_large, statement=self.builder.emit_schema, hung=hung
            ),
            captures=self.builder.captures,
            options=DecoderOptions.of(config, DaemonSettings.model_validate(daemon or {})),
        )
        self.taken: list[tuple[Position, list[tuple[Any, Any]]]] = []
        self.longest = 0.0
        """CPU seconds of the longest turn."""
        self.largest_work = 0
        """Bytes of what was decoded in slices."""

    def read(self, data: bytes) -> None:
        gc.freeze()  # as a daemon does when it begins: what other tests have left is not looked through
        try:
            self._read(data)
        finally:
            gc.unfreeze()

    def _read(self, data: bytes) -> None:
        at, more = 0, True
        while more:
            began = time.thread_time()
            at, more = self.decoder.feed(data, at, lambda: self.builder._size >= self.room)
            self.longest = max(self.longest, time.thread_time() - began)
            self.largest_work = max(self.largest_work, self.decoder.splitter.work_size)
            position = self.decoder.position()
            batches = self.builder.take(position, 0.0)
            made = [pair for batch in batches for pair in zip(batch.values, batch.headers, strict=True)]
            self.taken.append((position, made))
        assert at == len(data)
        self.decoder.close()

    @property
    def messages(self) -> list[tuple[Any, Any]]:
        return [pair for _, made in self.taken for pair in made]


@pytest.mark.parametrize("seed", range(60))
def test_rows_in_slices_make_the_messages_that_they_make_at_once(seed: int) -> None:
    rng = random.Random(seed)
    data, config = stream(rng, broken=0.0), settings(rng)
    way = Reading(WHOLE, [len(data)], 0, False)
    at_once = outcome(data, config, None, way)
    with tiny_slices():
        sliced = outcome(data, config, None, way)
    if not failed(at_once):
        assert sliced == at_once
    else:  # a text that is none: what is published of its column decides, and a mark comes before
        assert rows_of(sliced)[: len(rows_of(at_once))] == rows_of(at_once)


def failed(reported: list[Any]) -> bool:
    return any(isinstance(one, tuple) and one[:1] == ("error",) for one in reported)


def rows_of(reported: list[Any]) -> list[tuple[Any, Any]]:
    """Ids and row numbers of the messages of rows."""
    messages = [one for one in reported if isinstance(one, tuple) and len(one) == 3 and isinstance(one[1], list)]
    return [(of[1][0], of[1][2]) for of in messages if b"#begin" not in of[1][0][1] and b"#end" not in of[1][0][1]]


def many_rows(count: int) -> tuple[Table, list[bytes]]:
    table = table_of(blob("utf8mb4"))
    return table, [b"\0" + struct.pack("<i", i) + cell(b"row %d" % i) for i in range(count)]


@pytest.mark.parametrize("kind", [30, 31, 32])
@pytest.mark.parametrize("message", [{}, {"rows_per_message": 1}, {"format": "debezium"}])
def test_a_large_event_goes_out_in_parts_and_a_position_within_it_is_exact(kind: int, message: dict[str, Any]) -> None:
    config = destination(message=message, source={"row_image": "any"})
    table, images = many_rows(60)
    log = Binlog().begin_file()
    transaction(log, table, 30, images[0], gno=1)
    head = log.at
    transaction(log, table, kind, *images, gno=2)
    transaction(log, table, 30, images[0], gno=3)
    data = bytes(log.packets)
    with tiny_slices(part_rows=7):
        every = Reader(config, room=1)
        every.read(data)
        ids = [dict(headers)["headrace-id"] for _, headers in every.messages]
        assert len(ids) == len(set(ids))
        within = [(position, i) for i, (position, _) in enumerate(every.taken) if position.rows_done]
        assert len({position for position, _ in within}) >= 3
        for position, i in within:
            assert position.offset == head
            again = Reader(config, position)
            again.read(data[: first_packets(data)] + data[packet_at(data, head) :])
            rest = [pair for _, made in every.taken[i + 1 :] for pair in made]
            assert without_counters(again.messages) == without_counters(rest)


def without_counters(messages: list[tuple[Any, Any]]) -> list[Any]:
    """`id` of Canal's messages counts since the start of a destination, and each has the time of its making."""
    return [(re.sub(rb'"(id|ts|ts_ms|ts_us|ts_ns)":\d+', b"", value or b""), headers) for value, headers in messages]


def first_packets(data: bytes) -> int:
    """Where the description of the format ends."""
    return [at for at, _, _ in events_of(data)][2]


def packet_at(data: bytes, offset: int) -> int:
    return next(at for at, _, begin in events_of(data) if begin == offset)


def documents() -> Iterator[tuple[str, bytes]]:
    members = {f"key {i}": [i, f'text {i} \x01 " é', 1.5 * i, None, True, {"n": 40_000 + i}] for i in range(3000)}
    yield "an object of many", json_bytes(members, large=True)
    yield "an array of many", json_bytes([members, *range(40_000)], large=True)
    yield "a long string", json_bytes({"a": "é😀\x01" * 60_000, "b": Opaque(252, bytes(300_000))}, large=True)
    yield "only a string", json_bytes("x\x01" * 100_000)


@pytest.mark.parametrize(("what", "document"), documents(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_large_document_is_printed_in_pieces_as_it_is_at_once(what: str, document: bytes) -> None:
    pieces = list(large_json.json_pieces(b"before" + document + b"behind", 6, 6 + len(document)))
    assert "".join(pieces) == json_text(document)
    assert max(map(len, pieces)) < MIB
    for cut in (len(document) // 2, len(document) - 1):
        with pytest.raises((ValueError, IndexError, struct.error)):
            list(large_json.json_pieces(document[:cut], 0, cut))


def test_a_document_that_uses_its_bytes_many_times_is_refused_before_it_fills_the_memory() -> None:
    text = b"\x0c" + b"\xff\xff\x0f" + b"x" * 0x3FFFF
    count = 60_000
    head = struct.pack("<II", count, 8 + 5 * count + len(text))
    document = b"\x03" + head + (b"\x0c" + struct.pack("<I", 8 + 5 * count + 1)) * count + text
    tracemalloc.start()
    with pytest.raises(ValueError, match="more than once"):
        for _ in large_json.json_pieces(document, 0, len(document)):
            pass
    assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    tracemalloc.stop()


@pytest.mark.parametrize("charset", sorted(set(WIDTHS) - {"binary"}))
def test_text_is_cut_between_characters_in_every_character_set(charset: str) -> None:
    codec = codec_of(charset)
    raw = _sample(charset)
    with mock.patch.multiple(large, LARGE_VALUE=0, PIECE=5):
        value = large.large_text(charset)(raw, 0, len(raw), 0)
        assert value is not None
        assert value.whole() == codec.decode(raw)


def _sample(charset: str) -> bytes:
    """Some characters of each length that the character set has."""
    made = bytearray()
    for text in "aé中\u00a5あ漢😀ю字x\u2022":
        for python in ("utf-8", charset, {"utf8mb4": "utf-8", "ujis": "euc_jp", "sjis": "shift_jis"}.get(charset, "")):
            with contextlib.suppress(UnicodeError, LookupError):
                raw = text.encode(python)
                codec_of(charset).decode(raw)
                made += raw
                break
    if charset == "gb18030":
        made += b"\x81\x35\xf4\x37a\xa8\xbc"
    return bytes(made) * 7 if charset not in ("utf16", "utf16le", "ucs2", "utf32") else _wide(charset)


def _wide(charset: str) -> bytes:
    python = {"utf16": "utf-16-be", "utf16le": "utf-16-le", "ucs2": "utf-16-be", "utf32": "utf-32-be"}[charset]
    return ("a中é漢" + ("" if charset == "ucs2" else "😀")).encode(python) * 7


def test_what_follows_an_empty_compressed_value_does_not_make_it_large() -> None:
    assert large.large_compressed("binary", MIB)(b"\x84\x00\x0f\x00\x00", 0, 0, 0) is None


def test_bytes_of_a_compressed_column_are_printed_whole_however_they_are_split() -> None:
    raw = random.Random(1).randbytes(300_000)
    packed = b"\x84" + len(raw).to_bytes(4, "big") + zlib.compress(raw)
    with mock.patch.object(large, "PIECE", 1000):
        value = large.large_compressed("binary", MIB)(packed, 0, len(packed), 0)
        assert value is not None
        for style in ("base64", "hex", "latin1", "base64-url-safe"):
            printed = b"".join(value.printed(style, 0))
            expected = {"hex": raw.hex().encode(), "base64": b64encode(raw)}.get(style)
            assert expected is None or printed == expected
            assert style != "latin1" or orjson.loads(b'"' + printed + b'"').encode("latin-1") == raw


def within(config: Any, data: bytes) -> tuple[Reader, list[tuple[Position, int]]]:
    """Reads all, with the positions within large events, and after which reading each is."""
    every = Reader(config, room=1)
    every.read(data)
    return every, [(position, i) for i, (position, _) in enumerate(every.taken) if position.rows_done]


def two_tables() -> tuple[Table, Table, list[bytes]]:
    _, images = many_rows(60)
    return table_of(blob("utf8mb4"), name="t0"), table_of(blob("utf8mb4"), name="t1"), images


def test_rows_of_the_next_event_are_not_passed_over_when_the_table_of_the_first_is_not_captured_any_more() -> None:
    first, second, images = two_tables()
    log = Binlog().begin_file()
    head = log.at
    log.gtid(1, 1_700_000_000_000_001)
    log.query("BEGIN")
    for table in (first, second):
        log.event(19, table.body())
        log.event(30, table.event(30, images))
    log.event(16, bytes(8))
    data = bytes(log.packets)
    with tiny_slices(part_rows=7):
        _, places = within(destination(), data)
        position, _ = places[1]
        again = Reader(destination(filter={"include": "shop\\.t1"}), position)
        again.read(data[: first_packets(data)] + data[packet_at(data, head) :])
    ids = [row['c"\\0名'] for value, _ in again.messages for row in orjson.loads(value)["data"]]
    assert ids == [str(i) for i in range(60)]


def test_a_position_within_an_event_is_exact_after_a_skipped_event() -> None:
    table, _, images = two_tables()
    log = Binlog().begin_file()
    head = log.at
    log.gtid(1, 1_700_000_000_000_001)
    log.query("BEGIN")
    passed = log.at
    log.event(99, b"")
    log.event(19, table.body())
    log.event(30, table.event(30, images))
    log.event(16, bytes(8))
    data = bytes(log.packets)
    config = destination(source={"skip_event": [f"b.000001:{passed}"]})
    with tiny_slices(part_rows=7):
        every, places = within(config, data)
        position, i = places[1]
        again = Reader(config, position)
        again.read(data[: first_packets(data)] + data[packet_at(data, head) :])
    rest = [pair for _, made in every.taken[i + 1 :] for pair in made]
    assert without_counters(again.messages) == without_counters(rest)


def test_the_statement_of_a_large_event_is_published_once_even_after_a_restart_within_it() -> None:
    table, _, images = two_tables()
    log = Binlog().begin_file()
    head = log.at
    log.gtid(1, 1_700_000_000_000_001)
    log.query("BEGIN")
    log.event(29, b"\x06INSERT")
    log.event(19, table.body())
    log.event(30, table.event(30, images))
    log.event(16, bytes(8))
    data, config = bytes(log.packets), destination(filter={"dml_queries": True})
    with tiny_slices(part_rows=7):
        every, places = within(config, data)
        position, i = places[1]
        again = Reader(config, position)
        again.read(data[: first_packets(data)] + data[packet_at(data, head) :])
    rest = [pair for _, made in every.taken[i + 1 :] for pair in made]
    assert sum(b"INSERT" in value and b'"sql":""' not in value for value, _ in every.messages) == 1
    assert without_counters(again.messages) == without_counters(rest)


def test_the_decoders_of_large_and_small_events_are_not_taken_for_each_other() -> None:
    """The columns of an update's two images may look like the name of something else."""
    table = table_of(*[blob("utf8mb4")] * 7)
    log = Binlog().begin_file()
    transaction(log, table, 30, b"\0" + struct.pack("<i", 1) + cell(b"x" * 100_000) * 7)
    before = b"\xf0" + struct.pack("<i", 1) + cell(b"a") * 3
    after = b"\0" + struct.pack("<i", 1) + cell(b"c") * 7
    body = table.event(31, [])
    log.gtid(2, 1_700_000_000_000_002)
    log.query("BEGIN")
    log.event(19, table.body())
    log.event(31, body[:-2] + b"S\xff" + before + after)
    log.event(16, bytes(8))
    reader = Reader(destination(source={"row_image": "any"}))
    reader.read(bytes(log.packets))
    (row,) = orjson.loads(reader.messages[1][0])["data"]
    assert [row[f"c{i}"] for i in (1, 2, 3, 4, 6, 7)] == ["c"] * 6


CONTROLS = bytes(range(1, 32)) * (40 * MIB // 31)


@pytest.mark.parametrize("message", [{}, {"format": "debezium"}, {"binary": "latin1"}])
def test_the_loop_has_its_turns_while_a_value_of_forty_megabytes_is_read(message: dict[str, Any]) -> None:
    config = destination(message=message)
    table = table_of(blob("utf8mb4"), blob("binary"), json_column())
    text = CONTROLS[: 12 * MIB]
    document = numbers_and_a_text(700_000)
    image = b"\0" + struct.pack("<i", 1) + cell(text) + cell(text) + cell(document)
    other = b"\0" + struct.pack("<i", 1) + cell(text) + cell(b"b" * 1000) + cell(document)
    log = Binlog().begin_file()
    transaction(log, table, 31, image, other)
    transaction(log, table, 30, b"\0" + struct.pack("<i", 9) + cell(b"") * 2 + cell(json_bytes(1)), gno=2)
    reader = Reader(config)
    reader.read(bytes(log.packets))
    first, last = (orjson.loads(value) for value, _ in reader.messages)
    assert reader.longest < 0.1
    if message.get("format") == "debezium":
        first, last = first["payload"], last["payload"]
        assert first["before"]["c1"] == first["after"]["c1"] == text.decode()
        assert first["after"]["c2"] == b64encode(b"b" * 1000).decode()
        assert json.loads(first["after"]["c3"])[-1] == "x" * MIB
    else:
        (data,), (old,) = first["data"], first["old"]
        assert data["c1"] == text.decode()
        assert list(old) == ["c2"], "what has not changed is not compared as text, and is no old value"
        assert old["c2"] == (text.decode("latin-1") if message else b64encode(text).decode())
        assert json.loads(data["c3"]) == [1] * 700_000 + ["x" * MIB]


@pytest.mark.parametrize(
    "rules",
    [
        {"where": [{"tables": ".*", "rows": "c1 is null or c2 is not null"}]},
        {"mask": [{"tables": ".*", "columns": ["c1"], "mask": "hash", "salt": "s"}]},
        {"mask": [{"tables": ".*", "columns": ["c2"], "mask": "null"}]},
    ],
)
def test_a_document_that_no_rule_reads_is_printed_in_slices(rules: dict[str, Any]) -> None:
    table = table_of(number(), json_column())
    log = Binlog().begin_file()
    transaction(log, table, 30, b"\0" + struct.pack("<i", 1) * 2 + cell(numbers_and_a_text(700_000)))
    reader = Reader(destination(filter=rules))
    reader.read(bytes(log.packets))
    ((value, _),) = reader.messages
    (row,) = orjson.loads(value)["data"]
    if rules.get("mask", [{}])[0].get("columns") == ["c2"]:
        assert row["c2"] is None
    else:
        assert json.loads(row["c2"]) == [1] * 700_000 + ["x" * MIB]
    assert len(row["c1"]) == (64 if "salt" in str(rules) else 1)
    assert reader.longest < 0.1


@pytest.mark.parametrize("message", [{}, {"format": "debezium"}])
def test_a_row_of_many_texts_none_of_which_is_large_is_printed_in_slices(message: dict[str, Any]) -> None:
    table = table_of(*[Column(ct.BLOB, b"\x02", ct.BLOB, 2, "utf8mb4")] * 100)
    text = CONTROLS[:60_000]
    image = bytes(13) + struct.pack("<i", 1) + (struct.pack("<H", len(text)) + text) * 100
    log = Binlog().begin_file()
    transaction(log, table, 30, image)
    reader = Reader(destination(message=message))
    reader.read(bytes(log.packets))
    ((value, _),) = reader.messages
    row = orjson.loads(value)
    row = row["payload"]["after"] if message else row["data"][0]
    assert {row[f"c{i}"] for i in range(1, 100) if i % 5} == {text.decode()}
    assert reader.longest < 0.1


@pytest.mark.parametrize("message", [{}, {"format": "debezium"}, {"rows_per_message": 1}])
def test_rows_of_many_nulls_go_out_in_parts_that_are_soon_printed(message: dict[str, Any]) -> None:
    table = table_of(*[number()] * 300)
    images = [b"\xfe" + b"\xff" * 37 + struct.pack("<i", i) for i in range(5_000)]
    log = Binlog().begin_file()
    transaction(log, table, 30, *images)
    reader = Reader(destination(message=message), room=MIB)
    reader.read(bytes(log.packets))
    assert sum(value.count(b'null,"c1":') or value.count(b'"c1":null') for value, _ in reader.messages) == 5_000
    assert reader.longest < 0.1


def test_a_large_geometry_is_printed_in_slices_in_debezium_s_form_too() -> None:
    table = table_of(Column(ct.GEOMETRY, b"\x04", ct.GEOMETRY, 4))
    wkb = struct.pack("<BIII", 1, 3, 1, 1_000_000) + bytes(16_000_000)
    log = Binlog().begin_file()
    transaction(log, table, 30, b"\0" + struct.pack("<i", 1) + cell(struct.pack("<I", 4326) + wkb))
    reader = Reader(destination(message={"format": "debezium"}))
    reader.read(bytes(log.packets))
    ((value, _),) = reader.messages
    assert orjson.loads(value)["payload"]["after"]["c1"] == {"wkb": b64encode(wkb).decode(), "srid": 4326}
    assert reader.longest < 0.1


@pytest.mark.parametrize("message", [{}, {"format": "debezium"}])
def test_a_document_that_is_changed_in_part_is_printed_in_slices(message: dict[str, Any]) -> None:
    """Once a thread has made its text."""
    table = table_of(json_column(), blob("utf8mb4"))
    text = CONTROLS[: 2 * MIB]
    documents = [json_bytes({"a": mark + "x" * (5 * MIB)}, large=True) for mark in "pq"]
    before, after = (b"\0" + struct.pack("<i", 1) + cell(one) + cell(text) for one in documents)
    log = Binlog().begin_file()
    transaction(log, table, 30, before)
    head = table.event(31, [])
    log.gtid(2, 1_700_000_000_000_002)
    log.query("BEGIN")
    log.event(19, table.body())
    log.event(39, head + before + b"\0" + after)
    log.event(16, bytes(8))
    reader = Reader(destination(message=message))
    reader.read(bytes(log.packets))
    made = orjson.loads(reader.messages[1][0])
    old, new = (made["old"][0], made["data"][0]) if not message else (made["payload"][of] for of in ("before", "after"))
    assert (json.loads(old["c1"])["a"][0], json.loads(new["c1"])["a"][0]) == ("p", "q")
    assert new["c2"] == text.decode()
    assert message or list(old) == ["c1"], "what has not changed is no old value"
    assert reader.longest < 0.1


@pytest.mark.parametrize(("before", "after"), [(70_000, 0), (0, 70_000)])
def test_a_document_that_is_written_in_two_ways_one_of_them_large_has_not_changed(before: int, after: int) -> None:
    """An update in place leaves bytes that mean nothing."""
    table = table_of(json_column(), blob("utf8mb4"))
    images = [
        b"\0" + struct.pack("<i", 1) + cell(json_bytes({"a": [1, "x"]}) + bytes(slack)) + cell(b"t" * 70_000)
        for slack in (before, after)
    ]
    log = Binlog().begin_file()
    transaction(log, table, 31, *images)
    reader = Reader(destination())
    reader.read(bytes(log.packets))
    assert orjson.loads(reader.messages[0][0])["old"] == [{}]


def numbers_and_a_text(count: int) -> bytes:
    """A document: a 1 so many times, and then a megabyte of x."""
    text = b"\x80\x80\x40" + b"x" * MIB
    at = 8 + 5 * (count + 1)
    entries = b"\x05\x01\0\0\0" * count + b"\x0c" + struct.pack("<I", at)
    return b"\x03" + struct.pack("<II", count + 1, at + len(text)) + entries + text


def test_what_one_row_takes_in_memory_is_bounded_by_max_event() -> None:
    """Of the event, which is in a file, and the message: control characters need six bytes each."""
    config = destination(source={"max_event": "64MiB"})
    table = table_of(blob("utf8mb4"))
    log = Binlog().begin_file()
    transaction(log, table, 30, b"\0" + struct.pack("<i", 1) + cell(CONTROLS[: 18 * MIB]))
    data = bytes(log.packets)
    reader = Reader(config)
    tracemalloc.start()
    try:
        reader.read(data)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(reader.messages[0][0]) > 80 * MIB
    assert most < 150 * MIB


def test_a_row_whose_message_would_be_too_large_stops_with_the_place_and_a_remedy() -> None:
    config = destination(source={"max_event": "20MiB"})
    table = table_of(blob("utf8mb4"))
    log = Binlog().begin_file()
    transaction(log, table, 30, b"\0" + struct.pack("<i", 1) + cell(CONTROLS[: 18 * MIB]))
    reader = Reader(config)
    with pytest.raises(
        NotUnderstood, match=r"at b\.000001:\d+: a row of shop\.t0 makes a message of more than 41943040"
    ) as reported:
        reader.read(bytes(log.packets))
    assert "max_event" in reported.value.remedy
    assert reader.decoder.splitter.whole


def test_a_large_event_that_is_passed_over_leaves_the_numbers_of_what_follows_as_they_are() -> None:
    table = table_of(blob("utf8mb4"))
    log = Binlog().begin_file()
    transaction(log, table, 30, b"\0" + struct.pack("<i", 1) + cell(b"\xff" * 100_000))
    bad = next(begin for _, kind, begin in events_of(bytes(log.packets)) if kind == 30)
    transaction(log, table, 30, b"\0" + struct.pack("<i", 2) + cell(b"next"), gno=2)
    reader = Reader(destination(source={"skip_event": [f"b.000001:{bad}"]}))
    reader.read(bytes(log.packets))
    ((value, headers),) = reader.messages
    assert orjson.loads(value)["data"][0]["c1"] == "next"
    assert reader.taken[-1][0].last_pos == int(dict(headers)["headrace-pos"])


def test_an_event_of_many_million_small_rows_goes_out_in_bounded_memory() -> None:
    config = destination()
    table = table_of()
    log = Binlog().begin_file()
    transaction(log, table, 30, *[b"\0" + struct.pack("<i", i) for i in range(400_000)])
    reader = Reader(config, room=MIB)
    data = bytes(log.packets)
    reader.read(data)
    assert reader.longest < 0.1
    assert len(reader.messages) == 80
    ids = [row['c"\\0名'] for value, _ in reader.messages for row in orjson.loads(value)["data"]]
    assert ids == [str(i) for i in range(400_000)]


@pytest.mark.parametrize("way", ["compressed transaction", "savepoint", "compressed event", "compressed column"])
def test_large_events_within_events_are_read_in_slices_too(way: str) -> None:
    table, text = table_of(blob("utf8mb4")), b"large " * (4 * MIB // 6)
    small = b"\0" + struct.pack("<i", 9) + cell(b"small")
    log = Binlog().begin_file()
    if way == "compressed column":
        packed = zlib.compress(text)
        value = b"\x84" + len(text).to_bytes(4, "big") + packed
        table = table_of(Column(ct.BLOB_COMPRESSED, b"\x04", ct.BLOB_COMPRESSED, 4, "utf8mb4"))
        small = b"\0" + struct.pack("<i", 9) + cell(b"\0small")
    else:
        value = text
    body = table.event(30, [b"\0" + struct.pack("<i", 1) + cell(value)])
    log.gtid(1, 1_700_000_000_000_001)
    log.query("BEGIN") if way != "compressed transaction" else None
    if way == "compressed transaction":
        events = [(2, BEGIN), (19, table.body()), (30, body), (30, table.event(30, [small])), (16, bytes(8))]
        log.event(40, payload(b"".join(inner_event(kind, raw) for kind, raw in events)))
    elif way == "compressed event":
        head = 8 + 2 + 1 + 1
        log.event(19, table.body())
        log.event(166, body_v1(body)[: head - 2] + b"\x84" + packed_of(body_v1(body)[head - 2 :]))
        log.event(30, table.event(30, [small]))
        log.event(16, bytes(8))
    else:
        if way == "savepoint":
            log.query("SAVEPOINT `a`")
        log.event(19, table.body())
        log.event(30, body)
        log.event(30, table.event(30, [small]))
        log.event(16, bytes(8))
    reader = Reader(destination())
    reader.read(bytes(log.packets))
    assert [orjson.loads(value)["data"][0]["c1"] for value, _ in reader.messages] == [text.decode(), "small"]
    assert reader.longest < 0.1
    assert reader.largest_work >= len(text), "so that other destinations wait with theirs"


@pytest.mark.parametrize("hung", ["", "elsewhere", "here"])
def test_a_compressed_transaction_of_any_size_is_read_also_where_loops_have_hung_on_an_event(hung: str) -> None:
    """Its events are bounded one by one."""
    table, parts = table_of(blob("binary")), random.Random(1).randbytes(18 * MIB)
    events = [(2, BEGIN), (19, table.body())]
    for i in range(3):
        value = cell(parts[6 * MIB * i : 6 * MIB * (i + 1)])
        events.append((30, table.event(30, [b"\0" + struct.pack("<i", i) + value])))
    log = Binlog().begin_file()
    log.gtid(1, 1_700_000_000_000_001)
    here = f"b.000001:{log.at}"
    log.event(40, payload(b"".join(inner_event(kind, raw) for kind, raw in [*events, (16, bytes(8))])))
    transaction(log, table, 30, b"\0" + struct.pack("<i", 9) + cell(b""), gno=2)
    source = {"max_event": "8MiB", "skip_event": [here]}
    reader = Reader(destination(source=source), hung={"here": here, "elsewhere": "b.000001:5", "": ""}[hung])
    reader.read(bytes(log.packets))
    found = [int(row['c"\\0名']) for value, _ in reader.messages for row in orjson.loads(value)["data"]]
    assert found == ([9] if hung == "here" else [0, 1, 2, 9])


BEGIN = struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0BEGIN"


def body_v1(body: bytes) -> bytes:
    """A WRITE_ROWS_V1 body, which MariaDB compresses: without the extra data."""
    return body[:8] + body[10:]


def packed_of(raw: bytes) -> bytes:
    return len(raw).to_bytes(4, "big") + zlib.compress(raw)


def inner_event(kind: int, body: bytes) -> bytes:
    return struct.pack("<IBIIIH", 1_700_000_000, kind, 1, 19 + len(body), 0, 0) + body


def payload(events: bytes) -> bytes:
    packed = zstandard.ZstdCompressor().compress(events)
    sizes = ((2, 0), (3, len(events)), (1, len(packed)))
    fields = b"".join(bytes([kind, 9]) + b"\xfe" + struct.pack("<Q", size) for kind, size in sizes)
    return fields + b"\0" + packed


@pytest.mark.parametrize("when", ["begun", "written"])
def test_a_spool_that_takes_no_large_event_is_named(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, table = tmp_path / "spool", table_of(blob("utf8mb4"))
    log = Binlog().begin_file()
    transaction(log, table, 30, b"\0" + struct.pack("<i", 1) + cell(b"x" * 17 * MIB))
    place = max(begin for _, kind, begin in events_of(bytes(log.packets[:1000])) if kind == 30)
    reader = Reader(destination(), daemon={"spool": str(spool)})
    if when == "begun":
        spool.touch()
    else:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        monkeypatch.setattr(inner, "new_file", lambda _: mock.Mock(write=mock.Mock(side_effect=full)))
    text = f"the event at b.000001:{place} has to wait in the folder {spool}, which can't be used: "
    with pytest.raises(SpoolError, match=re.escape(text)) as reported:
        reader.read(bytes(log.packets))
    assert "[daemon] spool" in reported.value.remedy
