"""`headrace verify --index` on a real Elasticsearch, whose documents the consumers' own code has written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from devstack.servers.elasticsearch import ElasticsearchServer
from headrace_documents.documents import Rules
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.newest import Newest
from headrace_documents.settings import ElasticsearchSettings
from tests.canal_messages import parse
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server


@pytest.fixture
def elastic(elastic_server: ElasticsearchServer, schema: str) -> Iterator[Elasticsearch]:
    with Elasticsearch(elastic_server.url) as client:
        yield client
        client.indices.delete(index=f"{schema}.t", ignore_unavailable=True)


def write(url: str, out: Path, rules: Rules) -> None:
    """All messages of a file into documents."""
    settings = ElasticsearchSettings(hosts=[url], retries=0)
    with Cluster(settings) as cluster:
        newest = Newest[int]()
        for line in out.read_bytes().splitlines():
            for action in parse(line, rules).actions:
                newest.add(action, 0)
        assert not newest.write(BulkWriter(settings, cluster))


@pytest.mark.parametrize(
    ("rules", "ids"),
    [(Rules(), "{key}"), (Rules(id_prefix="{table}-", decimals="number", tombstones=True), "{table}-{key}")],
)
def test_documents_equal_their_rows_and_those_that_do_not_are_found(
    mysql: Any,
    schema: str,
    execute: Callable[..., Any],
    elastic_server: ElasticsearchServer,
    elastic: Elasticsearch,
    daemon: Callable[..., DaemonProcess],
    tmp_path: Path,
    rules: Rules,
    ids: str,
) -> None:
    out = tmp_path / "out.jsonl"
    process = daemon(shop=destination_toml(mysql, schema, f'type = "jsonl"\npath = "{out}"')).start()
    process.wait_state("shop", "STREAMING")
    execute("CREATE TABLE t (id INT, part INT, name VARCHAR(20), price DECIMAL(9,2), f DOUBLE, PRIMARY KEY (id, part))")
    values = ",".join(f"({n}, 1, '行{n}', {n}.50, {n} / 7)" for n in range(50))
    execute(f"INSERT INTO t VALUES {values}", "DELETE FROM t WHERE id = 7", "UPDATE t SET f = NULL WHERE id < 5")
    eventually(lambda: len(read_jsonl(out)) >= 3)
    assert process.terminate() == 0
    write(elastic_server.url, out, rules)

    def verify(*words: str) -> tuple[int, dict[str, Any]]:
        url = ("--index", elastic_server.url, "--index-id", ids, "--settle", "300ms", "--json")
        done = process.run("verify", "shop", *url, *words)
        assert done.stdout, done.stderr
        (table,) = json.loads(done.stdout)["tables"]
        return done.returncode, table

    status, table = verify()
    assert (status, table["source_rows"], table["consumer_rows"]) == (0, 49, 49), table

    def named(key: int) -> str:
        return ids.replace("{table}", "t").replace("{key}", f'["{key}","1"]')

    index = f"{schema}.t"
    elastic.delete(index=index, id=named(10))
    elastic.update(index=index, id=named(20), doc={"name": "other"})
    elastic.index(index=index, id=named(900), document={"id": 900})
    status, table = verify()
    assert status == 1
    assert (table["missing"], table["different"], table["extra_keys"]) == (1, 1, ['["900","1"]'])
    assert table["ranges"][0]["keys"] == ['["10","1"]', '["20","1"]']


def test_a_password_is_given_by_reference_only_and_never_shown(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = daemon(shop=destination_toml(mysql, schema, f'type = "jsonl"\npath = "{out}"'))
    execute("CREATE TABLE t (id INT PRIMARY KEY)")
    done = process.run("verify", "shop", "--index", "http://localhost:1", "--index-password", "secret")
    assert (done.returncode, "secret" in done.stderr.replace("the secret itself", "")) == (2, False)
    file = tmp_path / "password"
    file.write_text("hidden\n")
    words = ("--index-user", "reader", "--index-password", f"${{file:{file}}}")
    done = process.run("verify", "shop", "--index", "http://localhost:1", *words)
    assert done.returncode == 1
    assert "can't be read" in done.stderr
    assert "hidden" not in done.stderr
