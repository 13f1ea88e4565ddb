"""What Canal itself made of a binlog file of MySQL 9.7, message by message, beside what `compat = "canal"` makes of it.

Recorded with Canal's own reader and converter to flat messages (1.1.9-SNAPSHOT of July 2026), without table history and
in a JVM in UTC, while the statements ran. `id` and `ts` were left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.formats.canal.format import CompatFormat
from headrace.model import Position, RowsChange, SchemaChange
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

FOLDER = Path(__file__).parents[1] / "fixtures" / "canal"
WRONG_THERE = {
    "gbk": {"\ufffd\ufffd\ufffd\ufffd": "广州"},
    "u16": {"O\ufffd": "保"},
    "lat": {"\ufffd": "é"},
    "bin": {"\x01\x02": "\x01\x02\0\0"},  # the zero bytes at the end are lost
    "n": {"0.0": "0.00"},
    "f": {"1.6777216E7": "16777216"},
    "d": {"-2.5E-30": "-2.5e-30", "1.0E20": "1e20"},
    "fd": {"1.5": "1.50"},
}
"""By column: texts that are not what the server prints, and what it prints."""
BY_VALUE = {"id", "tu", "su", "mu", "iu", "st", "j"}
"""Columns whose sqlType depends on the last row in Canal: unsigned integers, and SET and JSON with NULL."""


def ours() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Canal's messages and ours."""
    head, *recorded = map(json.loads, (FOLDER / "messages.jsonl").read_text().splitlines())
    fmt = CompatFormat("latin1", enum_index=True)
    builder = MessageBuilder(fmt, Projections(stream_settings(route={"topic": "rows"}), fmt), one_log=True)
    builder.tick()

    def captures(schema: str, table: str) -> bool:
        return schema == "inv"

    def rows(change: RowsChange) -> None:
        if change.origin.transaction >= head["begin"]:
            builder.emit(change)

    def statement(change: SchemaChange) -> None:
        if change.origin.transaction >= head["begin"]:
            builder.emit_schema(change)

    decoder = Decoder(
        DumpStart(Position("", "mysql-bin.000001", 4), checksums=True),
        Receiver(rows=rows, statement=statement),
        captures=captures,
        history=SchemaHistory(captures, mariadb=False, version="9.7.4", lower_case_table_names=0),
        options=DecoderOptions(values=ValueOptions(enum_index=True), dml_queries=True),
    )
    for chunk in packets(FOLDER / "mysql-bin.000001"):
        at, more = 0, True
        while more:
            at, more = decoder.feed(chunk, at, lambda: False)
    (batch,) = builder.take(decoder.position(), 0)
    return recorded, [json.loads(value) for value in batch.values if value is not None]


def right(row: dict[str, Any]) -> dict[str, Any]:
    """A row of Canal's with what is wrong in it mended."""
    return {name: WRONG_THERE.get(name, {}).get(text, text) for name, text in row.items()}


def test_every_field_is_canals() -> None:
    recorded, made = ours()
    assert [m["type"] for m in made] == [m["type"] for m in recorded]
    assert len(made) > 25
    for theirs, own in zip(recorded, made, strict=True):
        assert list(own) == list(theirs)
        for field in ("type", "isDdl", "table", "sql", "pkNames", "mysqlType"):
            assert own[field] == theirs[field], (field, theirs)
        if theirs["type"] == "QUERY" and not theirs["isDdl"]:
            assert (theirs["database"], own["database"]) == ("", "inv")  # the text of a statement behind rows
        else:
            assert own["database"] == theirs["database"]
        assert abs(own["es"] - theirs["es"]) <= 1000  # when the statement began; we know when it was committed
        assert own["es"] % 1000 == 0
        assert (theirs["gtid"], own["gtid"] != "") == ("", True)
        for field in ("data", "old"):
            assert own[field] == (theirs[field] and [right(row) for row in theirs[field]])
        if theirs["sqlType"] is not None:
            ignored = BY_VALUE if theirs["table"] == "t" else set()
            assert {k: v for k, v in own["sqlType"].items() if k not in ignored} == {
                k: v for k, v in theirs["sqlType"].items() if k not in ignored
            }


def test_types_that_depend_on_the_value_there_are_those_of_the_column_here() -> None:
    recorded, made = ours()
    theirs, own = recorded[1]["sqlType"], made[1]["sqlType"]
    # In this row all unsigned numbers but the first are too large for the signed type.
    assert {name: own[name] for name in BY_VALUE - {"id"}} == {name: theirs[name] for name in BY_VALUE - {"id"}}
    assert (theirs["id"], own["id"]) == (-5, 3)


@pytest.mark.parametrize("column", WRONG_THERE)
def test_what_is_wrong_there_is_still_in_the_recording(column: str) -> None:
    recorded, _ = ours()
    texts = {row.get(column) for message in recorded for row in message["data"] or ()}
    assert WRONG_THERE[column].keys() <= texts
