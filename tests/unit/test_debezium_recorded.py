"""What Debezium 3.6.1 made of two binlog files of MySQL 9.7, record by record, beside what we make of them.

Recorded with Debezium's engine, its JSON format with schemas, `provide.transaction.metadata`, and in `connect` also
time.precision.mode=connect, decimal.handling.mode=string, binary.handling.mode=hex and
bigint.unsigned.handling.mode=precise. A schema stands at the first record that has it. What is about the moment of
recording was left out: times of processing, version, server id and thread.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.formats.debezium.format import DebeziumFormat
from headrace.formats.debezium.settings import DebeziumSettings
from headrace.model import Position, RowsChange, SchemaChange, TransactionMark
from headrace.mysql.decoder import Decoder
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.wire.binlog_file import packets
from headrace.pipeline.message_builder import MessageBuilder
from headrace.pipeline.projection import Projections
from headrace.ports.source import Receiver
from tests.streams import settings as stream_settings

FOLDER = Path(__file__).parents[1] / "fixtures" / "debezium"
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {"bigint_unsigned": "long"},
    "connect": {"time_precision": "connect", "decimal": "string", "binary": "hex"},
}
WRONG_THERE: dict[tuple[str, str], Any] = {
    ("e", repr("b\\,c")): "b,c",  # a comma in a label comes escaped
    ("y", "1900"): 0,
    ("dt6", "978307200000001"): -62135596799999999,  # the year 1 becomes 2001
    ("dt6", "978307200000"): -62135596800000,
}
"""Values that are not what the table holds, and what it holds."""
TIMES = {"ts_ms", "ts_us", "ts_ns"}

Record = tuple[str, Any, Any, list[str]]


def ours(name: str, begin: int) -> list[Record]:
    settings = DebeziumSettings(name="srv", transaction_topic="srv.transaction", schema_topic="srv", **SETTINGS[name])
    fmt = DebeziumFormat(settings)
    builder = MessageBuilder(fmt, Projections(stream_settings(route={"topic": "rows"}), fmt), one_log=True)
    builder.tick()
    (path,) = (FOLDER / name).glob("mysql-bin.*")

    def captures(schema: str, table: str) -> bool:
        return schema == "inv"

    def rows(change: RowsChange) -> None:
        if change.origin.transaction >= begin:
            builder.emit(change)

    def statement(change: SchemaChange) -> None:
        if change.origin.transaction >= begin:
            builder.emit_schema(change)

    def mark(change: TransactionMark) -> None:
        if change.origin.transaction >= begin:
            builder.emit_mark(change)

    decoder = Decoder(
        DumpStart(Position("", path.name, 4), checksums=True),
        Receiver(rows=rows, statement=statement, mark=mark),
        captures=captures,
        history=SchemaHistory(captures, mariadb=False, version="9.7.4", lower_case_table_names=0),
    )
    for chunk in packets(path):
        at, more = 0, True
        while more:
            at, more = decoder.feed(chunk, at, lambda: False)
    records: list[Record] = []
    for batch in builder.take(decoder.position(), 0):
        keys = batch.keys or [None] * len(batch.values)
        for key, value, headers in zip(keys, batch.values, batch.headers, strict=True):
            names = sorted(name for name, _ in headers if name.startswith("__"))
            read = (None if part is None else json.loads(part) for part in (key, value))
            records.append((batch.topic, *read, names))  # type: ignore[arg-type]
    return records


def theirs(name: str) -> tuple[int, list[Record]]:
    recorded = json.loads((FOLDER / name / "records.json").read_text())
    return recorded["begin"], [(r["topic"], r["key"], r["value"], r["headers"]) for r in recorded["records"]]


def of(records: list[Record], kind: str) -> list[Record]:
    """Records of rows, or of the topic for schema changes, or of that for transactions."""
    topics = {"srv": "schema", "srv.transaction": "transaction"}
    return [record for record in records if topics.get(record[0], "rows") == kind]


def same_schema(recorded: dict[str, Any], made: dict[str, Any]) -> None:
    """Equal but for the explanation of geometries, and the defaults of columns."""
    cleaned = json.loads(json.dumps(recorded), object_hook=without_default_and_doc)
    made = json.loads(json.dumps(made), object_hook=without_default_and_doc)
    assert made == cleaned


def without_default_and_doc(value: dict[str, Any]) -> dict[str, Any]:
    return {key: of for key, of in value.items() if key not in ("default", "doc")}


def without_times(value: dict[str, Any]) -> dict[str, Any]:
    return {key: of for key, of in value.items() if key not in TIMES}


def same_row(recorded: dict[str, Any], made: dict[str, Any]) -> None:
    for image in ("before", "after"):
        assert (made[image] is None) == (recorded[image] is None)
        if made[image] is None:
            continue
        assert list(made[image]) == list(recorded[image])
        for column, value in recorded[image].items():
            got = made[image][column]
            if column == "j" and value is not None:  # Debezium's has no blanks
                assert json.loads(got) == json.loads(value)
            else:
                assert got == WRONG_THERE.get((column, repr(value)), value), column
    source = {key: of for key, of in without_times(made["source"]).items() if key in recorded["source"]}
    assert source == without_times(recorded["source"])
    assert made["source"]["ts_us"] == recorded["source"]["ts_us"]
    assert (made["op"], made["transaction"]) == (recorded["op"], recorded["transaction"])
    assert list(made) == list(recorded)


@pytest.mark.parametrize("name", SETTINGS)
def test_records_of_rows_are_debeziums(name: str) -> None:
    begin, recorded = theirs(name)
    # Debezium sends a tombstone without a key for a table that has none.
    wanted = [record for record in of(recorded, "rows") if record[1:3] != (None, None)]
    made = of(ours(name, begin), "rows")
    assert len(made) == len(wanted) > 15
    for (_, key, value, headers), (_, own_key, own_value, own_headers) in zip(wanted, made, strict=True):
        assert own_headers == headers
        assert (own_key is None, own_value is None) == (key is None, value is None)
        if key is not None:
            assert own_key["payload"] == key["payload"]
            if "schema" in key:
                same_schema(key["schema"], own_key["schema"])
        if value is not None:
            same_row(value["payload"], own_value["payload"])
            if "schema" in value:
                same_schema(value["schema"], own_value["schema"])


@pytest.mark.parametrize("name", SETTINGS)
def test_records_of_transactions_are_debeziums(name: str) -> None:
    begin, recorded = theirs(name)
    wanted, made = of(recorded, "transaction"), of(ours(name, begin), "transaction")
    wanted = wanted[-len(made) :]  # the recording began between a transaction's begin and its end
    assert len(made) == len(wanted) > 15
    for (_, key, value, _), (_, own_key, own_value, _) in zip(wanted, made, strict=True):
        assert own_key["payload"] == key["payload"]
        assert without_times(own_value["payload"]) == without_times(value["payload"])
        if "schema" in value:
            same_schema(value["schema"], own_value["schema"])


@pytest.mark.parametrize("name", SETTINGS)
def test_records_of_schema_changes_are_debeziums(name: str) -> None:
    begin, recorded = theirs(name)
    wanted = of(recorded, "schema")
    # Debezium tells neither a TRUNCATE nor a view, and writes DROP TABLE in words of its own.
    made = [r for r in of(ours(name, begin), "schema") if reported_there(r[2]["payload"]["ddl"])]
    assert len(made) == len(wanted) > 5
    for (_, key, value, _), (_, own_key, own_value, _) in zip(wanted, made, strict=True):
        assert own_key["payload"] == key["payload"]
        if "schema" in value:
            same_schema(value["schema"], own_value["schema"])
        payload, own = value["payload"], own_value["payload"]
        assert own["ddl"].startswith("DROP TABLE") or own["ddl"] == payload["ddl"]
        assert (own["databaseName"], own["source"]["pos"]) == (payload["databaseName"], payload["source"]["pos"])
        if payload["source"]["table"]:  # of an index it says none
            assert own["source"]["table"] == payload["source"]["table"]
        assert len(own["tableChanges"]) == len(payload["tableChanges"])
        for change, own_change in zip(payload["tableChanges"], own["tableChanges"], strict=True):
            same_table_change(change, own_change)


def reported_there(ddl: str) -> bool:
    return not ddl.startswith("TRUNCATE") and " VIEW " not in ddl


def same_table_change(change: dict[str, Any], own: dict[str, Any]) -> None:
    """Equal but for the table's default character set, the length of ENUM and SET, and comments."""
    assert (own["type"], own["id"], own["table"] is None) == (change["type"], change["id"], change["table"] is None)
    if change["table"] is None:
        return
    assert own["table"]["primaryKeyColumnNames"] == change["table"]["primaryKeyColumnNames"]
    for column, own_column in zip(change["table"]["columns"], own["table"]["columns"], strict=True):
        ignored = {"comment", "length"} if column["enumValues"] else {"comment"}
        assert {k: v for k, v in own_column.items() if k not in ignored} == {
            k: v for k, v in column.items() if k not in ignored
        }
