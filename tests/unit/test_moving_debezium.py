"""A connector of Debezium as a destination: values, faults, hidden columns, and Kafka Connect's offsets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import main
from headrace.formats.debezium.settings import DebeziumMessageSettings
from headrace.model import OpenXa, Position
from headrace.moving.cursors import (
    debezium_cursor,
    debezium_key,
    made_debezium_offset,
    not_in_cursor,
    offsets_file,
)
from headrace.moving.debezium import DebeziumImport
from headrace.moving.foreign import ForeignCursor
from headrace.ports.replay import Published
from headrace.rules.topics import TopicRules
from headrace.settings.destination import DestinationSettings
from tests.configured import load

CONFIG: dict[str, Any] = {
    "connector.class": "io.debezium.connector.mysql.MySqlConnector",
    "tasks.max": "1",
    "database.hostname": "127.0.0.1",
    "database.port": "3307",
    "database.user": "debezium",
    "database.password": "Pa55",
    "database.server.id": "184054",
    "topic.prefix": "fulfillment",
    "schema.history.internal.kafka.bootstrap.servers": "127.0.0.1:9092",
    "schema.history.internal.kafka.topic": "history",
}


def connector(folder: Path, **more: Any) -> Path:
    """Keys are written with `__` for dots; None takes one away."""
    config = {**CONFIG, **{key.replace("__", "."): value for key, value in more.items()}}
    file = folder / "connector.json"
    given = {key: value for key, value in config.items() if value is not None}
    file.write_text(json.dumps({"name": "Inventory", "config": given}, indent=1))
    return file


def imported(folder: Path, *options: str, **more: Any) -> DestinationSettings:
    out = folder / "out"
    assert main(["import", "debezium", str(connector(folder, **more)), "--out", str(out), *options]) == 0
    return load(out / "headrace.toml", {"DB_PASSWORD": "p"}).destinations["inventory"]


def refused(folder: Path, capsys: pytest.CaptureFixture[str], **more: Any) -> list[str]:
    assert main(["import", "debezium", str(connector(folder, **more)), "--out", str(folder / "out")]) == 2
    assert not (folder / "out").exists()
    return capsys.readouterr().err.replace(f"{folder}/", "").splitlines()[:-1]


def test_rows_go_to_the_connector_s_topics(tmp_path: Path) -> None:
    made = imported(tmp_path)
    rules = TopicRules.parse(made.route.dynamic_topic)
    assert rules.choose("Shop", "users") == ("fulfillment.Shop.users", made.route.dynamic_topic)
    assert (made.route.topic, made.sink.model_dump()["bootstrap_servers"]) == ("fulfillment", ("127.0.0.1:9092",))


def test_operations_that_were_skipped_are(tmp_path: Path) -> None:
    more = {"skipped__operations": "c, t", "skip__messages__without__change": "true", "include__query": "true"}
    made = imported(tmp_path, **more)
    assert (made.filter.operations, made.filter.unchanged_updates) == (("update", "delete"), "skip")
    assert made.message.model_dump()["debezium"]["query"]


def test_what_a_connector_has_by_default_is_written_out(tmp_path: Path) -> None:
    made = imported(tmp_path)
    assert isinstance(made.message, DebeziumMessageSettings)
    message = made.message.debezium
    assert (message.name, message.bigint_unsigned, message.schema_topic) == ("fulfillment", "long", "fulfillment")
    assert (message.transaction_topic, message.tombstones, message.schemas) == ("", True, True)
    assert (made.source.snapshot, made.source.tls, made.heartbeat.enabled) == ("initial", "preferred", False)
    assert made.filter.exclude == r"(mysql|sys|information_schema|performance_schema)\..*"


def test_options_that_have_counterparts(tmp_path: Path) -> None:
    made = imported(
        tmp_path,
        snapshot__mode="no_data",
        decimal__handling__mode="string",
        bigint__unsigned__handling__mode="precise",
        binary__handling__mode="hex",
        time__precision__mode="connect",
        tombstones__on__delete=False,
        include__schema__changes="false",
        provide__transaction__metadata=True,
        value__converter__schemas__enable="false",
        topic__creation__default__partitions=4,
        database__ssl__mode="verify_ca",
        connect__timeout__ms=5000,
    )
    assert isinstance(made.message, DebeziumMessageSettings)
    message = made.message.debezium
    assert (message.decimal, message.bigint_unsigned, message.binary) == ("string", "precise", "hex")
    assert (message.time_precision, message.tombstones, message.schemas) == ("connect", False, False)
    assert (message.schema_topic, message.transaction_topic) == ("", "fulfillment.transaction")
    assert (made.source.snapshot, made.source.tls, made.source.connect_timeout) == ("schema_only", "verified", 5)
    assert (made.route.partitions, made.route.partition_hash) == (4, r".*\..*:$pk$")


def test_the_brokers_are_those_that_are_given(tmp_path: Path) -> None:
    assert imported(tmp_path, "--bootstrap", "k:1").sink.model_dump()["bootstrap_servers"] == ("k:1",)


def test_options_without_counterpart_are_named_and_their_values_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    imported(tmp_path, message__key__columns="a.b:hidden", transforms="hidden", my__own="hidden")
    text = (tmp_path / "out/destinations/inventory.toml").read_text()
    assert "message.key.columns, transforms: there is no key for it" in text
    assert "my.own: is not known" in text
    assert "hidden" not in text
    assert "Pa55" not in text + capsys.readouterr().out


def test_a_password_of_the_environment_stays_there(tmp_path: Path) -> None:
    made = imported(tmp_path, database__password="${env:DB_PASSWORD}")
    assert made.source.password.get_secret_value() == "p"
    assert not (tmp_path / "out/secrets").exists()


def test_tables_and_databases_are_those_of_the_connector(tmp_path: Path) -> None:
    both = imported(
        tmp_path,
        database__include__list="shop,crm",
        table__include__list=r"shop\.users,.*\.items",
        table__exclude__list="crm.items",
        table__ignore__builtin="false",
    ).filter
    assert both.include == r"shop\.users,.*\.items"
    assert both.exclude == r"(?!(?:shop|crm)\.).*,crm.items"


def test_databases_alone_are_all_of_their_tables(tmp_path: Path) -> None:
    assert imported(tmp_path, database__include__list="shop,crm_[0-9]+").filter.include == (
        r"(?:shop)\..*,(?:crm_[0-9]+)\..*"
    )


def test_hidden_columns_stay_hidden(tmp_path: Path) -> None:
    rules = imported(
        tmp_path,
        column__exclude__list=r"shop\.users\.phone,shop\.users\.mail,shop.items.cost",
        column__truncate__to__3__chars=r"shop\.users\.name",
        column__mask__with__5__chars=r"shop\.users\.card",
        **{"column.mask.hash.SHA-256.with.salt.S4lt": r"shop\.users\.city"},
    ).filter
    assert rules.exclude_columns == r"shop\.users:phone/mail,shop.items:cost"
    assert [(one.mask, one.tables, one.columns) for one in rules.mask] == [
        ("truncate", r"shop\.users", ("name",)),
        ("fixed", r"shop\.users", ("card",)),
        ("hash", r"shop\.users", ("city",)),
    ]
    assert rules.mask[1].rule.value == "*****"
    assert rules.mask[2].salt.get_secret_value() == "S4lt"
    assert "S4lt" not in (tmp_path / "out/destinations/inventory.toml").read_text()


def test_what_would_no_longer_be_hidden_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems = refused(
        tmp_path,
        capsys,
        column__exclude__list=r"shop\.users\.(phone|mail)",
        **{"column.mask.hash.SHA-256.with.salt.S4lt": r".*\.secret_.*", "column.mask.hash.with.salt.S4lt": "a.b.c"},
    )
    assert len(problems) == 3
    assert "S4lt" not in "".join(problems)
    assert problems[2] == "connector.json: line 16: column.mask.*: is no way to hide a column that is known"
    assert problems[0].startswith(r"connector.json: line 14: column.exclude.list: shop\.users\.(phone|mail) should be")
    assert problems[1].startswith(r"connector.json: line 15: column.mask.hash.*: .*\.secret_.* should be a table")


def test_all_faults_come_at_once_with_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems = refused(
        tmp_path,
        capsys,
        connector__class="io.debezium.connector.postgresql.PostgresConnector",
        database__hostname=None,
        database__port="none",
        snapshot__mode="custom",
        time__precision__mode="isostring",
        value__converter="io.confluent.connect.avro.AvroConverter",
        table__include__list="sh(op",
        topic__prefix="${file:/x:prefix}",
    )
    reported = " ".join(problems)
    assert "connector.json: line 4: connector.class: should be one of io.debezium.connector.mysql" in reported
    assert "connector.json: database.hostname: is missing" in reported
    for name in ("database.port", "snapshot.mode", "time.precision.mode", "value.converter", "table.include.list"):
        assert any(f": {name}: " in one and one.startswith("connector.json: line ") for one in problems), name
    assert "topic.prefix: refers to a provider of Kafka Connect: write the value out" in reported


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ('{"name": "a",\n oops}', "line 2: is no JSON: Expecting property name enclosed in double quotes"),
        ("[]", "line 1: should be an object with a connector's name and config"),
        ('{"config": 1}', "line 1: should be an object with a connector's name and config"),
        ('{"name": "a",\n"topic.prefix": []}', "line 2: topic.prefix: should be a text or a number"),
    ],
)
def test_a_file_that_is_no_connector_is_reported(
    text: str, reported: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.json"
    file.write_text(text)
    assert main(["import", "debezium", str(file), "--out", str(tmp_path / "out")]) == 2
    assert f"{file}: {reported}" in capsys.readouterr().err


# -- offsets ------------------------------------------------------------------------------------------------------

OFFSET = {"ts_sec": 1700000000, "file": "b.000003", "pos": 484, "server_id": 7}


def record(value: Any, connector: str = "Inventory", prefix: str = "fulfillment") -> Published:
    return Published(None if value is None else json.dumps(value).encode(), debezium_key(connector, prefix))


def carried(folder: Path, *records: Published) -> tuple[dict[str, ForeignCursor], list[str]]:
    problems = list[str]()
    return DebeziumImport(connector(folder), "", problems).cursors(records, "offsets"), problems


def test_the_connector_s_last_offset_counts(tmp_path: Path) -> None:
    others = Published(b"{}", b"no json"), record({"file": "x.1", "pos": 9}, "other"), record({"pos": 9}, prefix="p")
    found, problems = carried(tmp_path, record({**OFFSET, "pos": 4}), record(OFFSET), *others)
    assert found == {"inventory": ForeignCursor("b.000003", 484, time_ms=1_700_000_000_000, server_id=7)}
    assert problems == []


def test_an_offset_that_was_taken_away_is_none(tmp_path: Path) -> None:
    found, problems = carried(tmp_path, record(OFFSET), record(None))
    assert (found, problems) == ({}, ["offsets: has no offset of Inventory with the server fulfillment"])


@pytest.mark.parametrize(
    ("value", "reported"),
    [
        ({**OFFSET, "snapshot": "INITIAL"}, "the connector's first snapshot has not ended"),
        ({"pos": 4}, "has neither file nor gtids"),
        ({"file": "b.1", "pos": "4"}, "`pos` should be a whole number"),
        ([], "an offset should be a JSON object"),
    ],
)
def test_an_offset_from_which_headrace_cannot_continue_is_reported(value: Any, reported: str, tmp_path: Path) -> None:
    found, problems = carried(tmp_path, record(value))
    assert found == {}
    assert reported in problems[0]


def test_rows_to_skip_mean_that_the_offset_lies_in_a_transaction() -> None:
    assert debezium_cursor({**OFFSET, "event": 2, "row": 1}).inside
    assert not debezium_cursor({**OFFSET, "gtids": "a:1-2,\nb:1"}).inside
    assert debezium_cursor({**OFFSET, "gtids": "a:1-2,\nb:1"}).gtids == "a:1-2,b:1"


def test_a_position_becomes_an_offset_that_import_reads() -> None:
    position = Position("uuid", "b.000003", 484, "u:1-5", commit_time_us=1700000000123456)
    made = made_debezium_offset(position, 7)
    assert made == {**OFFSET, "gtids": "u:1-5"}
    assert debezium_cursor(made) == ForeignCursor("b.000003", 484, "u:1-5", time_ms=1_700_000_000_000, server_id=7)
    assert json.loads(offsets_file("p", made)) == {"offsets": [{"partition": {"server": "p"}, "offset": made}]}


def test_what_an_offset_does_not_contain_is_reported() -> None:
    position = Position("uuid", "b.1", 484, events_done=3, open_xa=(OpenXa("1:aa:bb", "b.1", 4),))
    inside, prepared = not_in_cursor(position)
    assert "the cursor is its beginning, so 3 rows events that were published come again" in inside
    assert "1:aa:bb" in prepared
