"""What Flink's own deserializers make of headrace's messages, with the options that docs/consumers.md gives."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devstack import Stack, flink
from devstack.process import clean_environment
from tests import pages
from tests.support import DaemonProcess, destination_toml, eventually, read_topic

pytestmark = pytest.mark.server

SOURCE = Path(__file__).parent.parent / "flink_java" / "Rows.java"
SCHEMA = "flinks"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


def time_of(text: str) -> timedelta:
    hours, minutes, seconds = (*text.split(":"), "0")[:3]
    return timedelta(hours=int(hours), minutes=int(minutes), seconds=float(seconds))


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=None)


def bits(text: str) -> bytes:
    return int(text).to_bytes(2, "big")


Column = tuple[str, Callable[[str], Any]]
"""The type in Flink's table, and how its text becomes what SELECT gives."""
INTEGERS = {
    "id": ("INT", int),
    "tiny": ("TINYINT", int),
    "small": ("INT", int),
    "big": ("BIGINT", int),
    "y": ("INT", int),
    "added": ("INT", int),
}
FLOATS = {"f": ("FLOAT", float), "d": ("DOUBLE", float)}
TEXTS = {"name": ("STRING", str), "txt": ("STRING", str), "e": ("STRING", str)}
BYTES = {"bin": ("BYTES", bytes.fromhex), "blb": ("BYTES", bytes.fromhex)}
DDL = (
    "CREATE TABLE t (id INT PRIMARY KEY, tiny TINYINT, small SMALLINT UNSIGNED, big BIGINT, ubig BIGINT UNSIGNED, price"
    " DECIMAL(10,2), f FLOAT, d DOUBLE, bits BIT(10), day DATE, at DATETIME(6), sec DATETIME, moment TIMESTAMP(3) NULL,"
    " t TIME, y YEAR, name VARCHAR(20), txt TEXT, e ENUM('a','b'), s SET('x','y','z'), j JSON, bin VARBINARY(9), blb"
    " BLOB)"
)
STATEMENTS = (
    "INSERT INTO t VALUES (1, 1, 65535, -9223372036854775808, 18446744073709551615, 199.00, 1.5, 0.1, 5, '2026-11-21',"
    " '2026-11-21 09:30:00.123456', '2026-11-21 09:30:00', '2026-11-21 09:30:00.123', '12:30:00', 2026,"
    " '家庭保洁 4 小时', 'a \"text\"', 'b', 'x,z', '{\"a\": [1, null]}', x'00ff', x'0102'),"
    " (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
    " NULL, NULL, NULL),"
    " (3, -128, 0, 0, 0, -0.05, -2.25, -1e20, 1023, '1969-12-31', '1969-12-31 23:59:59.999999', '9999-12-31 23:59:59',"
    " '1970-01-01 00:00:01', '23:59:59', 1901, '', '', 'a', '', '[]', '', '')",
    # Of the first row the price changes, of the second the name and what was NULL, of the third the name to NULL.
    "UPDATE t SET price = IF(id = 1, 9.99, price), name = IF(id = 2, 'b', IF(id = 3, NULL, name)), big = IF(id = 2, 7,"
    " big)",
    "UPDATE t SET txt = NULL, bin = x'ff' WHERE id <> 2",
    "ALTER TABLE t ADD COLUMN added INT",
    "UPDATE t SET added = id WHERE id < 3",
    "UPDATE t SET id = 30 WHERE id = 3",
    "DELETE FROM t WHERE id <> 30",
    "INSERT INTO t (id, name, added) VALUES (4, 'd', 4)",
)
ODD = (
    "CREATE TABLE odd (id INT PRIMARY KEY, flag BOOLEAN, moment TIMESTAMP NULL, clock TIME(3), day DATE)",
    "INSERT INTO odd VALUES (1, TRUE, '2026-11-21 09:30:00', '12:30:00.5', '2026-11-21')",
    "INSERT INTO odd VALUES (2, TRUE, '2026-11-21 09:30:00', '-00:30:00', '0000-00-00')",
)
CANAL: dict[str, Column] = {
    **INTEGERS,
    **FLOATS,
    **TEXTS,
    **BYTES,
    "ubig": ("DECIMAL(20,0)", int),
    "price": ("DECIMAL(10,2)", Decimal),
    "bits": ("INT", bits),
    "day": ("DATE", date.fromisoformat),
    "at": ("TIMESTAMP(6)", datetime.fromisoformat),
    "sec": ("TIMESTAMP(0)", datetime.fromisoformat),
    "moment": ("TIMESTAMP(3)", datetime.fromisoformat),
    "t": ("TIME", time_of),
    "s": ("STRING", str),
    "j": ("STRING", str),
}
DEBEZIUM: dict[str, Column] = {
    **INTEGERS,
    **FLOATS,
    **TEXTS,
    **BYTES,
    "ubig": ("BIGINT", lambda text: int(text) % 2**64),
    "price": ("DECIMAL(10,2)", Decimal),
    "bits": ("BYTES", lambda text: bytes.fromhex(text)[::-1]),
    "day": ("INT", lambda text: (EPOCH + timedelta(days=int(text))).date()),
    "at": ("BIGINT", lambda text: (EPOCH + timedelta(microseconds=int(text))).replace(tzinfo=None)),
    "sec": ("BIGINT", lambda text: (EPOCH + timedelta(milliseconds=int(text))).replace(tzinfo=None)),
    "moment": ("TIMESTAMP_LTZ(3)", utc),
    "t": ("BIGINT", lambda text: timedelta(microseconds=int(text))),
    "s": ("STRING", str),
    "j": ("STRING", str),
}
MAXWELL: dict[str, Column] = {
    **CANAL,
    "s": ("ARRAY<STRING>", lambda text: ",".join(text.strip("[]").split(", "))),
    "j": ("STRING", lambda text: json.dumps(json.loads(text))),
}
METADATA = {
    "canal": "database,table,pk-names,event-timestamp",
    "debezium": "source.database,source.table,source.timestamp",
    "maxwell": "database,table,primary-key-columns",
}


@dataclass
class Published:
    """What headrace published of the same statements, by destination, and the table after each statement."""

    stack: Stack
    messages: dict[str, list[str]]
    states: list[dict[int, Row]] = field(default_factory=list)

    def read(self, destination: str, form: str, columns: dict[str, Column], *options: str) -> list[tuple[str, Row]]:
        """The rows that Flink makes of a destination's messages, each with its kind."""
        return [(kind, row) for _, kind, row in self.numbered(destination, form, columns, *options)]

    def numbered(
        self, destination: str, form: str, columns: dict[str, Column], *options: str
    ) -> list[tuple[int, str, Any]]:
        """The same, each with the number of its message from 0; of a message that Flink refuses what it says."""
        kind = ", ".join(f"`{name}` {sort}" for name, (sort, _) in columns.items())
        metadata = METADATA[form.removesuffix("-json")]
        done = subprocess.run(
            [*flink.program(self.stack.cache, SOURCE), form, f"ROW<{kind}>", metadata, *options],
            input="".join(f"{line}\n" for line in self.messages[destination]),
            capture_output=True,
            text=True,
            env=clean_environment(),
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found = []
        for number, sort, row in map(json.loads, done.stdout.splitlines()):
            if sort != "!":
                meta = {name: row.pop(name) for name in metadata.split(",")}
                assert SCHEMA in meta.values(), meta
                assert None not in meta.values(), meta
                row = {name: None if text is None else columns[name][1](text) for name, text in row.items()}
            found.append((number, sort, row))
        return found


@pytest.fixture(scope="module")
def published(stack: Stack, mysql: Any, kafka: Any, tmp_path_factory: pytest.TempPathFactory) -> Published:
    folder = tmp_path_factory.mktemp("flink")
    debezium = '[message.debezium]\ndecimal = "string"\nbigint_unsigned = "long"'
    messages = {
        "canal": 'old = "uniform"',
        "own_old": "",
        "two_tables": "",
        "keyed": 'old = "uniform"\nkey = ["$pk$"]',
        "maxwell": 'format = "maxwell"\nfields = ["primary_key_columns"]',
        "debezium": f'format = "debezium"\n{debezium}',
        "payload": f'format = "debezium"\n{debezium}\nschemas = false',
    }
    sink = f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"'
    texts = {}
    for name, message in messages.items():
        text = destination_toml(mysql, SCHEMA, sink, more=f"[message]\n{message}")
        text = text.replace(f'topic = "{SCHEMA}"', f'topic = "{SCHEMA}.{name}"')
        if name != "two_tables":
            text = text.replace(f'"{SCHEMA}\\\\..*"', f'"{SCHEMA}\\\\.t"')
        texts[name] = text if name == "own_old" else text.replace("[route]", "ddl = false\n[route]")
    found = Published(stack, {})
    login = mysql.connection("root")
    with (
        pymysql.connect(**login, autocommit=True, charset="utf8mb4") as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"CREATE DATABASE {SCHEMA}")
        cursor.execute(f"USE {SCHEMA}")
        process = DaemonProcess(folder / "daemon", texts)
        process.start()
        try:
            for name in texts:
                process.wait_state(name, "STREAMING")
            cursor.execute("SET sql_mode = ''")
            for statement in (DDL, *ODD):
                cursor.execute(statement)
            for statement in STATEMENTS:
                cursor.execute(statement)
                with connection.cursor(pymysql.cursors.DictCursor) as rows:
                    rows.execute("SELECT * FROM t")
                    state = {row["id"]: {"added": None, **row} for row in rows.fetchall()}
                    if not found.states or found.states[-1] != state:
                        found.states.append(state)
            for name in texts:
                found.messages[name] = _messages(kafka, f"{SCHEMA}.{name}")
        finally:
            process.kill()
            cursor.execute(f"DROP DATABASE {SCHEMA}")
    return found


def _messages(kafka: Any, topic: str) -> list[str]:
    """The values in a topic, "" for a tombstone, once the last statement's row is among them."""
    found: list[str] = []

    def complete() -> bool:
        records = asyncio.run(read_topic(kafka.bootstrap_servers, topic))
        found[:] = [(record.value or b"").decode() for record in records]
        last = json.loads(found[-1] or "{}") if found else {}
        return any(row and str(row["id"]) == "4" for row in _rows(last))

    eventually(complete, 30, lambda: f"{topic}: {found}")
    return found


def _rows(message: dict[str, Any]) -> list[Row]:
    message = message.get("payload", message)
    data = message.get("after") or message.get("data") or []
    return data if isinstance(data, list) else [data]


def follow(rows: list[tuple[str, Row]], states: list[dict[int, Row]]) -> None:
    """Applies the rows as a changelog: one that is taken back has to be the one that is there, whole; the table passes
    through all states."""
    table: dict[int, Row] = {}
    reached = 0
    for kind, row in rows:
        if kind in ("-U", "-D"):
            assert table.pop(row["id"]) == row
        else:
            assert kind in ("+I", "+U"), row
            assert row["id"] not in table
            table[row["id"]] = row
        if reached < len(states) and table == states[reached]:
            reached += 1
    assert table == states[-1]
    assert reached == len(states)


def given(form: str) -> list[str]:
    """The options that the page's table has for the format itself."""
    [block] = pages.blocks("consumers.md", "sql", f"'format' = '{form}'")
    return ["=".join(pair) for pair in re.findall(rf"'{form}\.([\w.-]+)' = '([^']*)'", block)]


CHANGES = ["+I"] * 3 + ["-U", "+U"] * 8
"""What Flink makes of the statements up to the DELETE, where each message has one row or an event's rows."""


@pytest.mark.parametrize("name", ["canal", "keyed"])
def test_canal_json_follows_the_table(published: Published, name: str) -> None:
    rows = published.read(name, "canal-json", CANAL)
    follow(rows, published.states)
    assert [kind for kind, _ in rows] == [*CHANGES, "-D", "-D", "+I"]


def test_canal_json_takes_a_column_that_another_row_changed_for_null_without_uniform(published: Published) -> None:
    rows = [row for number, kind, row in published.numbered("own_old", "canal-json", CANAL) if kind == "-U"]
    assert rows[1]["price"] is None
    assert rows[0]["name"] is None
    assert published.states[0][1]["name"] is not None


def test_canal_json_refuses_schema_changes_but_create(published: Published) -> None:
    refused = [
        (number, text) for number, kind, text in published.numbered("own_old", "canal-json", CANAL) if kind == "!"
    ]
    [(number, text)] = refused
    assert json.loads(published.messages["own_old"][number])["type"] == "ALTER"
    assert 'Unknown "type" value "ALTER"' in text
    skipping = published.read("own_old", "canal-json", CANAL, "ignore-parse-errors=true")
    assert [kind for kind, _ in skipping] == [*CHANGES, "-D", "-D", "+I"]


def test_canal_json_reads_one_table_of_several(published: Published) -> None:
    options = [one.replace("^shop$", f"^{SCHEMA}$").replace("^goods$", "^t$") for one in given("canal-json")]
    assert len(options) == 2
    rows = published.read("two_tables", "canal-json", CANAL, *options)
    assert [kind for kind, _ in rows] == [*CHANGES, "-D", "-D", "+I"]


@pytest.mark.parametrize(
    ("column", "kind", "seen"),
    [
        ("flag", "BOOLEAN", ["false", "false"]),
        ("flag", "TINYINT", ["1", "1"]),
        ("moment", "TIMESTAMP_LTZ(0)", ["!", "!"]),
        ("clock", "TIME", ["12:30:00.500", "!"]),
        ("clock", "STRING", ["12:30:00.500", "-00:30:00.000"]),
        ("day", "DATE", ["2026-11-21", "!"]),
        ("day", "STRING", ["2026-11-21", "0000-00-00"]),
    ],
)
def test_types_that_canal_json_does_not_read(published: Published, column: str, kind: str, seen: list[str]) -> None:
    columns: dict[str, Column] = {"id": ("INT", int), column: (kind, str)}
    found = published.read("two_tables", "canal-json", columns, "table.include=^odd$")
    assert [row[column] if sort == "+I" else sort for sort, row in found] == seen


@pytest.mark.parametrize(("name", "included"), [("debezium", "true"), ("payload", "false")])
def test_debezium_json_follows_the_table(published: Published, name: str, included: str) -> None:
    options = [one.replace("schema-include=true", f"schema-include={included}") for one in given("debezium-json")]
    assert len(options) == 2
    rows = published.read(name, "debezium-json", DEBEZIUM, *options)
    follow(rows, published.states)


def test_maxwell_json_follows_the_table(published: Published) -> None:
    rows = published.read("maxwell", "maxwell-json", MAXWELL)
    follow(rows, published.states)


def test_the_page_has_these_types() -> None:
    page = {
        one: [re.sub("[, ]+(negative|little|days|milli|micro|in|UTC).*", "", cell) for cell in cells]
        for kinds, cells in pages.table("consumers.md", "MySQL").items()
        for one in kinds.replace("&lt;", "<").split(", ")
    }
    for name, kind in re.findall(r"(\w+) ([A-Z]+(?: UNSIGNED|\(\d+(?:,\d+)?\))?)", DDL.replace(" PRIMARY KEY", "")):
        if name.islower():
            kind = kind if kind in page else kind.partition("(")[0]
            types = [columns[name][0] for columns in (CANAL, DEBEZIUM, MAXWELL)]
            assert [cell.replace("&lt;", "<").replace("&gt;", ">") for cell in page[kind]] == types, name


def test_debezium_json_refuses_days_for_a_date(published: Published) -> None:
    columns: dict[str, Column] = {"id": ("INT", int), "day": ("DATE", str)}
    found = published.read("payload", "debezium-json", columns)
    assert "could not be parsed" in str(found[0]), found[0]


@pytest.mark.parametrize(
    ("form", "columns", "streamed", "read", "seen"),
    [
        ("debezium", DEBEZIUM, '"op":"c"', '"op":"r"', "+I"),
        ("maxwell", MAXWELL, '"type":"insert"', '"type":"bootstrap-insert"', "!"),
    ],
)
def test_maxwell_json_alone_refuses_the_rows_of_a_snapshot(
    published: Published, form: str, columns: dict[str, Column], streamed: str, read: str, seen: str
) -> None:
    first = published.messages["payload" if form == "debezium" else form][0]
    assert streamed in first
    found = Published(published.stack, {"one": [first.replace(streamed, read)]})
    options = ["timestamp-format.standard=ISO-8601"] if form == "debezium" else []
    assert [sort for sort, _ in found.read("one", f"{form}-json", columns, *options)] == [seen]
