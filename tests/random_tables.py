"""Tables of random layouts with random rows, as a server would write them into its binlog."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.mysql.values import column_types as ct
from headrace.mysql.values.charsets import _COLLATIONS, _PYTHON, _SINGLE
from headrace.mysql.values.values import decimal_size
from tests.made_binlog import Binlog, captured, payload
from tests.own_tables import own_event

COLLATIONS = {name: int(text.split()[0].split("-")[0]) for name, text in _COLLATIONS.items() if name != "binary"}
_NATIVE_CHARSETS = ["utf8mb4", "utf8mb3", "latin1", "ascii", *sorted(_SINGLE)]
_WORDS = (
    "",
    "a",
    "plain words",
    'quote " and \\',
    "tab\tline\nend\r\b\f\x00\x1f\x7f",
    "家庭保洁",
    "é",
    "😀",
    "x" * 300,
)


_KINDS = (
    *(ct.TINY, ct.SHORT, ct.INT24, ct.LONG, ct.LONGLONG, ct.LONGLONG, ct.FLOAT, ct.DOUBLE, ct.YEAR, ct.NEWDECIMAL),
    *(ct.BIT, ct.ENUM, ct.SET, ct.DATE, ct.DATETIME2, ct.TIMESTAMP2, ct.TIME2, ct.VARCHAR, ct.VARCHAR, ct.STRING),
    *(ct.DATETIME, ct.TIMESTAMP, ct.TIME),  # as before MySQL 5.6
    *(ct.BLOB, ct.BLOB, ct.JSON, ct.JSON, ct.GEOMETRY, ct.VECTOR, ct.BLOB_COMPRESSED, ct.VARCHAR_COMPRESSED),
)
_BLOBS = ct.BLOB, ct.BLOB_COMPRESSED


_OLD = {ct.DATETIME: 8, ct.TIMESTAMP: 4, ct.TIME: 3}
"""Bytes of temporal types from before MySQL 5.6, without a fraction."""


def json_bytes(value: Any, *, large: bool = False) -> bytes:
    """A document in MySQL's binary JSON."""
    kind, raw = _json(value, large)
    return bytes([kind]) + raw


def _length(n: int) -> bytes:
    made = bytearray()
    while n >= 0x80:
        made.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*made, n])


@dataclass(frozen=True)
class Opaque:
    """A value of a MySQL type that JSON lacks."""

    kind: int
    raw: bytes


def _json(value: Any, large: bool) -> tuple[int, bytes]:
    if isinstance(value, dict | list):
        return _container(value, large)
    if value is None or isinstance(value, bool):
        return 4, bytes([0 if value is None else 1 if value else 2])
    if isinstance(value, int):
        for kind, code, low, high in (
            (5, "<h", -(1 << 15), 1 << 15),
            (6, "<H", 0, 1 << 16),
            (7, "<i", -(1 << 31), 1 << 31),
        ):
            if low <= value < high:
                return kind, struct.pack(code, value)
        if 0 <= value < 1 << 32:
            return 8, struct.pack("<I", value)
        return (9, struct.pack("<q", value)) if value < 1 << 63 else (10, struct.pack("<Q", value))
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if isinstance(value, Opaque):
        return 15, bytes([value.kind]) + _length(len(value.raw)) + value.raw
    raw = value.encode()
    return 12, _length(len(raw)) + raw


def _container(value: dict[str, Any] | list[Any], large: bool) -> tuple[int, bytes]:
    number, size = ("<I", 4) if large else ("<H", 2)
    members = list(value.values()) if isinstance(value, dict) else value
    keys = [key.encode() for key in value] if isinstance(value, dict) else []
    at = 2 * size + len(keys) * (size + 2) + len(members) * (size + 1)
    key_entries, entries, tail = b"", b"", b""
    for key in keys:
        key_entries += struct.pack(number, at + len(tail)) + struct.pack("<H", len(key))
        tail += key
    for member in members:
        kind, raw = _json(member, large)
        if kind in (4, 5, 6) or (large and kind in (7, 8)):
            entries += bytes([kind]) + (raw + bytes(size))[:size]
        else:
            entries += bytes([kind]) + struct.pack(number, at + len(tail))
            tail += raw
    body = struct.pack(number, len(members)) + struct.pack(number, at + len(tail)) + key_entries + entries + tail
    return (0 if isinstance(value, dict) else 2) + large, body


def lenenc(n: int) -> bytes:
    return bytes([n]) if n < 251 else b"\xfc" + struct.pack("<H", n)


@dataclass
class Column:
    """One column: its type byte and metadata as they stand in the event, its charset or "", and its labels."""

    kind: int
    meta: bytes
    real: int
    """What real_type() makes of them, and its number."""
    number: int
    charset: str = ""
    unsigned: bool = False
    labels: tuple[str, ...] = ()


@dataclass
class Table:
    """A table with its random numbers: `rows()` makes what a rows event has."""

    rng: random.Random
    name: str = "t"
    id: int = 7
    columns: list[Column] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    broken: float = 0.01
    """How often a value is bytes at random."""
    large: int = 1
    """How many times as long texts and binary strings are that may be long."""

    def body(self) -> bytes:
        """A TABLE_MAP with full metadata."""
        count, named = len(self.columns), self.name.encode()
        body = self.id.to_bytes(6, "little") + b"\x01\0" + b"\x04shop\0" + bytes([len(named)]) + named + b"\0"
        meta = b"".join(one.meta for one in self.columns)
        body += lenenc(count) + bytes(one.kind for one in self.columns) + lenenc(len(meta)) + meta
        body += b"\xff" * ((count + 7) // 8)
        numeric = [one for one in self.columns if one.real in ct.NUMERIC]
        signs = bytearray((len(numeric) + 7) // 8)
        for i, one in enumerate(numeric):
            signs[i // 8] |= one.unsigned << (7 - i % 8)
        character = [one for one in self.columns if one.real in ct.CHARACTER]
        labelled = [one for one in self.columns if one.labels]
        names = [f"c{i}" if i % 5 else f'c"\\{i}名' for i in range(count)]
        blocks = [
            (1, bytes(signs)),
            (3, b"".join(lenenc(63 if one.charset == "binary" else COLLATIONS[one.charset]) for one in character)),
            (4, b"".join(lenenc(len(name.encode())) + name.encode() for name in names)),
            (8, b"".join(map(lenenc, self.keys))),
        ]
        for kind, number in ((ct.SET, 5), (ct.ENUM, 6)):
            texts = [
                lenenc(len(one.labels)) + b"".join(lenenc(len(label.encode())) + label.encode() for label in one.labels)
                for one in labelled
                if one.real == kind
            ]
            blocks.append((number, b"".join(texts)))
        blocks.append((11, b"".join(lenenc(COLLATIONS["utf8mb4"]) for _ in labelled)))
        return body + b"".join(bytes([n]) + lenenc(len(raw)) + raw for n, raw in blocks if raw)

    def row(self) -> bytes:
        """One row image."""
        rng = self.rng
        nulls, cells = bytearray((len(self.columns) + 7) // 8), b""
        for i, one in enumerate(self.columns):
            if i not in self.keys and rng.random() < 0.15:
                nulls[i // 8] |= 1 << i % 8
            else:
                cells += value(rng, one, self.broken, self.large)
        return bytes(nulls) + cells

    def event(self, kind: int, rows: Sequence[bytes]) -> bytes:
        """The body of a rows event (30, 31 with two images a row, 32)."""
        bits = b"\xff" * ((len(self.columns) + 7) // 8)
        head = self.id.to_bytes(6, "little") + b"\x01\0" + struct.pack("<H", 2) + lenenc(len(self.columns))
        return head + bits * (2 if kind == 31 else 1) + b"".join(rows)

    def compressed(self, kind: int, body: bytes) -> tuple[int, bytes]:
        """The kind and body of the same event with log_bin_compress of MariaDB."""
        first = 11 + (len(self.columns) + 7) // 8 * (2 if kind == 31 else 1)
        length = len(body) - first
        head = bytes([0x80 | 4]) + length.to_bytes(4, "big")
        return kind + 139, body[:first] + head + zlib.compress(body[first:])


def table(rng: random.Random, number: int, *, broken: float = 0.01) -> Table:
    """A table of one to twenty columns, the first of which is the key as a rule."""
    count = rng.choice((1, 2, 5, 8, 9, 20))
    made = Table(rng, f"t{number}", 7 + number, broken=broken)
    made.columns = [column(rng) for _ in range(count)]
    made.keys = rng.choice(([0], [0], sorted(rng.sample(range(count), min(2, count))), []))
    return made


def column(rng: random.Random) -> Column:
    kind = rng.choice(_KINDS)
    if kind in (ct.TINY, ct.SHORT, ct.INT24, ct.LONG, ct.LONGLONG):
        return Column(kind, b"", kind, 0, unsigned=rng.random() < 0.5)
    if kind == ct.YEAR:
        return Column(kind, b"", kind, 0, unsigned=True)
    if kind in (ct.DATE, *_OLD):
        return Column(kind, b"", kind, 0)
    if kind in (ct.FLOAT, ct.DOUBLE):
        return Column(kind, bytes([4 if kind == ct.FLOAT else 8]), kind, 0)
    if kind == ct.NEWDECIMAL:
        precision = rng.randrange(1, 66)
        scale = rng.randrange(min(precision, 30) + 1)
        return Column(kind, bytes([precision, scale]), kind, precision | scale << 8)
    if kind == ct.BIT:
        bits = rng.randrange(1, 65)
        return Column(kind, bytes([bits % 8, bits // 8]), kind, bits)
    if kind in (ct.ENUM, ct.SET):
        few = rng.randrange(1, 9)
        labels = tuple(f"{word[:20]}{i}".replace(",", "") for i, word in enumerate(rng.choices(_WORDS, k=few)))
        size = 1
        return Column(ct.STRING, bytes([kind, size]), kind, size, labels=labels)
    if kind in (ct.DATETIME2, ct.TIMESTAMP2, ct.TIME2):
        fsp = rng.randrange(7)
        return Column(kind, bytes([fsp]), kind, fsp)
    if kind in (ct.JSON, ct.GEOMETRY, ct.VECTOR):
        return Column(kind, b"\x04", kind, 4, charset="binary" if kind == ct.VECTOR else "")
    charset = rng.choice((*_NATIVE_CHARSETS, *COLLATIONS, *["utf8mb4"] * 20, *["binary"] * 10))
    if kind in _BLOBS:
        size = rng.choice((1, 2, 3, 4))
        return Column(kind, bytes([size]), kind, size, charset)
    if kind == ct.STRING:
        longest = rng.choice((1, 16, 255))
        return Column(kind, bytes([ct.STRING, longest]), kind, longest, charset)
    longest = rng.choice((1, 200, 255, 256, 2000))
    return Column(kind, struct.pack("<H", longest), kind, longest, charset)


def value(rng: random.Random, one: Column, broken: float, large: int = 1) -> bytes:
    """One value as it stands in a row image."""
    kind, number = one.real, one.number
    sizes = {ct.TINY: 1, ct.SHORT: 2, ct.INT24: 3, ct.LONG: 4, ct.LONGLONG: 8, ct.YEAR: 1}
    bad = rng.random() < broken
    if kind in sizes:
        return rng.choice((bytes(sizes[kind]), b"\xff" * sizes[kind], rng.randbytes(sizes[kind])))
    if kind == ct.FLOAT:
        return (
            struct.pack("<f", rng.choice((0.0, -0.0, 1.1, 3e38, rng.uniform(-1e6, 1e6))))
            if not bad
            else b"\0\0\xc0\x7f"
        )
    if kind == ct.DOUBLE:
        return struct.pack(
            "<d", rng.choice((0.0, -0.0, 1.1, 1e300, 5e-324, float(rng.randrange(10**17)), rng.random()))
        )
    if kind == ct.NEWDECIMAL:
        return _decimal(rng, number & 0xFF, number >> 8, bad)
    if kind == ct.BIT:
        return rng.randrange(1 << number).to_bytes((number + 7) // 8, "big")
    if kind == ct.ENUM:
        return bytes([rng.randrange(len(one.labels) + 1) if not bad else 200])
    if kind == ct.SET:
        return bytes([rng.randrange(1 << len(one.labels)) if not bad else 255])
    if kind in (ct.DATE, ct.DATETIME2, ct.TIMESTAMP2, ct.TIME2):
        return _temporal(rng, kind, number, bad)
    if kind in _OLD:
        return _old_temporal(rng, kind, bad)
    if kind == ct.JSON:
        raw = _document(rng, bad)
    elif kind == ct.GEOMETRY:
        raw = struct.pack("<IBIdd", rng.choice((0, 4326)), 1, 1, rng.random(), -1.5)
    elif kind == ct.VECTOR:
        raw = struct.pack("<3f", *(rng.uniform(-9, 9) for _ in range(3)))
    else:
        raw = _text(rng, one, bad and kind not in ct.COMPRESSED)
        if kind in _BLOBS and number > 2:
            raw *= large
        if kind in ct.COMPRESSED:
            raw = _compressed(rng, raw, bad)
    width = number if kind in (*_BLOBS, ct.JSON, ct.GEOMETRY, ct.VECTOR) else 2 if number > 255 else 1
    return len(raw).to_bytes(width, "little") + raw


def _decimal(rng: random.Random, precision: int, scale: int, bad: bool) -> bytes:
    size = decimal_size(precision, scale)
    if bad:
        return rng.randbytes(size)
    digits = rng.choice(("0" * precision, "9" * precision, f"{rng.randrange(10**precision):0{precision}d}"))
    whole, fraction = digits[: precision - scale], digits[precision - scale :]
    bytes_of = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
    lead = len(whole) % 9
    groups = [whole[:lead]] if lead else []
    groups += [whole[i : i + 9] for i in range(lead, len(whole), 9)]
    groups += [fraction[i : i + 9] for i in range(0, len(fraction), 9)]
    raw = bytearray(b"".join(int(group).to_bytes(bytes_of[len(group)], "big") for group in groups))
    if rng.random() < 0.4:
        raw = bytearray(byte ^ 0xFF for byte in raw)
    raw[0] ^= 0x80
    return bytes(raw)


def _temporal(rng: random.Random, kind: int, fsp: int, bad: bool) -> bytes:
    size = {ct.DATE: 3, ct.DATETIME2: 5, ct.TIMESTAMP2: 4, ct.TIME2: 3}[kind]
    width = (fsp + 1) // 2 if kind != ct.DATE else 0
    if bad:
        return rng.randbytes(size + width)
    fraction = rng.choice((0, 10 ** (2 * width) - 1, rng.randrange(10 ** (2 * width)))) if width else 0
    tail = fraction.to_bytes(width, "big") if width else b""
    year, month, day = rng.choice(
        ((0, 0, 0), (2026, 2, 30), (9999, 12, 31), (2024, 2, 29), (1969, 12, 31), (0, 2, 29), (1582, 10, 10))
    )
    if rng.random() < 0.6:
        year, month, day = rng.randrange(10000), rng.randrange(1, 13), rng.randrange(1, 29)
    if kind == ct.DATE:
        return (year << 9 | month << 5 | day).to_bytes(3, "little")
    clock = rng.randrange(24) << 12 | rng.randrange(60) << 6 | rng.randrange(60)
    if kind == ct.DATETIME2:
        return (((year * 13 + month) << 22 | day << 17 | clock) + 0x8000000000).to_bytes(5, "big") + tail
    if kind == ct.TIMESTAMP2:
        return rng.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, rng.randrange(1 << 32))).to_bytes(4, "big") + tail
    whole = rng.choice((0, 838 << 12 | 59 << 6 | 59, clock)) << (8 * width) | fraction
    signed = -whole if rng.random() < 0.4 else whole
    return (signed + (0x800000 << (8 * width))).to_bytes(3 + width, "big")


def _old_temporal(rng: random.Random, kind: int, bad: bool) -> bytes:
    """A value of a type without a fraction."""
    size = _OLD[kind]
    if bad:
        return rng.randbytes(size)
    if kind == ct.TIMESTAMP:
        return rng.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, rng.randrange(1 << 32))).to_bytes(size, "little")
    clock = rng.randrange(24) * 10_000 + rng.randrange(60) * 100 + rng.randrange(60)
    if kind == ct.TIME:
        return rng.choice((0, clock, -clock, 8_385_959, -8_385_959)).to_bytes(size, "little", signed=True)
    year, month, day = rng.choice(((0, 0, 0), (2026, 2, 30), (9999, 12, 31), (rng.randrange(10_000), 5, 28)))
    return (((year * 100 + month) * 100 + day) * 1_000_000 + clock).to_bytes(size, "little")


def _document(rng: random.Random, bad: bool) -> bytes:
    opaque = [
        Opaque(246, b"\x0a\x02" + _decimal(rng, 10, 2, False)),
        Opaque(12, ((((2026 * 13 + 5) << 22 | 3 << 17 | 4 << 12 | 5 << 6 | 6) << 24) | 123456).to_bytes(8, "little")),
        Opaque(10, (((2026 * 13 + 5) << 22 | 3 << 17) << 24).to_bytes(8, "little")),
        Opaque(11, (-((4 << 12 | 5 << 6 | 6) << 24 | 7)).to_bytes(8, "little", signed=True)),
        Opaque(252, rng.randbytes(rng.choice((0, 5, 57, 58, 200)))),
    ]
    plain = [
        None,
        True,
        False,
        1,
        -1,
        40000,
        -40000,
        1 << 31,
        1 << 63,
        -(1 << 63),
        1.5,
        1e300,
        -0.0,
        3.0,
        *_WORDS,
        *opaque,
    ]

    def some(depth: int) -> Any:
        what = rng.random()
        if depth > 3 or what < 0.5:
            return rng.choice(plain)
        count = rng.randrange(5)
        if what < 0.8:
            return {f"{rng.choice(_WORDS)[:30]}{i}": some(depth + 1) for i in range(count)}
        return [some(depth + 1) for _ in range(count)]

    raw = json_bytes(some(0) if rng.random() < 0.3 else {"a": some(1), "bc": some(1)}, large=rng.random() < 0.2)
    if rng.random() < 0.02:
        return b""
    if bad:
        damaged = bytearray(raw)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        return bytes(damaged[: rng.choice((len(damaged), rng.randrange(len(damaged) + 1)))])
    return raw


def _compressed(rng: random.Random, raw: bytes, bad: bool) -> bytes:
    """A value as a compressed column of MariaDB stores it."""
    if not raw or rng.random() < 0.2:
        return raw and b"\0" + raw
    window = rng.choice((zlib.MAX_WBITS, -zlib.MAX_WBITS))
    deflate = zlib.compressobj(wbits=window)
    size = len(raw).to_bytes((len(raw).bit_length() + 7) // 8, "big")
    made = bytearray(bytes([0x80 | 8 * (window < 0) | len(size)]) + size + deflate.compress(raw) + deflate.flush())
    if bad:
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


def _text(rng: random.Random, one: Column, bad: bool) -> bytes:
    longest = one.number if one.real not in _BLOBS else 200
    longest = min(longest, 250)
    if one.charset == "binary" or bad:
        return rng.randbytes(rng.randrange(min(longest, 40) + 1))
    word = rng.choice(_WORDS)
    if one.charset in _PYTHON and one.charset != "utf8mb3":
        raw = word.encode(_PYTHON[one.charset][0], "ignore")
    elif one.charset == "utf8mb3":
        raw = word.replace("😀", "").encode()
    else:
        raw = bytes(code & 0x7F or 0x41 for code in word.encode())
        if one.charset in _SINGLE and rng.random() < 0.5:
            raw = rng.randbytes(10)
    while len(raw) > longest:  # whole characters
        raw = (
            raw.decode(_PYTHON[one.charset][0])[:-1].encode(_PYTHON[one.charset][0])
            if one.charset in _PYTHON
            else raw[:longest]
        )
    return raw


def large_images(rng: random.Random, one: Table, images: int) -> list[bytes]:
    """Row images of an event that is published in parts: many, or some with large values."""
    one.large = rng.choice((1, 1, 100, 5_000, 20_000))
    some = [one.row() for _ in range(rng.choice((2, 7, 40)))]
    one.large = 1
    mean = sum(map(len, some)) // len(some) + 1
    rows = min(rng.choice((1, 2, 900, 5_000, 5_001, 10_001)), rng.choice((70_000, 1_500_000)) // (images * mean) + 1)
    made = [rng.choice(some) for _ in range(rows)]
    same = rng.random() < 0.5
    return made if images == 1 else [image for row in made for image in (row, row if same else rng.choice(some))]


def transaction(
    rng: random.Random,
    binlog: Binlog,
    gno: int,
    tables: Sequence[Table],
    *,
    small: bool = False,
    large: bool = False,
    damage: float = 0.005,
) -> None:
    """A transaction of some rows events, with or without a GTID; a small one is mostly as the one before, with few
    rows; of a `large` one each event may be published in parts."""
    micros = 1_700_000_000_000_000 + gno * rng.choice((0, 1, 1000)) + rng.randrange(3)
    small = small and rng.random() < 0.97
    own = rng.choice((0.0, 0.0, 0.0, 0.0, 0.3, 1.0))
    """How often an event is about one of headrace's tables."""
    what = rng.random() * (0.8 if small else 1)
    if what < 0.8 or binlog.mariadb:
        binlog.gtid(gno, micros)
    elif what < 0.9:
        binlog.gtid(0, micros)

    def rest() -> None:
        binlog.query("BEGIN")
        for _ in range(1 if small else rng.choice((1, 1, 1, 2, 4))):
            if rng.random() < own:
                own_event(rng, binlog)
                continue
            one = rng.choice(tables)
            if rng.random() < 0.1:  # the server has opened it again
                one.id = rng.randrange(100, 1 << 40)
            binlog.event(19, one.body())
            kind = rng.choice((30, 30, 31, 32))
            rows = []
            for _ in range(1 if small else rng.choice((1, 1, 2, 5, 30))):
                row = one.row()
                rows.append(row)
                if kind == 31:
                    rows.append(row if rng.random() < 0.2 else one.row())
            if large and rng.random() < 0.7:
                rows = large_images(rng, one, 2 if kind == 31 else 1)
            body = one.event(kind, rows)
            if binlog.mariadb and rng.random() < 0.4:
                kind, body = one.compressed(kind, body)
            binlog.event(kind, body[: -rng.randrange(1, 9)] if rng.random() < damage else body)
        if small or rng.random() < 0.95:
            binlog.event(16, struct.pack("<Q", gno))
        else:
            binlog.query("COMMIT")

    if rng.random() < 0.15 and not binlog.mariadb:
        binlog.event(40, payload(captured(binlog, rest)))
    else:
        rest()


def stream(rng: random.Random, *, broken: float = 0.005, mariadb: bool = False, large: float = 0.0) -> bytes:
    """The packets of one random binlog. `large`: how often it has large events."""
    version = b"10.11.6-MariaDB" if mariadb else b"9.7"
    binlog = Binlog(checksums=rng.random() < 0.85).begin_file(version=version)
    tables = [table(rng, i, broken=broken) for i in range(rng.choice((1, 2, 4, 12)))]
    gno = rng.randrange(1, 1 << 40)
    small, has_large = rng.random() < 0.3, rng.random() < large
    for _ in range(5 if has_large else 100 if small else rng.choice((1, 5, 20))):
        gno += rng.choice((1, 1, 1, 1, 3))
        transaction(rng, binlog, gno, tables, small=small, large=has_large and rng.random() < 0.6)
        if rng.random() < 0.05:
            binlog.query("CREATE TABLE other (a INT)")
    return bytes(binlog.packets)
