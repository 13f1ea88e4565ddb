"""Rows that Spark reads from tables of real servers are what the daemon publishes of them, text by text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession

from headrace_spark.settings import SourceSettings
from headrace_spark.source.connection import Source, SourceError
from headrace_spark.source.reading import RowMaker, TableReader
from headrace_spark.source.tables import read_table
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

# PySpark leaves the sockets by which it collects to the garbage collector.
pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]
both = pytest.mark.parametrize("mysql", ["mysql", "mariadb"], indirect=True)


def settings_of(server: Any, **more: Any) -> SourceSettings:
    return SourceSettings(host=server.host, port=server.port, user="root", password=SecretStr("root"), **more)


def source_of(server: Any, spark: SparkSession, **more: Any) -> Source:
    return Source(settings_of(server, **more), spark.sparkContext._jvm)


def rows_of(spark: SparkSession, source: Source, database: str, name: str, partition_rows: int = 3) -> list[Any]:
    """All rows, in the order of the key, a few in each task."""
    table = read_table(source, database, name)
    reader, maker = TableReader(spark, source, table, partition_rows), RowMaker(table)
    ranges = list(reader.ranges())
    messages = reader.read(ranges).mapPartitions(maker.messages).collect()
    return [row for message in messages for row in message.rows]


COLUMNS = {
    "YEAR": ["0", "1901", "2155"],
    "DECIMAL(65,30)": ["-0.5", "12345678901234567890123456789012345.000000000000000000000000000001"],
    "DECIMAL(10,0)": ["-0", "9999999999"],
    "DECIMAL(12,4) ZEROFILL": ["0.5", "10.0001"],
    "FLOAT": ["0.1", "-0.0", "3.4028234e38", "1.4e-45", "16777217", "123456.789", "1e15"],
    "DOUBLE": ["0.1", "-0.0", "1e15", "1e14", "1.7976931348623157e308", "1e-15", "4.9e-324", "1234567890123456.5"],
    "FLOAT(10,3)": ["1.5", "1234567.891"],
    "DOUBLE(12,2)": ["-123456789.01", "2"],
    "DATE": ["'0000-00-00'", "'2026-00-00'", "'9999-12-31'"],
    "CHAR(9)": ["''", "'a'", "'家庭保洁'"],
    "VARCHAR(60)": ["'trailing  '", "'😀☃'", "CONCAT('nul', CHAR(0), 'l')", r"'line\nquote\" back\\ tab\t'"],
    "VARCHAR(61) CHARACTER SET gbk": ["'中文保洁'"],
    "TEXT CHARACTER SET latin1": ["'café €'"],
    "LONGTEXT": ["REPEAT('长', 70000)"],
    "BINARY(4)": ["0x61", "0x00FF80"],
    "VARBINARY(255)": ["''", "0x00FF80", "REPEAT(0xFF, 200)"],
    "BLOB": ["REPEAT(0x00, 60000)", "'text'"],
    "VARCHAR(9) CHARACTER SET binary": ["0xE4BD"],
    "ENUM('a','b,c','保洁')": ["'a'", "'b,c'", "'保洁'", "''"],
    "SET('x','y','z')": ["''", "'x,z'", "'y'"],
    "JSON": ["""'{"a": [1, 2.50, null], "长": "x\\\\ny"}'""", "'[]'", "'1.0'", "'\"text\"'"],
    "POINT": ["ST_GeomFromText('POINT(116.4 39.9)')", "ST_GeomFromText('POINT(-1 2)', 4326)"],
    "GEOMETRY": ["ST_GeomFromText('LINESTRING(0 0,1 1,2 0)')"],
}
for _name in ("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT"):
    _bits = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INT": 32, "BIGINT": 64}[_name]
    COLUMNS[_name] = ["0", str(-(1 << _bits - 1)), str((1 << _bits - 1) - 1)]
    COLUMNS[f"{_name} UNSIGNED"] = ["0", str((1 << _bits) - 1)]
COLUMNS |= {"TINYINT(1)": ["1"], "INT(9) ZEROFILL": ["7"], "BIT(1)": ["1"], "BIT(64)": [str((1 << 64) - 1), "0"]}
for _fsp in range(0, 7, 3):
    COLUMNS[f"DATETIME({_fsp})"] = ["'0000-00-00 00:00:00'", "'2026-11-21 23:59:59.987654'", "'1000-01-01 00:00:00'"]
    COLUMNS[f"TIMESTAMP({_fsp}) NULL"] = ["'1970-01-01 00:00:01'", "'2026-03-29 01:30:00.499999'", "0"]
    COLUMNS[f"TIME({_fsp})"] = ["'-838:59:59'", "'-00:00:00.5'", "'12:34:56.789012'"]
ONLY = {
    "mysql": {"VECTOR(3)": ["STRING_TO_VECTOR('[1,-2.5,0.1]')"]},
    "mariadb": {"UUID": ["'123e4567-e89b-12d3-a456-426655440000'"], "INET6": ["'::1'", "'2001:db8::ff00:42:8329'"]},
}


@both
def test_all_types_are_the_texts_of_the_messages(
    mysql: Any,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
    spark: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    out = tmp_path / "out.jsonl"
    process = daemon(shop=destination_toml(mysql, schema, f'type = "jsonl"\npath = "{out}"')).start()
    process.wait_state("shop", "STREAMING")
    columns = COLUMNS | ONLY["mariadb" if "mariadb" in request.node.name else "mysql"]
    made = [f"c{i} {kind}" for i, kind in enumerate(columns)]
    execute("SET sql_mode = ''", "SET time_zone = '+05:00'")
    execute(f"CREATE TABLE t (id BIGINT UNSIGNED PRIMARY KEY, {', '.join(made)}) DEFAULT CHARSET utf8mb4")
    height = max(map(len, columns.values()))
    for row in range(height):
        literals = [values[row % len(values)] for values in columns.values()]
        execute(f"INSERT INTO t VALUES ({row + (1 << 63)}, {', '.join(literals)})")
    execute("INSERT INTO t (id) VALUES (18446744073709551615)")
    eventually(lambda: sum(one["type"] == "INSERT" for one in read_jsonl(out)) == height + 1)
    messages = [one for one in read_jsonl(out) if one["type"] == "INSERT"]
    source = source_of(mysql, spark)
    table = read_table(source, schema, "t")
    assert table.types == messages[0]["mysqlType"]
    assert list(table.keys) == messages[0]["pkNames"]
    published = {row["id"]: row for message in messages for row in message["data"]}
    read = {row["id"]: row for row in rows_of(spark, source, schema, "t")}
    assert read.keys() == published.keys()
    kinds = ["id", *columns]
    for key, row in published.items():
        for number, (name, value) in enumerate(row.items()):
            assert read[key][name] == value, f"{kinds[number]}, row {key}"
    source.close()


KEYS = {
    "a INT, b VARCHAR(20) COLLATE utf8mb4_bin, PRIMARY KEY (b, a)": "%s % 3, CONCAT('键', %s)",
    "a DATETIME(3) PRIMARY KEY": "CONCAT('2026-01-01 00:00:00.01', %s)",
    "a DECIMAL(20,5) PRIMARY KEY": "%s / 7 - 1",
    "a VARBINARY(9) PRIMARY KEY": "CONCAT(UNHEX(HEX(%s)), 0x00FF)",
    "a ENUM('z','y','x','w'), b INT, PRIMARY KEY (a, b)": "1 + %s % 4, %s",
    "a DOUBLE PRIMARY KEY": "%s / 3",
    "a CHAR(9) CHARACTER SET gbk PRIMARY KEY": "CONCAT('保', %s)",
    "a INT NOT NULL, b INT NULL, UNIQUE KEY first (b), UNIQUE KEY second (a)": "%s, NULL",
    "a BIT(40) PRIMARY KEY": "%s * 1000000",
    "a INT": "%s",
}


@pytest.mark.long
@both
@pytest.mark.parametrize("columns", KEYS)
def test_ranges_of_a_key_have_each_row_once(
    mysql: Any, schema: str, execute: Callable[..., Any], spark: SparkSession, columns: str
) -> None:
    execute(f"CREATE TABLE t ({columns}) DEFAULT CHARSET utf8mb4")
    for number in range(10):
        execute(f"INSERT INTO t VALUES ({KEYS[columns].replace('%s', str(number))})")
    source = source_of(mysql, spark)
    rows = rows_of(spark, source, schema, "t")
    assert len(rows) == 10
    assert len({json.dumps(row) for row in rows}) == 10
    reader = TableReader(spark, source, read_table(source, schema, "t"), 3)
    ranges = list(reader.ranges())
    assert len(ranges) == (4 if reader.table.keys else 1)
    if reader.table.keys:
        # From a key on that was kept the rest is read.
        assert list(reader.ranges(ranges[1].last)) == ranges[2:]
        assert reader.read(ranges[2:]).count() == 4
    source.close()


def test_another_machine_s_certificate_is_checked_when_nothing_is_said_of_it(mysql: Any, spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    settings = settings_of(mysql).model_copy(update={"host": "0.0.0.0"})  # is not written as one of this machine
    with pytest.raises(SourceError, match=r'Self signed certificates.*tls in \[source\], which is "verified" now'):
        Source(settings, jvm)
    Source(settings.model_copy(update={"tls": "required"}), jvm).close()


def test_what_is_wrong_with_the_source_is_said_in_a_sentence(mysql: Any, spark: SparkSession) -> None:
    wrong = settings_of(mysql).model_copy(update={"password": SecretStr("hidden")})
    with pytest.raises(SourceError, match=r"can't be used: .*Look at host, port, user") as caught:
        Source(wrong, spark.sparkContext._jvm)
    assert "hidden" not in str(caught.value)
    with pytest.raises(SourceError, match="has no columns that our account may see"):
        read_table(source_of(mysql, spark, tls="required"), "nowhere", "t")
