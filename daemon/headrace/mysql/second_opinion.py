"""A second opinion on rows: compares our reading of a server's newest rows events with that of mysql-replication's
parser.

Only its parser is used: its stream silently reconnects, and begins at other positions than requested."""

from __future__ import annotations

import asyncio
import datetime
import json
import struct
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.model import Column, RowsChange
from headrace.mysql.events import event_types as ev
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.splitter import EventSplitter
from headrace.mysql.events.table_map import table_name
from headrace.mysql.wire.binlog_file import MAGIC
from headrace.mysql.wire.connection import SHORT_HEARTBEAT, SourceConnection, address_of, probe_id, short_dump
from headrace.ports.inspection import Opinion
from headrace.settings.destination import SourceSettings

_BYTES_LIMIT = 64 << 20
"""Maximum bytes of events kept at once: older ones are dropped."""
_MAPS_LIMIT = 10_000
_HEADER = struct.Struct("<IBIIIH")
_QUERY, _XID = 2, 16
_KINDS = {kind.number: kind.rows for kind in ev.TABLE if kind.rows is not None}
_ROWS = frozenset(number for number, kind in _KINDS.items() if not kind.compressed and not kind.diffs)
_NOT_READ = {
    **{number: "compressed rows" for number, kind in _KINDS.items() if kind.compressed},
    **{number: "partial updates of JSON" for number, kind in _KINDS.items() if kind.diffs},
    ev.TRANSACTION_PAYLOAD: "compressed transactions",
}
"""Events that mysql-replication silently drops, or gives in another form."""

Decode = Callable[[Path], Sequence[RowsChange]]
"""Returns the changes in a binlog file, by our own reader."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One rows event of a captured table with what is needed to read it, as the server sent them."""

    file: str
    offset: int
    """The offset of the rows event."""
    format: bytes
    table_map: bytes
    rows: bytes

    @property
    def position(self) -> str:
        """Returns `file:offset` of the rows event."""
        return f"{self.file}:{self.offset}"


async def second_opinion(
    settings: SourceSettings, captures: Callable[[str, str], bool], count: int, decode: Decode, folder: Path
) -> Opinion:
    """Reads the newest `count` rows events of captured tables with both readers, and changes nothing. `folder` takes a
    file for our reader. Raises SourceError and NotUnderstood."""
    samples, left_out = await _newest(settings, captures, count)
    opinion = Opinion(left_out=left_out)
    for sample in samples:
        compare(sample, opinion, decode, folder)
        await asyncio.sleep(0)  # a time limit may take effect here
    return opinion


# -- what is compared ---------------------------------------------------------------------------------------------


class Tail:
    """Keeps the newest rows events of captured tables from all events of one binlog file."""

    def __init__(self, file: str, captures: Callable[[str, str], bool], count: int) -> None:
        self.kept: deque[Sample] = deque()
        self.left_out: Counter[str] = Counter()
        self._file, self._captures, self._count = file, captures, count
        self._format = b""
        self._maps: dict[bytes, bytes | None] = {}
        """By table id: the TABLE_MAP event of a captured table, None for any other."""
        self._size = 0

    def take(self, offset: int, event: bytes) -> None:
        """Takes the next event of the file."""
        kind = event[4]
        if kind == ev.FORMAT_DESCRIPTION:
            self._format = event
            self._maps.clear()
        elif kind == ev.TABLE_MAP:
            if len(self._maps) > _MAPS_LIMIT:
                self._maps.clear()
            self._maps[event[19:25]] = event if self._captures(*table_name(event[25:])[:2]) else None
        elif kind in _ROWS:
            described = self._maps.get(event[19:25])
            if described is not None:
                self.kept.append(Sample(self._file, offset, self._format, described, event))
                self._size += len(event)
                while len(self.kept) > self._count or (self._size > _BYTES_LIMIT and len(self.kept) > 1):
                    self._size -= len(self.kept.popleft().rows)
        elif kind in _NOT_READ:
            self.left_out[_NOT_READ[kind]] += 1


async def _newest(
    settings: SourceSettings, captures: Callable[[str, str], bool], count: int
) -> tuple[list[Sample], Counter[str]]:
    """Returns events from the newest file backwards, until there are enough."""
    found: list[Sample] = []
    left_out: Counter[str] = Counter()
    async with await SourceConnection.open(address_of(settings)) as connection:
        files = await connection.query("SHOW BINARY LOGS")
    for row in reversed(files):
        name, end = str(row["Log_name"]), int(row["File_size"])
        tail = Tail(name, captures, count - len(found))
        await _read(settings, name, end, tail)
        found[:0] = tail.kept
        left_out += tail.left_out
        if len(found) >= count or sum(len(sample.rows) for sample in found) > _BYTES_LIMIT:
            break
    return found, left_out


async def _read(settings: SourceSettings, file: str, end: int, tail: Tail) -> None:
    """Gives a tail the events of a binlog file up to the offset `end`."""
    cursor, idle = EventCursor(file, 4), asyncio.Event()

    def on_event(data: bytes, at: int, stop: int) -> None:
        if cursor.file == file:
            tail.take(cursor.event_start, data[at - 19 : stop + (4 if cursor.checksums else 0)])

    def on_format(data: bytes, at: int, stop: int) -> None:
        tail.take(cursor.event_start, data[at - 19 : stop + 4])  # which always has a checksum

    def on_heartbeat(data: bytes, at: int, stop: int) -> None:
        idle.set()

    handlers = {ev.FORMAT_DESCRIPTION: on_format, **dict.fromkeys(ev.HEARTBEATS, on_heartbeat)}
    splitter = EventSplitter(cursor, handlers, other=on_event)

    def over() -> bool:
        return idle.is_set() or cursor.file != file or cursor.end >= end

    async with short_dump(settings, probe_id(settings.server_id), file) as (stream, connection):
        cursor.checksums, data = connection.writes_checksums, b""
        while not over():
            data = await splitter.feed_from(stream, data, settings.heartbeat + 2 * SHORT_HEARTBEAT, over)


# -- the two readers ----------------------------------------------------------------------------------------------


def compare(sample: Sample, opinion: Opinion, decode: Decode, folder: Path) -> None:
    """Reads one event with both, and records what differs."""
    ours: Sequence[RowsChange] = ()
    try:
        theirs = _their_rows(sample)
    except _NotDescribed:
        opinion.left_out["tables without names: set binlog_row_metadata=FULL"] += 1
        return
    except UnicodeDecodeError:
        opinion.known["latin1 is taken for cp1252, which lacks five of its codes"] += 1
        return
    except Exception as error:  # its parser has no errors of its own
        opinion.left_out[f"events that mysql-replication can't read ({type(error).__name__})"] += 1
        return
    try:
        ours = decode(_as_file(sample, folder))
    except HeadraceError as error:
        opinion.differs(f"{sample.position}: only mysql-replication reads it ({error.args[0]})")
        return
    if any(change.partial for change in ours):
        opinion.left_out["rows that lack columns: set binlog_row_image=FULL"] += 1
        return
    opinion.events += 1
    images = list(_images(ours))
    if len(images) != len(theirs):
        opinion.differs(f"{sample.position}: {len(images)} images of rows, mysql-replication {len(theirs)}")
        return
    for (change, row), other in zip(images, theirs, strict=True):
        _compare_image(sample, opinion, change, row, other)


def _compare_image(
    sample: Sample, opinion: Opinion, change: RowsChange, row: Sequence[Any], other: Sequence[Any]
) -> None:
    columns = change.schema.columns
    if not len(columns) == len(row) == len(other):
        opinion.differs(f"{sample.position} {change.schema.name}: {len(row)} columns, mysql-replication {len(other)}")
        return
    for column, value, theirs in zip(columns, row, other, strict=True):
        opinion.values += 1
        if same_value(column, value, theirs):
            continue
        if known := known_error(column, value, theirs):
            opinion.known[known] += 1
        else:
            opinion.differs(
                f"{sample.position} {change.schema.name} column {column.name} ({column.mysql_type}): "
                f"{_short(value)}, mysql-replication {_short(theirs)}"
            )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"


def _images(changes: Sequence[RowsChange]) -> Iterator[tuple[RowsChange, Sequence[Any]]]:
    """Yields each row's image; for an update the one before and the one after."""
    for change in changes:
        for index, row in enumerate(change.rows):
            if change.before is not None:
                yield change, change.before[index]
            yield change, row


def _as_file(sample: Sample, folder: Path) -> Path:
    """Writes a binlog file with one transaction that has only this event."""
    path, at = folder / sample.file, 4
    when, _, server_id, *_ = _HEADER.unpack_from(sample.rows)
    checksums = sample.format[-5] == 1
    begin = struct.pack("<IIBHH", 0, 0, 0, 0, 0) + b"\0BEGIN"
    body = slice(19, -4 if checksums else None)
    out = [MAGIC, sample.format]
    at += len(sample.format)
    for kind, flags, content in (
        (_QUERY, 0, begin),
        (ev.TABLE_MAP, 0, sample.table_map[body]),
        (sample.rows[4], 0, sample.rows[body]),
        (_XID, 0, bytes(8)),
    ):
        size = 19 + len(content) + (4 if checksums else 0)
        at += size
        event = _HEADER.pack(when, kind, server_id, size, at, flags) + content
        out.append(event + struct.pack("<I", zlib.crc32(event)) if checksums else event)
    path.write_bytes(b"".join(out))
    return path


class _NotDescribed(Exception):
    """The binlog does not have the names of a table's columns."""


class _NoServer:
    """The server properties that mysql-replication's parser needs, without a server."""

    charset = "utf8mb4"

    def __init__(self, format_event: bytes) -> None:
        self._mariadb = b"mariadb" in format_event[21:71].lower()

    def _get_dbms(self) -> str:
        return "mariadb" if self._mariadb else "mysql"

    def cursor(self) -> Any:
        raise _NotDescribed


def _their_rows(sample: Sample) -> list[list[Any]]:
    """Returns the images of rows as mysql-replication's parser reads them: for an update, before and after in turn."""
    from pymysql.connections import MysqlPacket
    from pymysqlreplication.packet import BinLogPacketWrapper
    from pymysqlreplication.row_event import DeleteRowsEvent, TableMapEvent, UpdateRowsEvent, WriteRowsEvent

    server, tables, rows = _NoServer(sample.format), dict[int, Any](), list[list[Any]]()
    for event in (sample.table_map, sample.rows):
        read = BinLogPacketWrapper(
            MysqlPacket(b"\0" + event, "utf8mb4"),
            table_map=tables,
            ctl_connection=server,
            mysql_version=(0, 0, 0),
            use_checksum=sample.format[-5] == 1,
            allowed_events=frozenset({TableMapEvent, WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent}),
            only_tables=None,
            ignored_tables=None,
            only_schemas=None,
            ignored_schemas=None,
            freeze_schema=False,
            ignore_decode_errors=False,
            verify_checksum=False,
            optional_meta_data=True,
            enable_logging=False,
        ).event
        if isinstance(read, TableMapEvent):
            if not read.optional_metadata.column_name_list:
                raise _NotDescribed
            continue
        for row in read.rows:
            images = ("before_values", "after_values") if "before_values" in row else ("values",)
            rows += [list(row[image].values()) for image in images]
    return rows


# -- what is the same ---------------------------------------------------------------------------------------------


def same_value(column: Column, ours: Any, theirs: Any) -> bool:
    """Returns whether two values of a column mean the same, in the types of each reader."""
    if ours is None or theirs is None:
        return ours is theirs
    try:
        return _agree(column, ours, theirs)
    except (AttributeError, TypeError, ValueError, ArithmeticError):  # a value of a different type
        return False


def _agree(column: Column, ours: Any, theirs: Any) -> bool:
    kind = column.kind
    if kind == "float":
        return struct.pack("<f", ours) == struct.pack("<f", theirs)
    if kind == "decimal":
        return str(Decimal(ours)) == str(theirs)
    if kind == "date":
        return bool(ours == theirs.isoformat())
    if kind in ("datetime", "timestamp"):
        return bool(ours == (theirs.isoformat(" ", "microseconds"))[: 20 + column.length if column.length else 19])
    if kind == "time":
        micros = round(theirs / datetime.timedelta(microseconds=1))
        whole, fraction = divmod(abs(micros), 1_000_000)
        text = f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"
        tail = f".{fraction:06d}"[: column.length + 1] if column.length else ""
        return bool(ours == f"{'-' if micros < 0 else ''}{text}{tail}")
    if kind == "year":
        return bool(ours == str(theirs))
    if kind == "bit":
        return bool(ours == int(theirs, 2))
    if kind == "set":
        return bool(set(ours.split(",")) == theirs)
    if kind == "json":
        return bool(_plain(json.loads(ours)) == _plain(theirs))
    return bool(ours == theirs)


def _plain(value: Any) -> Any:
    """Returns a document with bytes as text: mysql-replication gives keys and strings as bytes."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def known_error(column: Column, ours: Any, theirs: Any) -> str:
    """Returns which of mysql-replication's known errors a difference is, "" for none."""
    kind = column.kind
    if ours is None:
        return ""
    if theirs == "" and not ours.strip(b"\0" if isinstance(ours, bytes) else " "):
        return "an empty binary string is an empty text"
    if kind == "binary" and isinstance(theirs, bytes) and theirs.ljust(len(ours), b"\0") == ours:
        return "BINARY loses its trailing zero bytes"
    if kind == "year" and ours == "0000" and theirs == 1900:
        return "YEAR 0000 is 1900"
    if kind in ("date", "datetime") and theirs is None and "00" in (ours[5:7], ours[8:10]):
        return "dates with a zero are None"
    if kind == "timestamp" and ours.startswith("0000") and theirs is not None and theirs.year == 1970:
        return "TIMESTAMP zero is 1970"
    if kind == "time" and column.length and ours.startswith("-"):
        return "the fraction of a negative TIME is wrong"
    if kind == "json" and ours == "null" and theirs is None:
        return "the document null is None, as NULL is"
    if kind in ("enum", "set") and column.charset == "latin1" and not "".join(column.labels).isascii():
        return "labels that are not ASCII are lost unless they are UTF-8"
    if column.charset in ("sjis", "ujis") and isinstance(theirs, str) and theirs.replace("＼", "\\") == ours:
        return "the full-width backslash of sjis and ujis is another character than the server's"
    if column.charset in ("big5", "greek") and isinstance(theirs, str) and len(theirs) == len(ours):
        return "some characters of big5 and greek are others than the server's"
    if kind == "set" and ours == "" and theirs is None:
        return "an empty SET is None"
    return ""
