"""The lines of docs/consumers.md for Spark, on what headrace published: they end in the rows that the table has."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests import pages
from tests.support import DaemonProcess, destination_toml, eventually, read_messages

# PySpark leaves the sockets by which it collects to the garbage collector.
pytestmark = [
    pytest.mark.server,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

STATEMENTS = (
    "CREATE TABLE goods (id INT PRIMARY KEY, name VARCHAR(20), price DECIMAL(10,2), updated DATETIME(6), photo BLOB)",
    "INSERT INTO goods VALUES (1, '家庭保洁', 199.00, '2026-11-21 09:30:00.123456', x'00ff'), (2, 'b', NULL, NULL,"
    " NULL), (3, 'c', 0.05, '1969-12-31 23:59:59', '')",
    "UPDATE goods SET price = 9.99, photo = NULL WHERE id = 1",
    "UPDATE goods SET id = 30 WHERE id = 3",
    "DELETE FROM goods WHERE id = 2",
    "INSERT INTO goods VALUES (2, 'again', 1, NULL, x'01')",
)


@pytest.fixture
def published(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> dict[str, Path]:
    """The files of values, by format."""
    formats = {
        "canal": "",
        "debezium": '[message]\nformat = "debezium"\n[message.debezium]\nschemas = false\ndecimal = "string"',
    }
    paths = {name: tmp_path / f"{name}.jsonl" for name in formats}
    texts = {
        name: destination_toml(mysql, schema, f'type = "jsonl"\npath = "{paths[name]}"', more=more)
        for name, more in formats.items()
    }
    process = daemon(**texts).start()
    for name in texts:
        process.wait_state(name, "STREAMING")
    execute(*STATEMENTS)
    for path in paths.values():
        eventually(lambda path=path: any("again" in str(one) for one in read_messages(path)))  # type: ignore[misc]
    return paths


def run(spark: SparkSession, path: Path, having: str) -> dict[str, Any]:
    """The names that the page's blocks with this text have made, of the values in a file."""
    names: dict[str, Any] = {"messages": spark.read.text(str(path))}
    for block in pages.blocks("consumers.md", "python", having):
        exec(block, names)
    return names


def sorted_rows(found: DataFrame) -> list[tuple[Any, ...]]:
    rows = found.select("id", "name", "price", "updated", "photo").collect()
    return sorted(tuple(bytes(cell) if isinstance(cell, bytearray) else cell for cell in row) for row in rows)


def test_canals_messages_become_the_table(
    spark: SparkSession, published: dict[str, Path], execute: Callable[..., Any]
) -> None:
    names = run(spark, published["canal"], "pos")
    assert sorted_rows(names["table"]) == list(execute("SELECT * FROM goods ORDER BY id"))
    kinds = [row.type for row in names["changes"].orderBy("pos").collect()]
    assert kinds == ["INSERT", "INSERT", "INSERT", "UPDATE", "UPDATE", "DELETE", "INSERT"]


def test_debeziums_messages_have_the_values_of_the_table(
    spark: SparkSession, published: dict[str, Path], execute: Callable[..., Any]
) -> None:
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        changes = run(spark, published["debezium"], "coalesce")["changes"].selectExpr(
            "op", "id", "name", "price", "CAST(updated AS TIMESTAMP_NTZ) AS updated", "photo"
        )
        assert [row.op for row in changes.collect()] == ["c", "c", "c", "u", "d", "c", "d", "c"]
        assert sorted_rows(changes.where("op <> 'd' AND id IN (2, 30) AND name <> 'b'")) == [
            row for row in execute("SELECT * FROM goods ORDER BY id") if row[0] != 1
        ]
        assert [row.price for row in changes.where("id = 1").collect()] == [Decimal("199.00"), Decimal("9.99")]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
