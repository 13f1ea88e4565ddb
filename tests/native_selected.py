"""The same rows of a table, as a SELECT gives them, through Python and through native code: all that comes out must be
the same.

usage: python -m tests.native_selected [INPUTS] [SEED]
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from headrace import runtime
from headrace.adapters.rabbitmq.frames import Encoder
from headrace.cli.wiring import new_format
from headrace.errors import HeadraceError
from headrace.large_values import settled
from headrace.model import ABSENT, Column, Operation, Position, Row, RowsChange, TableSchema
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.snapshot.chunk import ChunkDecoder, MysqlChunk, ReadFacts
from headrace.mysql.snapshot.select import TableSelect
from headrace.mysql.undecodable import UndecodableTexts
from headrace.mysql.values.column_types import ValueOptions
from headrace.mysql.values.textcode import BROKEN, make_text_decoder
from headrace.mysql.wire.query_stream import RowBlock, RowBytes
from headrace.native import find
from headrace.pipeline import message_builder
from headrace.pipeline.message_builder import MessageBuilder, make_builder
from headrace.ports.tables import Watermark
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings
from headrace.snapshot.merge import SnapshotMerge
from headrace.snapshots import Snapshot
from tests.native_differential import settings

_WORDS = ("", "a", "plain words", 'quote " and \\', "tab\tline\n\x00\x1f", "家庭保洁", "é😀", "x" * 300, "y" * 70_000)
_INTS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_CHARSETS = ("utf8mb4", "utf8mb4", "utf8mb3", "latin1", "gbk", "ascii", "utf16")
_CODECS = {"utf8mb4": "utf-8", "utf8mb3": "utf-8", "latin1": "cp1252", "utf16": "utf-16-be"}
_Value = Callable[[random.Random], bytes]


# -- columns and values ----------------------------------------------------------------------------------------------


def _int(bits: int, *, unsigned: bool) -> _Value:
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return lambda rng: b"%d" % rng.choice((low, high, 0, 7, rng.randint(low, high)))


def _zerofilled(rng: random.Random) -> bytes:
    return b"%010d" % rng.choice((0, 7, (1 << 32) - 1))


def _decimal(precision: int, scale: int, *, unsigned: bool) -> _Value:
    def made(rng: random.Random) -> bytes:
        digits = rng.choice(("0" * precision, "9" * precision, f"{rng.randrange(10**precision):0{precision}d}"))
        whole, fraction = digits[: precision - scale].lstrip("0") or "0", digits[precision - scale :]
        sign = "-" if not unsigned and digits.strip("0") and rng.random() < 0.4 else ""
        filled = whole.zfill(precision - scale) if unsigned and rng.random() < 0.2 else whole
        return f"{sign}{filled}{'.' if fraction else ''}{fraction}".encode()

    return made


def _float(rng: random.Random) -> bytes:
    value = rng.choice((0.0, -0.0, 1.1, 3e38, -1e-40, rng.uniform(-1e6, 1e6)))
    return repr(struct.unpack("<f", struct.pack("<f", value))[0]).encode()


def _double(rng: random.Random) -> bytes:
    return rng.choice(
        (b"0", b"-0", b"1.1", b"1e300", b"5e-324", b"1.7976931348623157e308", repr(rng.random()).encode())
    )


def _year(rng: random.Random) -> bytes:
    return rng.choice((b"0000", b"1901", b"2155", b"2026", b"70", b"69", b"00"))


_DATES = ((0, 0, 0), (2026, 2, 30), (9999, 12, 31), (2024, 2, 29), (2026, 0, 0), (0, 2, 29), (1582, 10, 10))


def _date(rng: random.Random) -> bytes:
    usual = rng.randrange(10000), rng.randrange(1, 13), rng.randrange(1, 29)
    return b"%04d-%02d-%02d" % rng.choice((*_DATES, usual, usual, usual))


def _fraction(rng: random.Random, fsp: int) -> bytes:
    return b".%0*d" % (fsp, rng.choice((0, 10**fsp - 1, rng.randrange(10**fsp)))) if fsp else b""


def _clock(rng: random.Random) -> bytes:
    return b"%02d:%02d:%02d" % (rng.randrange(24), rng.randrange(60), rng.randrange(60))


def _datetime(fsp: int) -> _Value:
    return lambda rng: _date(rng) + b" " + _clock(rng) + _fraction(rng, fsp)


def _timestamp(fsp: int) -> _Value:
    def made(rng: random.Random) -> bytes:
        if rng.random() < 0.1:
            return b"0000-00-00 00:00:00" + (b"." + b"0" * fsp if fsp else b"")
        day = b"%04d-%02d-%02d " % (rng.randrange(1971, 2038), rng.randrange(1, 13), rng.randrange(1, 29))
        return day + _clock(rng) + _fraction(rng, fsp)

    return made


def _time(fsp: int) -> _Value:
    def made(rng: random.Random) -> bytes:
        sign = rng.choice((b"", b"-"))
        return sign + rng.choice((b"838:59:59", b"00:00:00", b"100:00:01", _clock(rng))) + _fraction(rng, fsp)

    return made


def _text(charset: str) -> _Value:
    def made(rng: random.Random) -> bytes:
        word = rng.choice(_WORDS[:-1] if rng.random() < 0.99 else _WORDS)
        return word.encode(_CODECS.get(charset, charset), "ignore")

    return made


def _bytes(most: int) -> _Value:
    return lambda rng: rng.randbytes(rng.randrange(most + 1))


def _geometry(rng: random.Random) -> bytes:
    return struct.pack("<IBIdd", rng.choice((0, 4326)), 1, 1, rng.random(), -1.5)


def _json(rng: random.Random) -> bytes:
    return rng.choice((b"null", b'{"a": 1, "b": [1.5, "x"]}', '["家", "\\""]'.encode(), b"1e300", b'""'))


def _column(rng: random.Random, name: str) -> tuple[Column, _Value]:
    """A column, and what makes the values that are selected of it."""
    kind = rng.choice((*_INTS, *_OTHERS))
    unsigned = rng.random() < 0.5
    if kind in _INTS:
        value = (
            _zerofilled if kind == "int" and unsigned and rng.random() < 0.3 else _int(_INTS[kind], unsigned=unsigned)
        )
        return Column(name, f"{kind}{' unsigned' if unsigned else ''}", 4, unsigned), value
    if kind == "decimal":
        precision = rng.randrange(1, 66)
        scale = rng.randrange(min(precision, 30) + 1)
        declared = f"decimal({precision},{scale}){' unsigned' if unsigned else ''}"
        made = _decimal(precision, scale, unsigned=unsigned)
        return Column(name, declared, 3, unsigned, length=precision, scale=scale), made
    if kind == "bit":
        bits = rng.randrange(1, 65)
        return Column(name, f"bit({bits})", -7, length=bits), lambda rng: rng.randrange(1 << bits).to_bytes(
            (bits + 7) // 8, "big"
        )
    if kind in ("enum", "set"):
        labels = tuple(f"{word[:20]}{i}".replace(",", "") for i, word in enumerate(rng.choices(_WORDS, k=5)))
        most = 5 if kind == "enum" else 31
        declared = f"{kind}({','.join(map(repr, labels))})"
        return Column(name, declared, 12, charset="utf8mb4", labels=labels), lambda rng: b"%d" % rng.randint(0, most)
    if kind in _TEMPORAL:
        fsp = rng.randrange(7)
        return Column(name, f"{kind}({fsp})" if fsp else kind, 93, length=fsp), _TEMPORAL[kind](fsp)
    if kind in ("varchar", "text"):
        charset = rng.choice(_CHARSETS)
        return Column(name, "varchar(300)" if kind == "varchar" else kind, 12, charset=charset, length=300), _text(
            charset
        )
    charset = "binary" if kind in ("varbinary", "blob") else ""
    return Column(name, kind, 12, charset=charset), _OTHERS[kind]


_TEMPORAL = {"datetime": _datetime, "timestamp": _timestamp, "time": _time}
_OTHERS: dict[str, _Value] = {
    **dict.fromkeys(("decimal", "bit", "enum", "set", "datetime", "timestamp", "time", "varchar", "text"), _year),
    "float": _float,
    "double": _double,
    "year": _year,
    "date": _date,
    "varbinary": _bytes(40),
    "blob": _bytes(400),
    "point": _geometry,
    "json": _json,
    "vector": lambda rng: struct.pack("<3f", *(rng.uniform(-9, 9) for _ in range(3))),
    "uuid": lambda rng: b"123e4567-e89b-12d3-a456-426614174000",
    "inet6": lambda rng: b"2001:db8::ff00:42:8329",
    "inet4": lambda rng: b"192.0.2.1",
}


# -- tables ----------------------------------------------------------------------------------------------------------


def _lenenc(value: bytes | None) -> bytes:
    if value is None:
        return b"\xfb"
    size = len(value)
    if size < 251:
        return bytes((size,)) + value
    return (b"\xfc" + struct.pack("<H", size) if size < 1 << 16 else b"\xfd" + size.to_bytes(3, "little")) + value


def packet(values: Sequence[bytes | None], content: bytes = b"") -> bytes:
    """A row with its header."""
    content = content or b"".join(map(_lenenc, values))
    return len(content).to_bytes(3, "little") + b"\0" + content


@dataclass(frozen=True, slots=True)
class Read:
    """A table that was read in chunks, each of one or more parts."""

    schema: TableSchema
    chunks: Sequence[Sequence[RowBytes]]


def read(rng: random.Random, broken: float) -> Read:
    """A random table with random rows; `broken`: how often a value is bytes at random."""
    named = [_column(rng, f"c{i}" if i % 5 else f'c"\\{i}名') for i in range(rng.choice((1, 2, 5, 8, 20)))]
    schema = TableSchema(
        "shop", f"t{rng.randrange(3)}", tuple(column for column, _ in named), rng.choice(((0,), (0,), ()))
    )

    def row() -> bytes:
        values: list[bytes | None] = []
        for i, (_, made) in enumerate(named):
            if i not in schema.keys and rng.random() < 0.15:
                values.append(None)
            else:
                values.append(rng.randbytes(rng.randrange(12)) if rng.random() < broken else made(rng))
        made = packet(values)
        return made if rng.random() >= broken else packet([], made[4 : rng.randrange(4, len(made) + 1)])

    chunks = []
    for _ in range(rng.choice((1, 1, 3))):
        parts = []
        for _ in range(rng.choice((1, 1, 4))):
            rows = [row() for _ in range(rng.choice((1, 3, 40, 200)))]
            parts.append(RowBytes(b"".join(rows), len(rows), last=sum(map(len, rows[:-1]))))
            if rng.random() < 0.1:  # as one that is too large for a packet
                large = row()
                parts.append(RowBytes(large, 1, len(large)))
        chunks.append(parts)
    return Read(schema, chunks)


class _Stream:
    """A stream that stays where it is."""

    def __init__(self, schema: TableSchema) -> None:
        self._schema, self._passed = schema, 5_000_000

    def position(self) -> Position:
        return Position("server", "b.000007", 1234, last_pos=self._passed)

    def passed(self, watermark: Watermark) -> bool:
        return True

    def table(self, schema: str, table: str) -> TableSchema:
        return self._schema


def outcome(
    table: Read, config: DestinationSettings, native: Any, kind: str, changed: RowsChange | None = None
) -> list[Any]:
    """All that comes of a table: progress and error, messages by topic and partition, and counts. Where batches end is
    not compared: large values, which Python publishes in slices, end them. `changed`: what the stream gives after each
    chunk was read."""
    # What a message is charged besides its bytes differs on purpose; with one figure for both, sizes can be compared.
    with (
        mock.patch.object(message_builder, "_NATIVE_OVERHEAD", message_builder._MESSAGE_OVERHEAD),
        mock.patch.object(message_builder, "_NATIVE_UNIT_OVERHEAD", message_builder._UNIT_OVERHEAD),
        mock.patch.object(runtime, "now_us", return_value=1_800_000_000_000_000),
    ):
        builder = make_builder(config, new_format(config), "server", 5, native)
        return asyncio.run(_outcome(table, config, builder, kind, changed))


async def _outcome(
    table: Read, config: DestinationSettings, builder: MessageBuilder, kind: str, changed: RowsChange | None
) -> list[Any]:
    merge = SnapshotMerge(
        (Snapshot("s", kind),),
        builder.captures,
        builder.emit,
        builder.full,
        emit_large=builder.emit_large,
        epoch=5,
        shows=builder.projections.shows,
        decides=builder.projections.decides,
        published=builder.projections.published,
        native=builder.native,
    )
    stream: Any = _Stream(table.schema)
    reading = merge.begin(merge.snapshots[0], ("shop", table.schema.table))
    options = DecoderOptions.of(config, DaemonSettings())
    texts = UndecodableTexts(stop=False)
    decoder = ChunkDecoder(TableSelect(table.schema, frozenset(), ""), options.values, texts, skips=False)
    reported, made = list[Any](), dict[Any, list[Any]]()
    try:
        for number, parts in enumerate(table.chunks):
            asked = asyncio.create_task(merge.window(reading, table.schema))
            await asyncio.sleep(0)
            merge.turn(stream, 0)
            _, window = await asked
            block = RowBlock(list(parts), sum(part.rows for part in parts), sum(len(part.data) for part in parts))
            facts = ReadFacts(number + 1 == len(table.chunks), Watermark(), False, 0.0, None, "")
            merge.add(reading, MysqlChunk(block, decoder, facts), window, table.schema)
            if changed is not None:
                with contextlib.suppress(HeadraceError):  # rows without a column that decides
                    merge.rows(changed)
            while reading.chunks or merge.unfinished:
                builder.tick()
                merge.turn(stream, 1e6)
                merge.numbered()
                while merge.unfinished:
                    merge.go_on(1e6)
                _take(made, builder, config)
            reported.append(merge.snapshots)
    except HeadraceError as error:
        _take(made, builder, config)
        # What is wrong depends on where a row begins within what was received: native code has joined it.
        reported.append(("error", re.sub(r"(do not fit its columns: ).*", r"\1", str(error)), error.remedy))
    return [*reported, *(entry for name, entries in sorted(made.items()) for entry in (name, *entries))]


def _take(made: dict[Any, list[Any]], builder: MessageBuilder, config: DestinationSettings) -> None:
    frames = Encoder("e", 1, 4096, mandatory=True, persistent=True)
    for batch in builder.take(Position("server", "b.000007", 1234), 0.0):
        target = batch.topic, batch.partition
        messages, about, sent = (made.setdefault((*target, what), []) for what in ("messages", "about", "frames"))
        none = [None] * len(batch.values)
        messages.extend(zip(batch.values, batch.headers, batch.keys or none, strict=True))
        about.extend(zip(batch.units or none, batch.tags or none, strict=True))
        if config.sink.type == "rabbitmq":
            sent[:] = [b"".join([*sent, *frames.encode(batch, range(len(batch.values)))])]
        total = made.setdefault((*target, "total"), [0, 0, 0])
        total[:] = total[0] + batch.rows, total[1] + batch.size, batch.commit_time_us
        for one in batch.tables:
            count = made.setdefault((one.schema, -1, one.table), [0])
            count[0] += one.snapshot


def compare(inputs: int, seed: int) -> tuple[int, int]:
    """Raises AssertionError where both ways differ; how many messages were made, and how many rows by native code."""
    total = by_native = 0
    for number in range(inputs):
        rng = random.Random(f"{seed} {number}")
        broken, config = rng.choice((0.0, 0.0, 0.0, 0.001, 0.05)), settings(rng)
        table, kind = read(rng, broken), rng.choice(("initial", "resync"))
        # Native code does not look into rows that are left out.
        changed = changes(rng, table) if not broken and rng.random() < 0.5 else None
        python, _ = counted(table, config, None, kind, changed)
        native, rows = counted(table, config, find().module, kind, changed)
        where = f"input {number} of seed {seed}"
        for a, b in zip(python, native, strict=False):
            assert a == b, f"{where}: {_difference(repr(a), repr(b))}\n{config!r}\n{table.schema}"
        assert len(python) == len(native), (where, python[len(native) :], native[len(python) :])
        by_native += rows
        total += sum(1 for one in python if isinstance(one, tuple) and len(one) == 3 and isinstance(one[1], list))
    return total, by_native


def changes(rng: random.Random, table: Read) -> RowsChange | None:
    """What the stream changes of the rows of a table that can be read; perhaps without some columns."""
    schema = table.schema
    decode, known = make_text_decoder(schema.columns, range(len(schema.columns)), ValueOptions()), list[Row]()
    for part in (part for parts in table.chunks for part in parts):
        with contextlib.suppress(*BROKEN):
            known += decode(part.data, 0, part.rows, part.end)[0]
    if not known:
        return None
    rows = settled([rng.choice(known) for _ in range(rng.choice((1, 5, 100)))])
    partial = rng.random() < 0.2 and len(schema.columns) > 1
    if partial:
        rows = [tuple(ABSENT if i and i not in schema.keys else value for i, value in enumerate(row)) for row in rows]
    return RowsChange(schema, Operation.UPDATE, rows, rows, 1, 0, "", partial)


def _difference(a: str, b: str) -> str:
    """What differs between two texts, without what they have in common at their ends; lengths often differ first."""
    ends = list(zip(a[::-1], b[::-1], strict=False))
    same = next((i for i, (one, other) in enumerate(ends) if one != other), len(ends))
    return "\n".join(f"{name} …{text[: len(text) - same][-300:]}" for name, text in (("python", a), ("native", b)))


def counted(
    table: Read, config: DestinationSettings, native: Any, kind: str, changed: RowsChange | None = None
) -> tuple[list[Any], int]:
    """What outcome() returns, and how many rows native code has made."""
    rows, put = list[int](), MysqlChunk.put

    def noted(*arguments: Any) -> tuple[int, int]:
        made = put(*arguments)
        rows.append(made[0])
        return made

    with mock.patch.object(MysqlChunk, "put", noted):
        return outcome(table, config, native, kind, changed), sum(rows)


def main() -> None:
    """The command line."""
    inputs, seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1000, int(sys.argv[2]) if len(sys.argv) > 2 else 1
    messages, rows = compare(inputs, seed)
    print(messages, "messages,", rows, "rows by native code")


if __name__ == "__main__":
    main()
