"""Entries as Canal gives them to its clients, beside those that headrace makes of the same binlog, field by field."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import Message

from headrace.canal_wire import canal_pb2 as pb
from headrace.formats.canal.entries import EntryFormat
from headrace.model import Position, RowsChange, SchemaChange, TransactionMark
from headrace.mysql.decoder import Decoder
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.values.column_types import ValueOptions
from headrace.mysql.wire.binlog_file import packets
from headrace.pipeline.message_builder import MessageBuilder
from headrace.pipeline.projection import Projections
from headrace.ports.source import Receiver
from tests.streams import settings as stream_settings

DOCUMENTED = Path(__file__).parents[1] / "docs" / "canal-differences.md"
RECORDED = Path(__file__).parent / "fixtures" / "canal" / "entries"
_STORES: dict[int, type[Message]] = {
    pb.TRANSACTIONBEGIN: pb.TransactionBegin,
    pb.TRANSACTIONEND: pb.TransactionEnd,
    pb.ROWDATA: pb.RowChange,
}


class Difference(NamedTuple):
    """Where two entries differ. `field` is as `Column.value`, `type` the column's type without its length, of an Entry
    that one side has alone its kind, else ""."""

    field: str
    type: str
    canal: Any
    headrace: Any
    where: str


def rules(*, mariadb: bool = False) -> set[tuple[str, str]]:
    """The differences that docs/canal-differences.md lists for a server, by field and type."""
    section = DOCUMENTED.read_text().split("\n## Entries of Canal's clients\n")[1].split("\n## ")[0]
    found = set[tuple[str, str]]()
    for line in section.splitlines():
        if line.startswith("| `"):
            name = line.split("|")[1]
            field, *types = re.findall("`([^`]+)`", name)
            if mariadb or "(MariaDB)" not in name:
                found |= {(field, one) for one in types or [""]}
    return found


def unexplained(found: Iterable[Difference], *, mariadb: bool = False) -> list[Difference]:
    """Those that docs/canal-differences.md does not list."""
    listed = rules(mariadb=mariadb)
    return [one for one in found if (one.field, one.type) not in listed]


def statements(name: str) -> list[str]:
    """Those that were executed while Canal was recorded, in their order."""
    return [text for text in (RECORDED / f"{name}.sql").read_text().split(";\n") if text]


def recorded(name: str) -> list[pb.Entry]:
    """What Canal gave to a client: each entry behind four bytes of length."""
    data, at, found = (RECORDED / f"{name}.entries").read_bytes(), 0, []
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        found.append(pb.Entry.FromString(data[at + 4 : end]))
        at = end
    return found


def made(name: str, version: str) -> list[pb.Entry]:
    """What headrace makes of the same binlog with `compat = "canal"`."""
    fmt = EntryFormat("latin1", enum_index=True, whole_seconds=True)
    builder = MessageBuilder(fmt, Projections(stream_settings(route={"topic": "rows"}), fmt), one_log=True)
    builder.tick()

    def captures(schema: str, table: str) -> bool:
        return schema in ("inv", "other")

    def mark(one: TransactionMark) -> None:
        builder.emit_mark(one)

    def rows(change: RowsChange) -> None:
        builder.emit(change)

    def statement(change: SchemaChange) -> None:
        builder.emit_schema(change)

    decoder = Decoder(
        DumpStart(Position("", "mysql-bin.000002", 4), checksums=True),
        Receiver(rows=rows, statement=statement, mark=mark),
        captures=captures,
        history=SchemaHistory(captures, mariadb=name == "mariadb", version=version, lower_case_table_names=0),
        options=DecoderOptions(values=ValueOptions(enum_index=True), dml_queries=True, origins=True),
    )
    for chunk in packets(RECORDED / f"{name}.binlog"):
        at, more = 0, True
        while more:
            at, more = decoder.feed(chunk, at, lambda: False)
    entries = []
    for batch in builder.take(decoder.position(), 0):
        for value in batch.values:
            assert value is not None
            packet = pb.Messages.FromString(pb.Packet.FromString(value).body)
            entries += [pb.Entry.FromString(one) for one in packet.messages]
    return entries


def differences(canals: list[pb.Entry], own: list[pb.Entry]) -> Iterator[Difference]:
    """All of two sequences of entries. An entry that only one side has is a difference in the field Entry."""
    theirs, ours = [_kind(entry) for entry in canals], [_kind(entry) for entry in own]
    for tag, i, i_end, j, j_end in SequenceMatcher(None, theirs, ours, autojunk=False).get_opcodes():
        if tag != "equal":
            yield from (Difference("Entry", kind.split(" ")[0], kind, None, kind) for kind in theirs[i:i_end])
            yield from (Difference("Entry", kind.split(" ")[0], None, kind, kind) for kind in ours[j:j_end])
            continue
        for one, other in zip(canals[i:i_end], own[j:j_end], strict=True):
            where = f"{one.header.logfile_offset} {_kind(one)}"
            yield from _of_messages(one, other, where, "")
            a, b = _STORES[one.entry_type](), _STORES[one.entry_type]()
            a.ParseFromString(one.store_value)
            b.ParseFromString(other.store_value)
            yield from _of_messages(a, b, where, "")


def _kind(entry: pb.Entry) -> str:
    """What an entry is about, by which the two sides are brought together."""
    kind: str = pb.EntryType.Name(entry.entry_type)
    if entry.entry_type != pb.ROWDATA:
        return kind
    change = pb.RowChange.FromString(entry.store_value)
    return f"{pb.EventType.Name(change.event_type)} {change.sql or entry.header.table_name}"


def _of_messages(canal: Any, headrace: Any, where: str, column: str) -> Iterator[Difference]:
    name = canal.DESCRIPTOR.name
    if name == "Column":
        column, where = canal.mysql_type.partition("(")[0].lower(), f"{where} {canal.name}"
    for field in canal.DESCRIPTOR.fields:
        label = f"{name}.{field.name}"
        a, b = getattr(canal, field.name), getattr(headrace, field.name)
        if field.name == "store_value":
            continue  # compared as the message that it is
        if field.name == "props":
            yield from _of_props(name, a, b, where)
        elif field.is_repeated:
            if len(a) != len(b):
                yield Difference(label, column, len(a), len(b), where)
                continue
            for one, other in zip(a, b, strict=True):
                yield from _of_messages(one, other, where, column)
        elif field.message_type is not None:
            yield from _of_messages(a, b, where, column)
        else:
            if field.has_presence:
                a, b = (a if canal.HasField(field.name) else None), (b if headrace.HasField(field.name) else None)
            if a != b:
                yield Difference(label, column, a, b, where)


def _of_props(name: str, canal: Any, headrace: Any, where: str) -> Iterator[Difference]:
    theirs, ours = ({pair.key: pair.value for pair in pairs} for pairs in (canal, headrace))
    for key in sorted(theirs.keys() | ours.keys()):
        if theirs.get(key) != ours.get(key):
            yield Difference(f"{name}.props {key}", "", theirs.get(key), ours.get(key), where)
