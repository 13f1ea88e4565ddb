"""What counts as a difference between rows and documents, with real servers and no consumer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace_documents.elastic.cluster import Cluster
from headrace_documents.joins.tree import ROWS_MAPPING
from headrace_spark.rebuild.filling import TableRows
from headrace_spark.settings import load_settings
from headrace_spark.source.connection import Source
from headrace_spark.source.tables import read_table
from headrace_spark.verify.comparing import Compare
from headrace_spark.verify.differences import MISSING, ROW, Difference
from headrace_spark.verify.rechecks import Settle
from headrace_spark.verify.report import Report
from headrace_spark.verify.verify import Verify

from .conftest import Pipeline
from .source_tables import JOINED, PLAIN, configure

# PySpark leaves the sockets by which it collects to the garbage collector.
pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]
INDEX = """
[[index]]
name = "{name}"
tables = '{schema}\\.[tu]'
id = "{{table}}:{{id}}"
routing = "{{region}}"
table_field = "of"
booleans = true
soft_delete = {{ column = "gone", values = ["1"] }}
fields.double = {{ sql = "cast(amount AS DOUBLE) * 2", type = "double" }}
"""
Check = Callable[..., Report]


@pytest.fixture
async def check(pipeline: Pipeline, spark: SparkSession) -> Check:
    """Compares an index; the topic is there, and nobody reads it."""
    await pipeline.send([b"{}"])

    def run(name: str, *, repair: bool = False) -> Report:
        settings = load_settings(pipeline.config)
        assert settings.source is not None
        with Cluster(settings.elasticsearch) as cluster:
            settle = Settle(0, 0, repair)
            return Verify(settings, settings.source, spark, cluster, settle, sample=0).run(name)

    return run


def found(report: Report) -> set[tuple[str, ...]]:
    return {(one.kind, one.id, one.routing, *one.fields) for one in report.differences}


@pytest.mark.long
def test_tables_that_share_an_index_with_routing_and_computed_fields(
    mysql: Any, schema: str, execute: Callable[..., Any], pipeline: Pipeline, check: Check
) -> None:
    name, elastic = configure(pipeline, mysql, schema, INDEX), pipeline.elastic
    execute(
        "CREATE TABLE t (id INT PRIMARY KEY, region INT, flag TINYINT(1), amount DECIMAL(9,2), ratio DOUBLE, gone INT)",
        "CREATE TABLE u LIKE t",
    )
    report = check(name)
    assert (report.equal, report.rows) == (True, 0)
    execute(
        "INSERT INTO t VALUES (1, 7, 1, 1.50, 1, 0), (2, 8, 0, NULL, 0.1, 0), (3, 7, 1, 2, 2, 1)",
        "INSERT INTO u VALUES (1, 7, 0, 3, 1e300, 0)",
    )
    report = check(name)
    assert (report.equal, report.absent) == (False, name)
    elastic.indices.create(index=name, settings={"number_of_shards": 5})
    report = check(name, repair=True)
    assert (report.equal, report.rows, report.repaired) == (True, 4, 3)
    [one, two, other] = [
        {"id": 1, "region": 7, "flag": True, "amount": "1.50", "ratio": 1, "double": 3, "of": f"{schema}.t"},
        {"id": 2, "region": 8, "flag": False, "amount": None, "ratio": 0.1, "double": None, "of": f"{schema}.t"},
        {"id": 1, "region": 7, "flag": False, "amount": "3.00", "ratio": 1e300, "double": 6, "of": f"{schema}.u"},
    ]
    wanted = {"t:1": one | {"gone": 0}, "t:2": two | {"gone": 0}, "u:1": other | {"gone": 0}}
    assert {key: body for key, (_, body) in pipeline.documents(name).items()} == wanted
    # 1 says the same as 1.0. A document of a table that the source has not is none of ours.
    elastic.index(index=name, id="t:1", routing="7", document=wanted["t:1"] | {"ratio": 1, "double": 3.0})
    elastic.index(index=name, id="x:1", routing="7", document={"of": "elsewhere.x"})
    assert check(name).equal

    def shard(routing: str) -> Any:
        return elastic.search_shards(index=name, routing=routing)["shards"][0][0]["shard"]

    elsewhere = next(routing for routing in "123456" if shard(routing) != shard("7"))
    elastic.index(index=name, id="t:1", routing=elsewhere, document=wanted["t:1"])
    elastic.index(index=name, id="t:2", routing="8", document=wanted["t:2"] | {"amount": "0.00", "double": 0.0})
    elastic.index(index=name, id="t:3", routing="7", document={"of": f"{schema}.t"})
    elastic.index(index=name, id="u:9", routing="7", document={"of": f"{schema}.u"})
    report = check(name)
    assert report.behind
    assert found(report) == {
        ("extra", "t:1", elsewhere),
        ("different", "t:2", "8", "amount", "double"),
        ("extra", "t:3", "7"),
        ("extra", "u:9", "7"),
    }
    report = check(name, repair=True)
    assert (report.equal, report.repaired) == (True, 4)
    assert check(name).equal
    assert pipeline.documents(name).keys() == {*wanted, "x:1"}
    # Of a row that can't be a document it is not known which documents are its.
    execute("INSERT INTO t VALUES (4, NULL, 1, 1, 1, 0)", "DELETE FROM t WHERE id = 2")
    report = check(name, repair=True)
    assert (report.equal, report.refused, found(report)) == (False, 1, {("extra", "t:2", "8")})
    elastic.indices.delete(index=name)


def test_what_was_deleted_after_a_check_does_not_come_back(
    mysql: Any, schema: str, execute: Callable[..., Any], pipeline: Pipeline, spark: SparkSession
) -> None:
    name, elastic = configure(pipeline, mysql, schema, PLAIN), pipeline.elastic
    execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(40))")
    settings = load_settings(pipeline.config)
    assert settings.source is not None
    source = Source(settings.source, spark.sparkContext._jvm)
    table, rows = read_table(source, schema, "t"), TableRows(settings, spark, name)
    source.close()
    elastic.indices.create(index=name, settings={"gc_deletes": "1h"})
    # The row was read, and then the stream has deleted it.
    elastic.index(index=name, id="1", version=500, version_type="external", document={"id": 1, "name": "a"})
    elastic.delete(index=name, id="1", version=900, version_type="external")

    def compared_with(before: Difference | None) -> Any:
        known = {} if before is None else {before.place: before}
        compare = Compare(settings, name, table, rows.messages(table), known or None, repair=bool(known))
        [compared] = compare([("1", "a")])
        return compared

    [difference] = compared_with(None).differences
    assert (difference.kind, difference.version) == (MISSING, 0)
    compared = compared_with(difference)
    assert compared.repaired == 0
    assert not elastic.exists(index=name, id="1")
    # It is known now that there was a delete. A row that is read behind that is newer.
    [difference] = compared.differences
    assert difference.version == 900
    assert compared_with(difference).repaired == 1
    assert pipeline.documents(name) == {"1": (900, {"id": 1, "name": "a"})}
    elastic.indices.delete(index=name)


@pytest.mark.long
def test_kept_rows_and_documents_of_joins(
    mysql: Any, schema: str, execute: Callable[..., Any], pipeline: Pipeline, check: Check
) -> None:
    name, elastic = configure(pipeline, mysql, schema, JOINED), pipeline.elastic
    kept = f"headrace-rows.{name}"
    execute(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(40))",
        "CREATE TABLE price (id INT PRIMARY KEY, t_id INT, amount DECIMAL(9,2))",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "INSERT INTO price VALUES (10, 1, 1), (11, 1, 2), (12, 2, 3), (13, NULL, 4)",
    )
    assert check(name).absent == name
    elastic.indices.create(index=name)
    assert check(name).absent == kept
    elastic.indices.create(index=kept, mappings=ROWS_MAPPING)
    report = check(name, repair=True)
    assert (report.equal, report.rows) == (True, 7)
    report = check(name)
    assert (report.equal, report.rows, report.documents) == (True, 7, 3)
    prices = [{"id": 10, "t_id": 1, "amount": "1.00"}, {"id": 11, "t_id": 1, "amount": "2.00"}]
    assert pipeline.documents(name)["1"][1] == {"id": 1, "name": "a", "prices": prices}

    def row(table: str, key: int) -> str:
        return f"{'-' if table == 't' else 'prices'}|{schema}.{table}|{key}"

    # As if changes of rows had been lost: documents are what the kept rows make, and wrong.
    execute("UPDATE price SET t_id = 3, amount = 9 WHERE id = 11", "DELETE FROM price WHERE id = 12")
    execute("INSERT INTO price VALUES (14, 2, 5)", "DELETE FROM t WHERE id = 1")
    # And documents are wrong, whatever the rows are.
    elastic.index(index=name, id="77", document={"id": 77})
    elastic.delete(index=name, id="2")
    report = check(name)
    assert {(one.of, one.kind, one.id) for one in report.differences} == {
        (ROW, "different", row("price", 11)),
        (ROW, "extra", row("price", 12)),
        (ROW, "missing", row("price", 14)),
        (ROW, "extra", row("t", 1)),
        ("document", "extra", "77"),
        ("document", "missing", "2"),
    }
    assert next(one.fields for one in report.differences if one.id == row("price", 11)) == ("amount", "t_id")
    assert check(name, repair=True).equal
    assert {key: body for key, (_, body) in pipeline.documents(name).items()} == {
        "2": {"id": 2, "name": "b", "prices": [{"id": 14, "t_id": 2, "amount": "5.00"}]},
        "3": {"id": 3, "name": "c", "prices": [{"id": 11, "t_id": 3, "amount": "9.00"}]},
    }
    assert check(name).equal
    elastic.indices.delete(index=f"{name},{kept}")
