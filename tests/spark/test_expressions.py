"""Fields that Spark computes, with a real Kafka, a real Elasticsearch and a real Spark."""

from __future__ import annotations

import pytest

from tests.canal_messages import START, change, row

from .conftest import Pipeline

pytestmark = [pytest.mark.server, pytest.mark.long]

INDEX = """
[[index]]
name = "computed-{topic}"
tables = ['shop\\..*']
fields.title = {{ sql = "concat(upper(name), ' ', key)" }}
fields.parts = {{ sql = "transform(split(name, '-'), x -> struct(length(x) AS long, x AS part))" }}
fields.cents = {{ sql = "cast(price * 100 AS BIGINT)", type = "long" }}
[[index.join]]
name = "parent"
tables = ['shop\\..*']
on = {{ id = "sold" }}
columns = "listed"
fields.name = {{ sql = "reverse(name)" }}
"""


async def test_fields_are_what_spark_computes_of_texts(pipeline: Pipeline) -> None:
    pipeline.config.write_text(pipeline.config.read_text() + INDEX.format(topic=pipeline.topic))
    types = {"id": "bigint", "name": "varchar(64)", "price": "decimal(10,2)", "sold": "bigint", "key": "varchar(9)"}
    rows = [row(1, "a-bc", sold="2") | {"key": "k"}, row(2, "保洁", price="no number", sold=None) | {"key": None}]
    await pipeline.send([change("t", START, "INSERT", *rows, mysqlType=types), b"no JSON"])
    pipeline.drain()
    index = f"computed-{pipeline.topic}"
    found = {name: body for name, (_, body) in pipeline.documents(index).items()}
    kept = ("title", "parts", "cents", "parent_name")
    assert {name: {key: body.get(key) for key in kept} for name, body in found.items()} == {
        "1": {
            "title": "A-BC k",
            "parts": [{"long": 1, "part": "a"}, {"long": 2, "part": "bc"}],
            "cents": 990,
            "parent_name": "洁保",
        },
        "2": {"title": None, "parts": [{"long": 2, "part": "保洁"}], "cents": None, "parent_name": None},
    }
    await pipeline.dead_letters(1)
    changed = {"name": "前", "sold": None} | {name: value for name, value in rows[1].items() if name in ("id", "price")}
    update = change("t", START + 10, "UPDATE", changed | {"key": None}, old=[{"name": "保洁"}], mysqlType=types)
    await pipeline.send([update])
    pipeline.drain()
    assert pipeline.documents(index)["1"][1]["parent_name"] == "前"


async def test_an_expression_that_spark_does_not_take_ends_the_start_with_its_place(pipeline: Pipeline) -> None:
    index = "[[index]]\nname = 'x'\ntables = ['a']\nfields.y = { sql = 'no_such(name)' }\n"
    pipeline.config.write_text(pipeline.config.read_text() + index)
    await pipeline.send([b"{}"])
    assert pipeline.start("--available-now").wait(90) == 2
    assert "index x, field y: Spark does not take sql = 'no_such(name)': " in pipeline.text()
    assert "Traceback" not in pipeline.text()
