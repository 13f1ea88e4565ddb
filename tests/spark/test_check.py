"""`headrace-spark check` with a real Kafka and a real Elasticsearch: each thing that may be wrong is found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.canal_messages import START, TYPES, change, row

from .conftest import Done, Pipeline

pytestmark = pytest.mark.server

Command = Callable[..., Done]


def check(pipeline: Pipeline, command: Command, code: int, **changes: str) -> dict[str, list[tuple[str, str, str]]]:
    """The findings by what they are about: state, text and remedy."""
    text = pipeline.config.read_text()
    for old, new in changes.items():
        text = text.replace(old, new)
    config = pipeline.config.with_name("changed.toml")
    config.write_text(text)
    done = command("check", "--config", config, "--json")
    reported = json.loads(done.out)
    assert done.code == code, done.out
    assert bool(reported["summary"]["wrong"]) == bool(code)
    found: dict[str, list[tuple[str, str, str]]] = {}
    for one in reported["findings"]:
        found.setdefault(one["name"], []).append((one["level"], one["sentence"], one["remedy"]))
    return found


def bad(found: dict[str, list[tuple[str, str, str]]]) -> dict[str, list[tuple[str, str]]]:
    """What is not well."""
    picked = {about: [(s, text) for s, text, _ in all_ if s != "ok"] for about, all_ in found.items()}
    return {about: some for about, some in picked.items() if some}


async def test_all_is_well_and_nothing_is_left(pipeline: Pipeline, command: Command) -> None:
    await pipeline.send([change(pipeline.topic, START + number, "INSERT", row(number)) for number in range(30)])
    before = set(pipeline.elastic.indices.get(index="*"))
    # By default an index has a copy, for which this cluster has no second node.
    index = f"shop.{pipeline.topic}"
    reported = "1 shards and 1 replicas, and the cluster has 1 data node: not all copies find a place"
    assert bad(check(pipeline, command, 0)) == {f"index {index}": [("warning", reported)]}
    found = check(
        pipeline, command, 0, **{"retries = 2\n": 'retries = 2\nsettings = { "index.number_of_replicas" = 0 }\n'}
    )
    assert bad(found) == {}
    assert found[f"topic {pipeline.topic}"][0][1].startswith("1 partition; the last 20 messages were read, the newest")
    assert "nothing was made" in found[f"dead-letter topic {pipeline.topic}.dead"][0][1]
    assert found["messages"] == [("ok", "20 of Canal's JSON", "")]
    assert found[f"table {index}"] == [("ok", f"primary key id; goes into {index}", "")]
    assert found["rights"][0][1].endswith("was made, written to and deleted again")
    assert found["Elasticsearch"][0][1].startswith("Elasticsearch 8.19.")
    assert found["Java"][0][0] == "ok"
    jars = r"the jars of its Kafka source (are there|were downloaded): "  # the latter until a stream has begun once
    assert re.match(jars, found["Spark"][0][1])
    assert set(pipeline.elastic.indices.get(index="*")) == before
    assert "not there yet" in found[f"index {index}"][0][1]
    # For people: a line each, and the last says how it is.
    done = command("check", "--config", pipeline.config)
    assert done.out.splitlines()[-1] == "all is well"
    assert all(line.startswith(("ok ", "warning ", "wrong ", "  ")) for line in done.out.splitlines()[:-1])


INDEXES = """
[[index]]
name = "INDEX"
tables = ['shop\\.TABLE']
analyzer = "smartcn"
[[index]]
name = "INDEX-2"
tables = ['shop\\.TABLE']
id = "{nothing}"
[spark]
"""


async def test_each_thing_that_is_wrong_is_reported_with_its_place(pipeline: Pipeline, command: Command) -> None:
    name = pipeline.topic
    types = {**TYPES, "at": "datetime"}
    await pipeline.send(
        [
            b"garbage",
            change(name, START, "INSERT", {**row(1), "at": "2026-01-01 00:00:00"}, mysqlType=types),
            change("nobody_s", START + 1, "INSERT", row(1)),
            change("unkeyed", START + 2, "INSERT", row(1), pkNames=None),
        ]
    )
    mapping = {"id": {"type": "keyword"}, "name": {"type": "long"}, "at": {"type": "boolean"}}
    settings = {"index.number_of_replicas": 1, "index.blocks.write": True, "index.gc_deletes": "60s"}
    index = f"{name}-i"
    pipeline.elastic.indices.create(index=index, mappings={"properties": mapping}, settings=settings)
    declared = INDEXES.replace("INDEX", index).replace("TABLE", name)
    found = check(
        pipeline,
        command,
        1,
        **{
            "[spark]\n": declared,
            "retries = 2\n": "retries = 2\ncreate_index = false\n",
            f'topics = ["{name}"]': f'topics = ["{name}", "{name}.none"]',
            '"512m"': '"900g"',
        },
    )
    wrong = bad(found)
    assert wrong["memory"][0][0] == "wrong"
    assert wrong[f"topic {name}.none"] == [("wrong", "is not there")]
    assert wrong["messages"][0][0] == "warning"
    assert wrong["messages"][0][1].startswith("1 would become dead letters: not JSON")
    assert wrong["messages"][0][1].endswith(f"(first: {name}, partition 0, offset 0)")
    assert wrong["messages"][1] == (
        "warning",
        "no [[index]] has shop.nobody_s, shop.unkeyed: their rows are passed over",
    )
    [(state, text)] = wrong[f"table shop.{name}"]
    assert state == "wrong"
    assert "{nothing}" in text
    assert wrong[f"index {index}-2"] == [("wrong", "is not there")]
    assert {text.partition(":")[0] for _, text in wrong[f"index {index}"]} == {
        "takes no documents",
        "1 shards and 1 replicas, and the cluster has 1 data node",
        "remembers deletes for 60s (index.gc_deletes), and gc_deletes is 1h",
        "the cluster has no analyzer smartcn",
    }


async def test_fields_of_other_types_are_reported_as_they_would_fail(pipeline: Pipeline, command: Command) -> None:
    name = pipeline.topic
    await pipeline.send([change(name, START, "INSERT", row(1))])
    index = f"{name}-i"
    mapping: dict[str, Any] = {"id": {"type": "keyword"}, "name": {"type": "long"}, "sold": {"type": "long"}}
    pipeline.elastic.indices.create(
        index=index, mappings={"properties": mapping}, settings={"number_of_replicas": 0, "gc_deletes": "2h"}
    )
    declared = f"[[index]]\nname = \"{index}\"\ntables = ['.*']\n[spark]\n"
    found = check(pipeline, command, 1, **{"[spark]\n": declared})
    assert found[f"index {index}"] == [
        (
            "warning",
            "field id is keyword, and long is planned: values are searched and sorted as texts",
            "write into a new index, or give the field that `type` in [[index]]",
        ),
        (
            "wrong",
            "field name is long, and text is planned: documents are refused",
            "write into a new index, or give the field that `type` in [[index]]",
        ),
        ("ok", "1 fields (price) are added before the first document that has them", ""),
    ]
    assert pipeline.elastic.indices.get_mapping(index=index)[index]["mappings"]["properties"] == mapping


async def test_a_server_that_is_away_is_reported_once(pipeline: Pipeline, command: Command) -> None:
    from tests.unit.test_spark_settings import closed_port

    await pipeline.send([change(pipeline.topic, START, "INSERT", row(1))])
    away = f"http://127.0.0.1:{closed_port()}"
    wrong = bad(check(pipeline, command, 1, **{pipeline.elastic_url: away}))
    assert wrong.keys() == {"Elasticsearch"}
    [(_, text)] = wrong["Elasticsearch"]
    assert "does not answer" in text
    assert text.endswith("its indexes and the account's rights could not be checked")
    wrong = bad(check(pipeline, command, 1, **{pipeline.bootstrap: f"127.0.0.1:{closed_port()}"}))
    assert wrong.keys() == {"Kafka"}
    [(_, text)] = wrong["Kafka"]
    assert text.endswith("topics and messages could not be checked")
