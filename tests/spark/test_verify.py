"""An index is compared with its tables while rows change, and put right; with real servers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import DaemonProcess

from .conftest import Pipeline
from .source_tables import JOINED, PLAIN, changes_of, configure, fill, start_command, start_daemon, writing

pytestmark = [pytest.mark.server, pytest.mark.long]


def verify(pipeline: Pipeline, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit status, and the report on the only index."""
    process = start_command(pipeline, "verify", "--json", "--settle", "1s", *words, output=subprocess.PIPE)
    said, _ = process.communicate(timeout=480)
    assert said, pipeline.text()
    assert not pipeline.events("progress"), "what tasks report to the driver is no line for people"
    return process.returncode, json.loads(said)


def found(report: dict[str, Any]) -> set[tuple[str, ...]]:
    return {(one["kind"], one["id"], *one["fields"]) for one in report["differences"]}


def configured(pipeline: Pipeline, mysql: Any, schema: str, index: str) -> str:
    name = configure(pipeline, mysql, schema, index)
    pipeline.change("partition_rows = 100", "partition_rows = 1000")
    return name


def test_what_differs_is_found_and_put_right_while_rows_change(
    mysql: Any,
    schema: str,
    execute: Callable[..., Any],
    pipeline: Pipeline,
    daemon: Callable[..., DaemonProcess],
) -> None:
    changes = start_daemon(mysql, schema, execute, pipeline, daemon)
    name, count = configured(pipeline, mysql, schema, PLAIN), 3000
    fill(execute, count)
    # Rows that the writers do not change, so that what is done to their documents is known.
    execute("INSERT INTO t VALUES " + ",".join(f"({key}, 'calm {key}')" for key in range(100_000, 100_500)))
    pipeline.start()
    elastic = pipeline.elastic
    pipeline.wait_for(lambda: elastic.indices.exists(index=name) and len(pipeline.documents(name)) == count + 500, 90)
    with writing(mysql, schema, changes_of(count)):
        status, report = verify(pipeline)
        assert (status, report["equal"], report["differences"]) == (0, True, [])
        for key in (100_005, 100_499):
            elastic.delete(index=name, id=str(key))
        elastic.update(index=name, id="100100", doc={"name": "other"})
        elastic.update(index=name, id="100101", doc={"stray": "field"})
        elastic.index(index=name, id="999999", document={"name": "of nobody"})
        status, report = verify(pipeline)
        assert status == 1
        assert found(report) == {
            ("missing", "100005"),
            ("missing", "100499"),
            ("different", "100100", "name"),
            ("different", "100101", "stray"),
            ("extra", "999999"),
        }
        status, report = verify(pipeline, "--repair")
        assert (status, report["differences"]) == (0, [])
        assert report["repaired"] >= 5
    status, report = verify(pipeline)
    assert (status, report["rows"], report["documents"]) == (0, *execute("SELECT COUNT(*), COUNT(*) FROM t")[0])
    # A change that comes behind a repair wins.
    execute("UPDATE t SET name = 'newer' WHERE id IN (100005, 100100)", "DELETE FROM t WHERE id = 100499")
    pipeline.wait_for(
        lambda: (
            (found := pipeline.documents(name))["100005"][1]["name"] == "newer"
            and found["100100"][1]["name"] == "newer"
            and "100499" not in found
        )
    )
    assert changes.terminate() == 0
    elastic.indices.delete(index=name)


def test_kept_rows_and_composed_documents_are_put_right_while_rows_change(
    mysql: Any,
    schema: str,
    execute: Callable[..., Any],
    pipeline: Pipeline,
    daemon: Callable[..., DaemonProcess],
) -> None:
    changes = start_daemon(mysql, schema, execute, pipeline, daemon)
    name, count = configured(pipeline, mysql, schema, JOINED), 1000
    fill(execute, count)
    execute("INSERT INTO t VALUES " + ",".join(f"({key}, 'calm {key}')" for key in range(100_000, 100_100)))
    execute("INSERT INTO price VALUES " + ",".join(f"({key}, {key}, 1)" for key in range(100_000, 100_100)))
    pipeline.start()
    elastic, kept = pipeline.elastic, f"headrace-rows.{name}"
    pipeline.wait_for(lambda: elastic.indices.exists(index=name) and len(pipeline.documents(name)) == count + 100, 120)
    with writing(mysql, schema, changes_of(count)):
        # Rows that are kept are lost, wrong and of nobody; so are documents.
        elastic.delete(index=kept, id=f"prices|{schema}.price|100001", refresh=True)
        row = elastic.get(index=kept, id=f"prices|{schema}.price|100002").body["_source"]
        elastic.index(index=kept, id=f"prices|{schema}.price|100002", document=row | {"d": {"id": 0}}, refresh=True)
        stray = row | {"d": {"id": 999999}, "j": ['prices=["100003"]']}
        elastic.index(index=kept, id=f"prices|{schema}.price|999999", document=stray, refresh=True)
        elastic.delete(index=name, id="100004")
        elastic.update(index=name, id="100005", doc={"name": "other"})
        elastic.index(index=name, id="999999", document={"id": 999999})
        status, report = verify(pipeline, "--repair")
        assert (status, report["differences"]) == (0, []), pipeline.text()
        assert report["repaired"] >= 6
        status, report = verify(pipeline)
        assert (status, report["equal"], report["differences"]) == (0, True, [])
    execute("UPDATE price SET amount = 2 WHERE id BETWEEN 100000 AND 100005")

    def prices() -> set[tuple[str, ...]]:
        documents = pipeline.documents(name)
        return {
            (str(key), *(f"{one['id']} {one['amount']}" for one in documents[str(key)][1]["prices"]))
            for key in range(100_000, 100_006)
        }

    pipeline.wait_for(lambda: prices() == {(str(key), f"{key} 2.00") for key in range(100_000, 100_006)})
    assert "999999" not in pipeline.documents(name)
    assert changes.terminate() == 0
    elastic.indices.delete(index=f"{name},{kept}")
