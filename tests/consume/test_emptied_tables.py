"""Statements that take all rows of a table away, as real servers write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from devstack.servers.elasticsearch import ElasticsearchServer
from tests.support import DaemonProcess, destination_toml, eventually

from .batches import Batches, documents

pytestmark = pytest.mark.server


@pytest.mark.parametrize("mysql", ["mysql", "mariadb"], indirect=True)
def test_documents_go_with_their_table_whatever_the_statement_looks_like(
    mysql: Any,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
    elastic_server: ElasticsearchServer,
    tmp_path: Path,
) -> None:
    out = tmp_path / "out.jsonl"
    process = daemon(shop=destination_toml(mysql, schema, f'type = "jsonl"\npath = "{out}"')).start()
    process.wait_state("shop", "STREAMING")
    [[version]] = execute("SELECT VERSION()")
    tables = ("dropped", "second", "quoted", "truncated", "replaced", "last")
    for table in tables:
        execute(f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1), (2)")
    execute("DROP TABLE dropped, second", "TRUNCATE truncated", "INSERT INTO truncated VALUES (3)")
    execute("SET sql_mode = 'ANSI_QUOTES'", 'DROP TABLE "quoted"')
    if "MariaDB" not in version:
        execute("DROP TABLE replaced")
    execute(f"CREATE {'OR REPLACE' if 'MariaDB' in version else ''} TABLE replaced (id INT PRIMARY KEY)")
    execute("INSERT INTO replaced VALUES (3)", "INSERT INTO last VALUES (3)")

    def read() -> list[bytes]:
        return [line for line in out.read_bytes().splitlines() if line] if out.exists() else []

    def ended() -> bool:
        return any(one["table"] == "last" and one["data"] == [{"id": "3"}] for one in map(json.loads, read()))

    eventually(ended)
    assert process.terminate() == 0
    assert not Batches(elastic_server.url).run(read())
    with Elasticsearch(elastic_server.url) as elastic:
        found = {table: {*documents(elastic, f"{schema}.{table}")} for table in tables}
        for table in tables:
            elastic.indices.delete(index=f"{schema}.{table}")
    kept = {"truncated": {"3"}, "replaced": {"3"}, "last": {"1", "2", "3"}}
    assert found == {table: kept.get(table, set()) for table in tables}
