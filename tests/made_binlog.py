"""Binlog streams made by hand, packet by packet, and a decoder that is fed with them as the daemon feeds it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import zstandard

from headrace.model import Position, RowsChange
from headrace.mysql.decoder import Decoder
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.schema.comparison import SchemaComparison
from headrace.mysql.schema.history import SchemaHistory
from headrace.ports.source import Receiver

SID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
RAW_SID = bytes.fromhex(SID.replace("-", ""))
FULL = 0xFFFFFF
"""Bytes of a packet that another one continues."""
NAME = '`"\\{}\'; drop table "名'


class Binlog:
    """Writes packets as a server does, from offset 4 on."""

    def __init__(self, *, checksums: bool = True) -> None:
        self.at, self.packets = 4, bytearray()
        self.sequence, self.checksums, self.says_checksums = 0, checksums, True
        self.mariadb = False

    def event(
        self,
        kind: int,
        body: bytes,
        *,
        when: int = 1_700_000_000,
        artificial: bool = False,
        flip: int = 0,
        flags: int = 0,
    ) -> None:
        checksum = self.checksums or (kind == 15 and self.says_checksums)
        size = 19 + len(body) + 4 * checksum
        end = 0 if artificial else self.at + size
        raw = struct.pack("<IBIIIH", when, kind, 1, size, end & 0xFFFFFFFF, flags) + body
        if checksum:
            raw += struct.pack("<I", zlib.crc32(raw) ^ flip)
        if not artificial:
            self.at += size
        raw = b"\0" + raw
        for start in range(0, len(raw) + 1, FULL):
            packet = raw[start : start + FULL]
            self.packets += len(packet).to_bytes(3, "little") + bytes([self.sequence & 255]) + packet
            self.sequence += 1

    def begin_file(self, name: str = "b.000001", version: bytes = b"9.7") -> Binlog:
        self.mariadb = version.endswith(b"MariaDB")
        self.says_checksums = not version.startswith(b"5.")  # whether there are any, and of the event that says so
        self.event(4, struct.pack("<Q", 4) + name.encode(), when=0, artificial=True)
        says = bytes([self.checksums]) if self.says_checksums else b""
        self.event(15, struct.pack("<H50sIB", 4, version, 0, 19) + bytes([8] * 40) + says)
        return self

    def gtid(self, gno: int, micros: int) -> None:
        if self.mariadb:  # it has no BEGIN after it
            self.event(162, struct.pack("<QIB", gno, 3, 8) + bytes(6), when=micros // 1_000_000)
            return
        self.event(
            33, b"\0" + RAW_SID + struct.pack("<Q", gno) + b"\x02" + bytes(16) + micros.to_bytes(7, "little") + b"\0"
        )

    def query(self, text: str) -> None:
        if self.mariadb and text == "BEGIN":
            return
        self.event(2, struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0" + text.encode())

    def table(
        self, name: str = "t", columns: tuple[str, ...] = ("id", NAME), collation: int = 45, *, named: bool = True
    ) -> None:
        texts = b"".join(bytes([len(c.encode())]) + c.encode() for c in columns)
        names = b"\x04" + bytes([len(texts)]) + texts if named else b""
        body = struct.pack("<IHH", 7, 0, 1) + b"\x04shop\0" + bytes([len(name)]) + name.encode() + b"\0"
        body += bytes([len(columns)]) + b"\x03\x0f" + b"\x02" + struct.pack("<H", 160) + b"\x02"
        body += b"\x01\x01\x00" + b"\x02\x01" + bytes([collation]) + names + b"\x08\x01\x00"
        self.event(19, body)

    def insert(self, *rows: tuple[int, str | None], kind: int = 30) -> None:
        body = struct.pack("<IHHH", 7, 0, 1, 2) + b"\x02\xff" + (b"\xff" if kind == 31 else b"")
        for key, text in rows:
            raw = b"" if text is None else bytes([len(text.encode())]) + text.encode()
            body += (b"\xfe" if text is None else b"\xfc") + struct.pack("<i", key) + raw
        self.event(kind, body)

    def transaction(self, gno: int, micros: int, *groups: list[tuple[int, str | None]]) -> None:
        self.gtid(gno, micros)
        self.query("BEGIN")
        for rows in groups:
            self.table()
            self.insert(*rows)
        self.event(16, struct.pack("<Q", gno))


def inner(kind: int, body: bytes) -> bytes:
    """An event within another one: no checksum, no position."""
    return struct.pack("<IBIIIH", 1_700_000_000, kind, 1, 19 + len(body), 0, 0) + body


def captured(log: Binlog, *calls: Callable[[], object]) -> bytes:
    """What `calls` write on the log, as inner events."""
    before, at, sequence = bytes(log.packets), log.at, log.sequence
    log.packets.clear()
    for call in calls:
        call()
    events, p = b"", 0
    while p < len(log.packets):
        body, size = b"", FULL
        while size == FULL:
            size = int.from_bytes(log.packets[p : p + 3], "little")
            body += log.packets[p + 4 : p + 4 + size]
            p += 4 + size
        events += inner(body[5], body[20 : -4 if log.checksums else None])
    log.packets, log.at, log.sequence = bytearray(before), at, sequence
    return events


def payload(events: bytes, *, algorithm: int = 0, said: int | None = None, frames: int = 1) -> bytes:
    """The body of a TRANSACTION_PAYLOAD event."""
    if algorithm == 255:
        packed = events
    else:
        step = -(-len(events) // frames)
        packed = b"".join(
            zstandard.ZstdCompressor().compress(events[i : i + step]) for i in range(0, len(events), step)
        )
    sizes = [
        bytes([2, 3 if algorithm > 250 else 1]) + (b"\xfc\xff\0" if algorithm > 250 else bytes([algorithm])),
        b"\x03\x09\xfe" + struct.pack("<Q", len(events) if said is None else said),
        b"\x01\x09\xfe" + struct.pack("<Q", len(packed)),
    ]
    return b"".join(sizes) + b"\0" + packed


_made: list[Decoder] = []


def close_all() -> None:
    """Ends the decoders that a test made."""
    while _made:
        _made.pop().close()


def decoder(
    changes: list[RowsChange],
    start: Position | None = None,
    *,
    skip_before: int = 0,
    history: SchemaHistory | None = None,
    options: DecoderOptions | None = None,
    comparison: SchemaComparison | None = None,
    apart: bool = False,
    **receiver: Any,
) -> Decoder:
    """One that gives rows to `changes`, and what else is wanted to `receiver`; the table `dropped` is not captured."""
    begin = DumpStart(start or Position("server", "b.000001", 4), checksums=True, skip_before=skip_before)
    captures: Callable[[str, str], bool] = lambda schema, table: table != "dropped"  # noqa: E731
    into = Receiver(rows=changes.append, **receiver)
    more: dict[str, Any] = {"history": history, "options": options, "comparison": comparison, "apart": apart}
    _made.append(Decoder(begin, into, captures=captures, **more))
    return _made[-1]


def feed(d: Decoder, data: bytes, sizes: Iterator[int] | None = None) -> None:
    """As the reader does it: in pieces of any size."""
    rest, at = b"", 0
    while at < len(data):
        step = next(sizes) if sizes else len(data)
        rest, at = rest + data[at : at + step], at + step
        done, more = 0, True
        while more:
            done, more = d.feed(rest, done, lambda: False)
        rest = rest[done:]
