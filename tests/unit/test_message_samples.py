"""The samples in docs/message-format.md against what the code makes of a binlog that MySQL 9.7 wrote.

STATEMENTS are what it was recorded with.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.cli.wiring import new_format
from headrace.model import MessageBatch, Position
from headrace.mysql.decoder import Decoder
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.wire.binlog_file import packets
from headrace.native import find
from headrace.pipeline.message_builder import make_builder
from headrace.ports.source import Receiver
from tests import streams
from tests.configured import destination_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "message-format.md"
FILE = ROOT / "tests" / "fixtures" / "samples" / "mysql-bin.000001"
SERVER = "61ab538d-e6a2-11f1-b50c-02fc00000001"
STATEMENTS = (
    "CREATE TABLE serve_sync (id BIGINT PRIMARY KEY, name VARCHAR(50), price DECIMAL(10,2), on_sale TINYINT,"
    " updated DATETIME)",
    "INSERT INTO serve_sync VALUES (1, '家庭保洁 4 小时', 199.00, 1, '2026-11-21 09:30:00'),"
    " (2, '擦玻璃', 88.50, 0, NULL)",
    "UPDATE serve_sync SET price = 179.00 WHERE id = 1",
    "DELETE FROM serve_sync WHERE id = 2",
    "ALTER TABLE serve_sync ADD COLUMN city VARCHAR(20)",
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, user_id BIGINT, total DECIMAL(10,2))",
    "INSERT INTO orders VALUES (7, 42, 10.00), (8, 43, 20.00), (9, 42, 30.00)",
    "UPDATE orders SET user_id = 43 WHERE id = 9",
)
"""What was executed in the schema shop (utf8mb4), behind RESET BINARY LOGS AND GTIDS, with binlog_row_metadata FULL."""

pytestmark = pytest.mark.usefixtures("both_ways")


class Made(NamedTuple):
    """A message as it goes to a sink."""

    topic: str
    partition: int
    headers: dict[str, str]
    value: dict[str, Any]


def made(route: dict[str, Any] | None = None, message: dict[str, Any] | None = None) -> list[Made]:
    """The binlog's messages by these sections of a destination, in the order in which they were made."""
    settings = destination_of(
        {
            "name": "shop",
            "source": {"host": "h", "user": "u", "password": "p"},
            "route": {"topic": "shop", **(route or {})},
            "message": message or {},
            "sink": {"type": "kafka", "bootstrap_servers": "k:9092"},
        }
    )
    builder = make_builder(settings, new_format(settings), SERVER, 1, find().module if streams.in_native_code else None)
    builder.tick()

    def captures(schema: str, table: str) -> bool:
        return True

    decoder = Decoder(
        DumpStart(Position("", FILE.name, 4), checksums=True),
        Receiver(rows=builder.emit, statement=builder.emit_schema, native=builder.native),
        captures=captures,
        history=SchemaHistory(captures, mariadb=False, version="9.7.4", lower_case_table_names=0),
        options=DecoderOptions(),
    )
    for chunk in packets(FILE):
        at, more = 0, True
        while more:
            at, more = decoder.feed(chunk, at, lambda: False)
    found = [one for batch in builder.take(decoder.position(), 0) for one in of(batch)]
    return sorted(found, key=lambda one: int(one.value["_pos"]))


def of(batch: MessageBatch) -> list[Made]:
    return [
        Made(batch.topic, batch.partition, {name: text.decode() for name, text in headers}, json.loads(value))
        for headers, value in zip(batch.headers, batch.values, strict=True)
        if value is not None
    ]


def reported(one: dict[str, Any]) -> list[tuple[str, Any]]:
    """The fields in their order, without the time at which the message was made."""
    assert isinstance(one["ts"], int)
    return [(name, value) for name, value in one.items() if name != "ts"]


def routed() -> list[Made]:
    """What the page's section about partitions shows: a table spread by one of its columns."""
    (route,) = blocks("toml")
    return [one for one in made(tomllib.loads(route)["route"]) if one.value["table"] == "orders" and one.value["data"]]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def columns(one: Made) -> str:
    """A line of the page's overview of messages by partition."""
    rows = ", ".join(row["id"] for row in one.value["data"])
    return f"{one.partition}  {one.headers['headrace-id']:<42}  {one.value['_pos']}  {one.value['type']}  {rows}"


def test_each_kind_of_sample_is_what_the_code_makes() -> None:
    samples = [json.loads(text) for text in blocks("json")]
    assert [one["type"] for one in samples] == ["INSERT", "UPDATE", "DELETE", "ALTER"]
    ours = {one.value["type"]: one.value for one in made() if one.value["table"] == "serve_sync"}
    for one in samples:
        assert reported(one) == reported(ours[one["type"]])


def test_the_statements_after_the_samples_are_those_of_the_binlog() -> None:
    (text,) = blocks("sql")
    shown = [" ".join(one.split()) for one in text.split(";") if one.strip()]
    assert shown == [one for one in STATEMENTS if "serve_sync" in one]
    written = [one.value["sql"] for one in made() if one.value["isDdl"]]
    assert written == [one for one in STATEMENTS if one.startswith(("CREATE", "ALTER"))]


def test_the_headers_are_those_of_the_update() -> None:
    _, headers = blocks("text")
    (update,) = (one for one in made() if (one.value["type"], one.value["table"]) == ("UPDATE", "serve_sync"))
    assert [tuple(line.split()) for line in headers.splitlines()] == [*update.headers.items()]


def test_partitions_ids_and_numbers_of_the_routed_rows_are_those_of_the_page() -> None:
    overview, _ = blocks("text")
    assert overview.splitlines()[1:] == [columns(one) for one in routed()]


def test_row_i_of_a_message_counts_as_its_number_plus_i_in_each_way_to_split_an_event() -> None:
    whole = numbers(made())
    assert numbers(made(message={"rows_per_message": 1})) == whole
    assert numbers(made(message={"rows_per_message": 2})) == whole


def numbers(messages: list[Made]) -> list[tuple[int, str]]:
    return [
        (int(one.value["_pos"]) + i, row["id"]) for one in messages for i, row in enumerate(one.value["data"] or ())
    ]
