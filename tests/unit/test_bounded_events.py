"""Events that would take any amount of memory are refused, in bounded memory and time, and can be skipped."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Iterator

import pytest
import zstandard

from headrace.errors import NotUnderstood
from headrace.model import Column, RowsChange
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.values.column_types import BLOB_COMPRESSED, ValueOptions, field_of
from tests.made_binlog import Binlog, close_all, decoder, feed

MIB = 1 << 20
OPTIONS = DecoderOptions(max_event=4 * MIB)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


def bomb(size: int) -> bytes:
    """A compressed transaction of a few kB that holds one rows event of `size` bytes."""
    head = struct.pack("<IBIIIH", 0, 30, 1, size, 0, 0)
    packer = zstandard.ZstdCompressor().compressobj()
    packed = packer.compress(head) + packer.compress(bytes(size - len(head))) + packer.flush()
    fields = b"".join(bytes([k, 9]) + b"\xfe" + struct.pack("<Q", v) for k, v in ((2, 0), (3, size), (1, len(packed))))
    return fields + b"\0" + packed


def refused(log: Binlog, *, most: int = 24 * MIB, match: str = "larger than") -> None:
    data = bytes(log.packets)
    d = decoder([], options=OPTIONS)
    tracemalloc.start()
    try:
        with pytest.raises(NotUnderstood, match=match) as caught:
            feed(d, data)
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    place = str(caught.value).split("at ", 1)[1].split(": ", 1)[0]
    changes: list[RowsChange] = []
    feed(decoder(changes, options=DecoderOptions(max_event=4 * MIB, skip_events=frozenset({place}))), data)
    assert [row[0] for change in changes for row in change.rows][-1] == 9, "what follows comes"


def test_a_small_payload_that_becomes_one_large_event_is_refused() -> None:
    log = Binlog().begin_file()
    log.gtid(1, 1_700_000_000_000_000)
    body = bomb(500 * MIB)
    assert len(body) < 100_000
    log.event(40, body)
    log.transaction(2, 1_700_000_000_000_001, [(9, "x")])
    refused(log)


def test_an_event_in_several_packets_is_refused_beyond_the_limit() -> None:
    log = Binlog().begin_file()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    log.table()
    large(log, 30, 40 * MIB)
    log.event(16, bytes(8))
    log.transaction(2, 1_700_000_000_000_001, [(9, "x")])
    refused(log, most=24 * MIB)


def large(log: Binlog, kind: int, size: int, *, said: int = 0) -> None:
    """An event of more than 16 MB, in the packets that a server sends it in."""
    raw = struct.pack("<IBIIIH", 1_700_000_000, kind, 1, said or size, (log.at + size) & 0xFFFFFFFF, 0)
    raw += bytes(size - len(raw) - 4)
    raw = b"\0" + raw + struct.pack("<I", zlib.crc32(raw))
    log.at += size
    for at in range(0, len(raw) + 1, 0xFFFFFF):
        part = raw[at : at + 0xFFFFFF]
        log.packets += len(part).to_bytes(3, "little") + bytes([log.sequence & 255]) + part
        log.sequence += 1


def test_an_event_that_never_ends_is_refused_as_soon_as_it_is_longer_than_it_says() -> None:
    log = Binlog().begin_file()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    log.table()
    large(log, 30, 60 * MIB, said=17 * MIB)
    with pytest.raises(NotUnderstood, match="continues after the bytes that it says it has"):
        feed(decoder([], options=OPTIONS), bytes(log.packets[: 40 * MIB]))


def test_a_compressed_statement_of_mariadb_is_refused_by_what_it_says_before_it_is_decompressed() -> None:
    log = Binlog().begin_file()
    packed = zlib.compress(b"x" * 300 * MIB, 9)
    head = struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0"
    log.event(165, head + b"\x84" + (300 * MIB).to_bytes(4, "big") + packed)
    log.transaction(2, 1_700_000_000_000_001, [(9, "x")])
    refused(log)


def test_a_compressed_event_of_mariadb_is_refused_by_what_it_says_before_it_is_decompressed() -> None:
    log = Binlog().begin_file()
    log.query("BEGIN")
    log.table()
    packed = zlib.compress(bytes(300 * MIB), 9)
    body = struct.pack("<IHHH", 7, 0, 1, 2) + b"\x02\xff" + b"\x84" + (300 * MIB).to_bytes(4, "big") + packed
    log.event(169, body)
    log.event(16, bytes(8))
    log.transaction(2, 1_700_000_000_000_001, [(9, "x")])
    refused(log)


def test_a_compressed_value_of_mariadb_is_refused_by_what_it_says_before_it_is_decompressed() -> None:
    packed = zlib.compress(bytes(300 * MIB), 9)
    value = b"\x84" + (300 * MIB).to_bytes(4, "big") + packed
    field = field_of(
        BLOB_COMPRESSED,
        4,
        Column("v", "longblob /*M!100301 COMPRESSED*/", -4, charset="binary"),
        ValueOptions(largest=4 * MIB),
    )
    assert field.post is not None
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"larger than .*max_event"):
        field.post(value)
    assert tracemalloc.get_traced_memory()[1] < MIB
    tracemalloc.stop()
