"""`headrace-spark init`: what it makes of messages, and that its file is always a configuration that loads."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_documents.formats.changes import Rows
from headrace_documents.indexes.plans import Indexes
from headrace_documents.messages import read
from headrace_spark.check.proposal import Target, families, propose, toml
from headrace_spark.check.sample import Sample
from headrace_spark.cli import main as cli
from headrace_spark.settings import load_settings
from headrace_spark.source.kafka_client import Read
from tests.canal_messages import START, TYPES, change

TARGET = Target("127.0.0.1:9092", ["shop"], {}, "http://127.0.0.1:9200", ".cache/ivy")


def sample(*messages: bytes) -> Sample:
    made = Sample()
    for offset, message in enumerate(messages):
        made.take("shop", Read(0, offset, 1_700_000_000_000 + offset, None, message, []))
    return made


def insert(table: str, types: dict[str, str] | None = None, **more: object) -> bytes:
    types = types or TYPES
    values = dict.fromkeys(types, "1")
    return change(table, START, "INSERT", values, mysqlType=types, **more)


def loaded(text: str, folder: Path) -> tuple[dict[str, object], Indexes]:
    path = folder / "spark.toml"
    path.write_text(text)
    found = load_settings(path)
    return {one.name: one.tables for one in found.index}, Indexes(found.index)


def test_each_table_has_an_index_and_its_questions(tmp_path: Path) -> None:
    types = {
        "id": "bigint unsigned", "title": "varchar(64)", "price": "decimal(10,2)", "online": "tinyint(1)",
        "at": "datetime(3)", "more": "json", "place": "point", "is_deleted": "tinyint",
    }  # fmt: skip
    message = insert("serve_sync", types)
    text, variables = propose(TARGET, sample(message.replace(b'"title": "1"', '"title": "家庭"'.encode())), 1)
    names, _ = loaded(text, tmp_path)
    assert names == {"shop.serve_sync": [r"shop\.serve_sync"]}
    assert variables == []
    for line in (
        "#   id          bigint unsigned -> unsigned_long",
        "#   title       varchar(64) -> text, and a field keyword for sorting",
        'decimals = "keyword"',
        "booleans = false",
        'zone = "+00:00"',
        '# analyzer = "smartcn"',
        '# fields.more = { convert = "json", type = "object" }',
        '# fields.place = { convert = "geo_point" }',
        '# soft_delete = { column = "is_deleted", values = ["1"] }',
        "# shop.serve_sync: rows seen: 1 inserted.",
    ):
        assert line in text.splitlines(), line
    # What stands there as a question is good too, with its sign taken away.
    answered = "\n".join(
        line.removeprefix("# ") if line.startswith(("# analyzer", "# fields.", "# soft_delete")) else line
        for line in text.splitlines()
    )
    plans = loaded(answered, tmp_path)[1].plans(rows(message))
    assert plans[0].properties["place"] == {"type": "geo_point"}


def rows(message: bytes) -> Rows:
    found = read(message)
    assert isinstance(found, Rows)
    return found


def test_shards_share_an_index_and_tables_that_only_look_alike_do_not(tmp_path: Path) -> None:
    other = {**TYPES, "more": "text"}
    seen = sample(
        *(insert(f"serve_{number}") for number in range(3)),
        *(insert("orders", database=f"shop{number}") for number in range(2)),
        insert("log_202401"),
        insert("item_1"),
        insert("item_2"),
        insert("item_3", other),
        insert("Orders"),
        insert("orders"),
    )
    text, _ = propose(TARGET, seen, 10)
    names, indexes = loaded(text, tmp_path)
    assert names == {
        # Each by its name: the pattern of the two would match the third.
        "shop.item": [r"shop\.item_1", r"shop\.item_2"],
        "shop.item_3": [r"shop\.item_3"],
        "shop.log_202401": [r"shop\.log_202401"],
        "shop.orders": [r"shop\d+\.orders"],
        "shop.orders-2": [r"shop\.Orders"],
        "shop.orders-3": [r"shop\.orders"],
        "shop.serve": [r"shop\.serve_\d+"],
    }
    assert r"# Are there more tables of this kind? tables = ['shop\.log_\d+']" in text
    # Rows of shards with the same key do not take each other's place.
    shards = [rows(insert(f"serve_{number}")) for number in range(2)]
    assert [plan.actions(shard)[0].id for shard in shards for plan in indexes.plans(shard)] == [
        "serve_0:1",
        "serve_1:1",
    ]
    shops = [rows(insert("orders", database=f"shop{number}")) for number in range(2)]
    assert len({plan.actions(shard)[0].id for shard in shops for plan in indexes.plans(shard)}) == 2


def test_a_table_without_a_key_is_left_to_people(tmp_path: Path) -> None:
    text, _ = propose(TARGET, sample(insert("t", pkNames=None)), 1)
    assert loaded(text, tmp_path)[0] == {}
    assert '# id = "{id}"' in text


def test_messages_that_are_not_understood_are_reported() -> None:
    seen = sample(b"garbage\x1b", b"garbage\x1b", change("t", START, "INSERT", {"id": "1"}))
    text, _ = propose(TARGET, seen, 3)
    assert "#   2 are not understood and become dead letters: not JSON" in text
    assert "# 1 rows lack columns" in text
    assert "\x1b" not in text


def test_no_secret_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.jaas.config": 'x required password="hush";',
        "ssl.truststore.password": "${TRUST}",
        "ssl.keystore.key": "hush",
    }
    target = Target("k:9092", ["shop"], options, "https://me:hush@elastic:9243", ".cache/ivy")
    text, variables = propose(target, sample(insert("t")), 1)
    assert "hush" not in text
    assert variables == ["KAFKA_SASL_JAAS_CONFIG", "KAFKA_SSL_KEYSTORE_KEY", "ELASTICSEARCH_PASSWORD"]
    for name in (*variables, "TRUST"):
        monkeypatch.setenv(name, f"of {name}")
    path = tmp_path / "spark.toml"
    path.write_text(text)
    found = load_settings(path)
    assert found.kafka.options["ssl.truststore.password"] == "of TRUST"
    assert found.elasticsearch.hosts == ["https://elastic:9243"]
    assert found.elasticsearch.user == "me"


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_stays_itself_in_toml(text: str) -> None:
    assert tomllib.loads(f"a = {toml(text)}")["a"].replace("$${", "${") == text.replace("$${", "${")


@settings(max_examples=60, deadline=None)
@given(names=st.lists(st.tuples(NAMES, NAMES, NAMES, NAMES), min_size=1, max_size=4))
def test_whatever_tables_and_columns_are_called_the_file_loads_and_takes_them(
    names: list[tuple[str, str, str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    messages = []
    for database, table, key, column in names:
        types = {key: "int", column: "json"}
        values = dict.fromkeys(types, "1")
        messages.append(change(table, START, "INSERT", values, database=database, mysqlType=types, pkNames=[key]))
    text, _ = propose(TARGET, sample(*messages), 1)
    found, indexes = loaded(text, tmp_path_factory.mktemp("made"))
    assert len(found) == len(families(sample(*messages).tables.values()))
    for message in messages:
        assert len(indexes.plans(rows(message))) >= 1


def test_wrong_arguments_are_reported_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there.toml").touch()
    words = ["init", "--bootstrap-servers", "127.0.0.1:1", "--topic", "shop", "--output"]

    def reported(*more: str) -> tuple[int, str]:
        code = cli.main([*words, *more])
        return code, capsys.readouterr().err

    code, said = reported(str(tmp_path / "there.toml"))
    assert (code, "is there already: --force overwrites it" in said) == (1, True)
    new = str(tmp_path / "new.toml")
    assert reported(new, "--option", "hush") == (2, "--option: should be KEY=VALUE\n")
    code, said = reported(new, "--option", "sasl.jaas.config=${NO_SUCH_VARIABLE}")
    assert (code, said) == (2, "--option sasl.jaas.config: the environment variable NO_SUCH_VARIABLE is not set\n")
    assert reported(new, "--topic", "a b")[0] == 2
    assert reported(new, "--elasticsearch", "elastic:9200")[0] == 2
    assert reported(new)[0] == 1
    assert "Kafka can't be reached" in reported(new)[1]
    assert not Path(new).exists()
