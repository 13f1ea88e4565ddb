"""Native code makes the same values, keys and record batches as Python."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import struct
import types
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import aiokafka
import pytest

from headrace import native
from headrace.adapters.kafka import aiokafka_internals
from headrace.adapters.kafka.producer import build_batches, make_producer
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.cli.wiring import new_format
from headrace.formats.canal.text import Texts, native_style
from headrace.formats.debezium import types as debezium
from headrace.model import Column, Position
from headrace.mysql.decoder import Decoder
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.values import charsets, mariadb, old_temporal
from headrace.mysql.values import column_types as ct
from headrace.mysql.values.jsonb import json_text
from headrace.pipeline.message_builder import make_builder
from headrace.ports.source import Receiver
from headrace.rules.hashes import murmur2
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings
from headrace_common.numbers import float32, float_text
from tests.configured import destination_of
from tests.made_binlog import Binlog
from tests.random_tables import json_bytes

MODULE: Any = native.find().module
needs_native = pytest.mark.skipif(MODULE is None, reason="headrace-native is not installed: scripts/build-native")
TEXT = ("text", "base64")


@needs_native
@pytest.mark.parametrize("charset", sorted(set(charsets.WIDTHS) - {"binary"}))
def test_texts_of_all_character_sets_are_the_same(charset: str) -> None:
    decode, layout = charsets.codec_of(charset).decode, ("text", 4, charsets.native_charset(charset))
    rng = random.Random(charset)
    raws = [bytes((code,)) for code in range(256)]
    raws += [code.to_bytes(2, "big") for code in range(0, 1 << 16, 1 if charsets.WIDTHS[charset] == 2 else 97)]
    raws += [b"\x8f" + code.to_bytes(2, "big") for code in range(0, 1 << 16, 5 if "j" in charset else 197)]
    for _ in range(3_000):
        raws.append(charsets._four_bytes(rng.randrange(126 * 10 * 126 * 10)))
        raws.append(rng.randbytes(rng.randrange(8)))
    good = list[bytes]()
    for raw in raws:
        try:
            expected = decode(raw)
        except UnicodeDecodeError:
            with pytest.raises(ValueError, match="native"):
                MODULE.cell(layout, TEXT, raw)
        else:
            assert json.loads(MODULE.cell(layout, TEXT, raw)) == expected, raw
            good.append(raw)
    mixed = b"".join(rng.choice(good) for _ in range(20_000))
    assert json.loads(MODULE.cell(layout, TEXT, mixed)) == decode(mixed)


@needs_native
def test_values_that_no_random_table_has_are_the_same() -> None:
    rng, address, numbers = (
        random.Random(2),
        [b"", b"\0" * 16, b"\1"],
        [0.0, -0.0, 0.1, 1e22, 1e-7, 123.456, 2.675, -1.5],
    )
    address += [
        bytes(10) + b"\xff\xff" + rng.randbytes(4),
        bytes(12) + rng.randbytes(4),
        b"\x20\x01" + bytes(13) + b"\1",
    ]
    address += [bytes(rng.choice((0, 0, 0, 1, 255)) for _ in range(16)) for _ in range(2_000)]
    for kind, size in mariadb.FIXED_BINARY.items():
        for raw in {one[:size].rstrip(b"\0") for one in address} | {one[:size] for one in address}:
            assert MODULE.cell((kind,), TEXT, raw) == f'"{mariadb.FIXED_BINARY_TEXT[kind](raw)}"'
    numbers += [rng.uniform(-1e6, 1e6) for _ in range(500)]
    for number, decimals in itertools.product(numbers, (0, 1, 2, 5, 30)):
        for kind, code in (("double", "<d"), ("float", "<f")):
            column, raw = Column("c", f"{kind}(255,{decimals})", 0, False, True), struct.pack(code, number)
            (value,) = struct.unpack(code, raw)
            made = Texts("base64").printer(column)(float32(value) if kind == "float" else value)
            assert MODULE.cell((kind,), native_style(column, "base64"), raw) == made, (number, decimals, kind)
    for order, x, y in itertools.product((0, 1), numbers[:20], numbers[20:40]):
        raw = struct.pack("<I", rng.choice((0, 4326))) + struct.pack("<BI" if order else ">BI", order, 1)
        raw += struct.pack("<dd" if order else ">dd", x, y)
        for style, printer in (("point", debezium.point), ("geometry", debezium.geometry)):
            assert MODULE.cell(("bytes", 4, 0), (style,), raw) == printer(raw)


@needs_native
@pytest.mark.parametrize("fsp", range(7))
@pytest.mark.parametrize("kind", ["datetime", "timestamp", "time"])
def test_temporal_values_from_before_mysql_5_6_are_the_same(kind: str, fsp: int) -> None:
    rng, zone = random.Random(fsp), "Asia/Shanghai"
    codecs: dict[str, Callable[[], old_temporal.Codec]] = {
        "datetime": lambda: old_temporal.datetime(fsp),
        "timestamp": lambda: old_temporal.timestamp(fsp, ZoneInfo(zone)),
        "time": lambda: old_temporal.time(fsp),
    }
    code, size, text = codecs[kind]()
    layout: tuple[Any, ...] = (kind, fsp, True)
    if kind == "timestamp":
        layout = ct.for_native_code((*layout, zone))
    zero = 839 * 3600 * 10**fsp
    raws = [bytes(size), b"\xff" * size, *(rng.randbytes(size) for _ in range(300))]
    if kind == "datetime" and not fsp:
        numbers = [20260131235959, 99991231235959, 20261301000000, 20260132000000, 20260131240000, 20260131006000]
        raws += [number.to_bytes(8, "little") for number in (*numbers, 20260131000060, 10**14)]
    elif kind == "datetime":
        raws += [rng.randrange(10_000 * 13 * 32 * 86_400 * 10**fsp).to_bytes(size, "big") for _ in range(300)]
    elif kind == "time" and not fsp:
        raws += [n.to_bytes(3, "little", signed=True) for n in (8385959, -8385959, 8388607, 1, -1, 6000, 60, -235959)]
    elif kind == "time":
        raws += [(zero + n).to_bytes(size, "big") for n in (0, 1, -1, zero - 1, 1 - zero, -zero, 86_399 * 10**fsp)]
    else:
        raws += [n.to_bytes(4, "big") + (10**fsp - 1).to_bytes(size - 4, "big") for n in (0, 1, 2**31, 2**32 - 1)]
    seen = set()
    for raw in raws:
        (value,) = struct.unpack(f"<{code}", raw)
        try:
            made = f'"{text(value)}"'
        except ValueError:
            with pytest.raises(ValueError, match="not what native code reads"):
                MODULE.cell(layout, TEXT, raw)
        else:
            seen.add(made)
            assert MODULE.cell(layout, TEXT, raw) == made, raw.hex()
    assert len(seen) > 2


def test_native_code_is_given_each_offset_of_a_time_zone() -> None:
    rng = random.Random(4)
    for name in ("Asia/Shanghai", "Europe/Berlin", "America/St_Johns", "Africa/Casablanca", "Asia/Kolkata"):
        zone, changes = ZoneInfo(name), ct.offset_changes(name)
        for at in [rng.randrange(1 << 32) for _ in range(3_000)] + [at + by for at, _ in changes for by in (-1, 0)]:
            if at >= 0:
                offset = datetime.fromtimestamp(at, zone).utcoffset()
                assert offset == timedelta(seconds=[by for begin, by in changes if begin <= at][-1])


@needs_native
def test_numbers_have_the_same_text() -> None:
    rng = random.Random(1)
    doubles = [0.0, -0.0, 5e-324, 1.7976931348623157e308, *(2.0**k for k in range(-1074, 1024))]
    doubles += [rng.randrange(10**18) / 10 ** rng.randrange(18) for _ in range(20_000)]
    for x in doubles:
        assert MODULE.float_text(x, "mysql", False) == float_text(x)
        assert MODULE.float_text(x, "repr", False) == repr(x)
        if abs(x) < 3e38:
            (single,) = struct.unpack("<f", struct.pack("<f", x))
            assert MODULE.float_text(single, "repr", True) == repr(float32(single))
    for x in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="native"):
            MODULE.float_text(x, "mysql", False)


@needs_native
def test_documents_that_lie_are_left_to_python() -> None:
    rng, seen = random.Random(2), set()
    good = json_bytes({"a": [1, 2.5, "x" * 200, None, {"é": 1 << 40}], "b": {"c": "d"}})
    for _ in range(20_000):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(len(bad))] = rng.randrange(256)
        document = bytes(bad[: rng.choice((len(bad), rng.randrange(len(bad) + 1)))])
        try:
            made = MODULE.json_text(document)
        except ValueError:
            seen.add("refused")
            continue
        seen.add("read")
        assert made == json_text(document)
    assert seen == {"refused", "read"}


@needs_native
def test_keys_hash_to_the_same_partitions() -> None:
    rng = random.Random(3)
    keys = [rng.randbytes(n) for n in range(100)]
    assert [MODULE.murmur2(key) for key in keys] == murmur2(keys)


class Columns:
    """The same messages as lists and as native code's columns."""

    def __init__(self, count: int, seed: int) -> None:
        rng = random.Random(seed)
        self.values = [rng.choice((None, b"", rng.randbytes(rng.randrange(3000)))) for _ in range(count)]
        self.keys = [rng.choice((None, b"k" * rng.randrange(200))) for _ in range(count)]
        self.headers = [
            [("headrace-id", b"x" * rng.randrange(200)), ("é", b"")][: rng.randrange(3)] for _ in range(count)
        ]
        self.batch = MODULE.Batch()
        for column, values in ((self.batch.values, self.values), (self.batch.keys, self.keys)):
            column += values
        self.batch.headers.append(self.headers[0])
        column = self.batch.headers
        column += self.headers[1:]


@needs_native
def test_columns_can_be_read_as_lists() -> None:
    made = Columns(200, 4)
    columns = (made.batch.values, made.batch.keys, made.batch.headers)
    for column, values in zip(columns, (made.values, made.keys, made.headers), strict=True):
        assert len(column) == len(values)
        assert list(column) == values
        assert [column[i] for i in range(len(values))] == values
        assert column[-1] == values[-1]
        with pytest.raises(IndexError):
            column[len(values)]
    assert made.batch.values.total == sum(len(value) for value in made.values if value)
    assert made.batch.values.largest == max(len(value) for value in made.values if value)
    with pytest.raises(IndexError):
        made.batch.records(0, 201)


@needs_native
@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("transactional_id", [None, "t"])
@pytest.mark.parametrize("limit", [0, 5_000])
async def test_record_batches_are_those_of_the_client_byte_by_byte(
    compression: Any, transactional_id: str | None, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gzip, "time", types.SimpleNamespace(time=lambda: 1_700_000_000.0))  # stands in gzip's header
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers="k:9092",
        acks="all",
        enable_idempotence=True,
        compression_type=compression,
        max_batch_size=20_000,
        transactional_id=transactional_id,
    )
    producer._closed = True  # it is never started
    for seed in range(10):
        made = Columns(100, seed)
        theirs = aiokafka_internals.fill(producer, limit, 1_700_000_000_123, made.keys, made.values, made.headers)
        ours = aiokafka_internals.fill_native(producer, limit, 1_700_000_000_123, made.batch)
        for part in (*theirs, *ours):
            part._set_producer_state(7, 3, 1000)
        assert [part.record_count() for part in ours] == [part.record_count() for part in theirs]
        assert [part.size() for part in ours] == [part.size() for part in theirs]
        assert [bytes(part._build()) for part in ours] == [bytes(part._build()) for part in theirs]
        assert [part.size() for part in ours] == [part.size() for part in theirs]


@needs_native
@pytest.mark.parametrize(
    ("message", "rows"),
    [
        ({"format": "debezium", "debezium": {"schemas": False}}, 30),
        ({"format": "debezium", "debezium": {"schemas": False}}, 400),
        ({"format": "debezium"}, 50),
        ({"rows_per_message": 1}, 600),
        ({}, 300),
    ],
)
async def test_a_batch_of_rows_events_that_are_alike_is_one_record_batch(
    message: dict[str, Any], rows: int, unhurried: None
) -> None:
    binlog = Binlog().begin_file()
    for gno in range(1, 40 if rows > 30 else 150):
        binlog.transaction(gno, 1_700_000_000_000_000 + gno, [(gno * rows + i, "x" * 10) for i in range(rows)])
    config = destination_of(
        {
            "name": "shop",
            "source": {"host": "h", "user": "u", "password": "p"},
            "route": {"topic": "shop"},
            "message": message,
            "sink": {"type": "kafka", "bootstrap_servers": "k:9092"},
        }
    )
    assert max(_sizes(config, bytes(binlog.packets))) > 400_000


def _sizes(config: DestinationSettings, data: bytes) -> list[int]:
    """The sizes of the record batches of a binlog, of which there is one for each batch."""
    builder = make_builder(config, new_format(config), "3e11fa47-71ca-11e1-9e33-c80aa9429562", 1, MODULE)
    one = Decoder(
        DumpStart(Position("server", "b.000001", 4), checksums=True),
        Receiver(rows=builder.emit, native=builder.native),
        captures=builder.captures,
        options=DecoderOptions.of(config, DaemonSettings()),
    )
    assert isinstance(config.sink, KafkaSinkSettings)
    producer = make_producer(config.sink)
    producer._closed = True  # it is never started
    at, more, sizes = 0, True, []
    while more:
        builder.tick()
        at, more = one.feed(data, at, builder.full)
        for batch in builder.take(one.position(), 0.0):
            if batch.values:
                (part,) = build_batches(producer, batch)
                sizes.append(part.size())
    one.close()
    assert at == len(data)
    return sizes
