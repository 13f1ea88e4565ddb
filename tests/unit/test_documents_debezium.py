"""Debezium's events become the rows of Canal's messages: recorded events, and our messages of the same binlog."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.formats.canal.format import CanalFormat
from headrace.model import Position, RowsChange
from headrace.mysql.decoder import Decoder
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.wire.binlog_file import packets
from headrace.ports.source import Receiver
from headrace_documents.formats.changes import Message, Nothing, Rows, Statement
from headrace_documents.messages import read

FOLDER = Path(__file__).parents[1] / "fixtures" / "debezium"


def events(name: str) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of the recorded events, each with its schema."""
    schemas: dict[tuple[str, str], Any] = {}

    def whole(topic: str, part: str, value: Any) -> bytes | None:
        if value is None:
            return None
        schema = value.get("schema") or schemas[topic, part]
        schemas[topic, part] = schema
        return json.dumps({"schema": schema, "payload": value["payload"]}, separators=(",", ":")).encode()

    recorded = json.loads((FOLDER / name / "records.json").read_text())["records"]
    return [(whole(r["topic"], "key", r["key"]), whole(r["topic"], "value", r["value"])) for r in recorded]


def rows_of(messages: list[Message]) -> list[tuple[str, str, dict[str, Any]]]:
    """Debezium makes two events of an update that changes the key."""
    made: list[tuple[str, str, dict[str, Any]]] = []
    for one in messages:
        if not isinstance(one, Rows):
            continue
        for row, old in zip(one.rows, one.olds, strict=True):
            if (
                one.operation == "UPDATE"
                and old is not None
                and any(old.get(key, row[key]) != row[key] for key in one.keys)
            ):
                made += [(one.table, "DELETE", {**row, **old}), (one.table, "INSERT", row)]
            else:
                made.append((one.table, one.operation, row))
    return made


def canals(name: str, begin: int) -> list[tuple[str, str, dict[str, Any]]]:
    """The rows of our messages in Canal's format."""
    (path,) = (FOLDER / name).glob("mysql-bin.*")
    made: list[bytes] = []
    form = CanalFormat()

    def emit(change: RowsChange) -> None:
        if change.origin.transaction >= begin:
            made.extend(form.encode_each(change, 1))

    def captures(schema: str, table: str) -> bool:
        return schema == "inv"

    decoder = Decoder(
        DumpStart(Position("", path.name, 4), checksums=True),
        Receiver(rows=emit),
        captures=captures,
        history=SchemaHistory(captures, mariadb=False, version="9.7.4", lower_case_table_names=0),
    )
    for chunk in packets(path):
        at, more = 0, True
        while more:
            at, more = decoder.feed(chunk, at, lambda: False)
    return rows_of([read(value) for value in made])


LOST_THERE = {
    ("z", "da"), ("z", "dt"), ("z", "ts"), ("t", "da"), ("t", "dt"), ("t", "ts"),  # dates that the calendar has not
    ("z", "dt6"),  # the year 1 becomes 2001
    ("t", "y"),  # 0000 becomes 1900
    ("t", "e"),  # a comma in a label comes escaped
}  # fmt: skip
"""Columns of which a value is not what the table holds in Debezium's events."""
LOST_BY_SETTING = {
    "default": {("t", "id")},  # BIGINT UNSIGNED as a long
    "connect": {("t", "vb"), ("t", "bl"), ("t", "bin"), ("t", "ti6"), ("t", "dt6")},  # hexadecimal digits; milliseconds
}


def plain(value: Any) -> Any:
    """Without what Debezium does not say: how many digits of a fraction a column has, or blanks in JSON."""
    if not isinstance(value, str):
        return value
    if value[:1] in ("[", "{"):
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(value)
    if re.fullmatch(r"[-0-9]*[ T]?-?[0-9]+:[0-9:]+\.[0-9]+", value):
        return value.rstrip("0").rstrip(".")
    return float(value) if re.fullmatch(r"-?[0-9.]+e[+-]?[0-9]+", value) else value


@pytest.mark.parametrize("name", ["default", "connect"])
def test_recorded_events_have_the_rows_that_canals_messages_have(name: str) -> None:
    recorded = json.loads((FOLDER / name / "records.json").read_text())
    found = rows_of([read(value, key) for key, value in events(name)])
    wanted = canals(name, recorded["begin"])
    assert len(found) == len(wanted) > 15
    lost = LOST_THERE | LOST_BY_SETTING[name]
    for (table, operation, row), (own_table, own_operation, own) in zip(found, wanted, strict=True):
        assert (table, operation, row.keys()) == (own_table, own_operation, own.keys())
        for column, value in row.items():
            if plain(value) != plain(own[column]) and column == "fd" and value is not None:
                assert float(value) == float(own[column])  # FLOAT(m,d) has no digits there
            elif (table, column) not in lost:
                assert plain(value) == plain(own[column]), (table, column)


def test_recorded_events_have_keys_types_and_versions() -> None:
    messages = [read(value, key) for key, value in events("default")]
    rows = [one for one in messages if isinstance(one, Rows)]
    alone = dict.fromkeys(("t", "pre", "z", "vec"), ("id",))
    assert {one.table: one.keys for one in rows} == {**alone, "two": ("a", "b"), "nokey": ()}
    types = next(one.types for one in rows if one.table == "t")
    shown = {column: types[column] for column in ("id", "n", "da", "dt3", "dt6", "ts", "ti", "j", "b11", "e")}
    assert shown == {
        "id": "bigint",
        "n": types["n"],
        "da": "date",
        "dt3": "datetime(3)",
        "dt6": "datetime(6)",
        "ts": "timestamp(6)",
        "ti": "time(6)",
        "j": "json",
        "b11": "bit(11)",
        "e": "enum",
    }
    assert re.fullmatch(r"decimal\(\d+,\d+\)", types["n"])
    versions = [one.version for one in rows]
    assert versions == sorted(versions)
    assert len(versions) - len(set(versions)) == 1  # a changed key: the delete of one row, and the create of another
    kinds = [one.kind for one in messages if isinstance(one, Statement)]
    assert kinds == ["CREATE", "CREATE", "CREATE", "CREATE", "ALTER", "ALTER", "QUERY", "ERASE", "CREATE"]
    assert any(isinstance(one, Nothing) for one in messages)
