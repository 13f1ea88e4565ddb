"""An index is filled anew from its tables while rows change, and takes the place of the old one; with real servers."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import DaemonProcess, eventually

from .conftest import Pipeline
from .source_tables import JOINED, PLAIN, changes_of, configure, fill, kill, start_command, start_daemon, writing

pytestmark = [pytest.mark.server, pytest.mark.long]


@pytest.fixture
def changes(
    mysql: Any, schema: str, execute: Callable[..., Any], pipeline: Pipeline, daemon: Callable[..., DaemonProcess]
) -> DaemonProcess:
    return start_daemon(mysql, schema, execute, pipeline, daemon)


def rebuild(pipeline: Pipeline, name: str, *words: str) -> subprocess.Popen[bytes]:
    return start_command(pipeline, "rebuild", "--index", name, *words)


def expected(execute: Callable[..., Any], *, joined: bool) -> dict[str, Any]:
    rows = {str(key): {"id": key, "name": name} for key, name in execute("SELECT id, name FROM t")}
    if joined:
        for row in rows.values():
            row["prices"] = []
        for key, owner, amount in execute("SELECT id, t_id, amount FROM price ORDER BY id"):
            if (row := rows.get(str(owner))) is not None:
                row["prices"].append({"id": key, "t_id": owner, "amount": str(amount)})
    return rows


def bodies(pipeline: Pipeline, name: str) -> dict[str, Any]:
    return {key: body for key, (_, body) in pipeline.documents(name).items()}


def test_the_new_index_is_the_table_after_kills_of_both(
    mysql: Any, schema: str, execute: Callable[..., Any], pipeline: Pipeline, changes: DaemonProcess
) -> None:
    killed_and_resumed(mysql, schema, execute, pipeline, changes, PLAIN)


def test_the_new_index_of_joins_is_that_of_the_tables_after_kills_of_both(
    mysql: Any, schema: str, execute: Callable[..., Any], pipeline: Pipeline, changes: DaemonProcess
) -> None:
    killed_and_resumed(mysql, schema, execute, pipeline, changes, JOINED)


def killed_and_resumed(
    mysql: Any, schema: str, execute: Callable[..., Any], pipeline: Pipeline, changes: DaemonProcess, index: str
) -> None:
    name, count = configure(pipeline, mysql, schema, index), 3000
    fill(execute, count)
    consumer = pipeline.start()
    pipeline.wait_for(lambda: pipeline.elastic.indices.exists(index=name) and len(bodies(pipeline, name)) == count, 90)
    # What only filling anew puts right: documents that are gone or of nobody.
    for key in (5, 1700):
        pipeline.elastic.delete(index=name, id=str(key))
    pipeline.elastic.index(index=name, id="999999", document={"name": "of nobody"})
    with writing(mysql, schema, changes_of(count)):
        first = rebuild(pipeline, name)
        pipeline.wait_for(lambda: pipeline.events("the rebuild goes on"), 120)
        kill(first)
        kill(consumer)
        consumer = pipeline.start()
        assert rebuild(pipeline, name).wait(60) == 1
        assert "go on with --resume" in pipeline.text()
        second = rebuild(pipeline, name, "--resume")
        assert second.wait(240) == 0, pipeline.text()
    assert pipeline.elastic.indices.get_alias(name=name).body.keys() == {f"{name}-000002"}
    wanted = expected(execute, joined=index is JOINED)
    eventually(lambda: bodies(pipeline, name) == wanted, 90, lambda: differing(bodies(pipeline, name), wanted))
    assert not pipeline.elastic.search(index="headrace-rebuilds", query={"ids": {"values": [name]}})["hits"]["hits"]
    settings = pipeline.elastic.indices.get_settings(index=name)[f"{name}-000002"]["settings"]["index"]
    assert settings["gc_deletes"] == "1h"
    # Once more, from an alias, and the old one is kept. The consumer goes on with the third.
    assert rebuild(pipeline, name, "--keep-old").wait(240) == 0, pipeline.text()
    assert pipeline.elastic.indices.get_alias(name=name).body.keys() == {f"{name}-000003"}
    assert pipeline.elastic.indices.exists(index=f"{name}-000002")
    execute("DELETE FROM t WHERE id = 7", "INSERT INTO t VALUES (888888, 'new')")
    wanted = expected(execute, joined=index is JOINED)
    eventually(lambda: bodies(pipeline, name) == wanted, 90, lambda: differing(bodies(pipeline, name), wanted))
    consumer.send_signal(signal.SIGTERM)
    assert consumer.wait(60) == 0, pipeline.text()
    assert changes.terminate() == 0
    for made in (f"{name}-000002", f"{name}-000003"):
        pipeline.elastic.indices.delete(index=f"{made},headrace-rows.{made}", ignore_unavailable=True)


def differing(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    keys = [key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)]
    return "; ".join(f"{key}: {found.get(key)} for {wanted.get(key)}" for key in keys[:5])


def test_without_a_running_consumer_it_waits_is_given_up_or_gets_an_answer(
    mysql: Any, schema: str, execute: Callable[..., Any], pipeline: Pipeline, changes: DaemonProcess
) -> None:
    name = configure(pipeline, mysql, schema, PLAIN)
    fill(execute, 500)
    assert rebuild(pipeline, name, "--wait", "1s").wait(60) == 1
    assert "Is the consumer running" in pipeline.text()
    assert rebuild(pipeline, name, "--abort").wait(60) == 0
    assert not pipeline.elastic.indices.exists(index=f"{name}-000002")
    assert rebuild(pipeline, name, "--offline").wait(90) == 0, pipeline.text()
    assert bodies(pipeline, name) == expected(execute, joined=False)
    execute("DELETE FROM t WHERE id = 7", "UPDATE t SET name = 'new' WHERE id < 20")
    pipeline.drain()
    eventually(lambda: bodies(pipeline, name) == expected(execute, joined=False))
    pipeline.elastic.indices.delete(index=f"{name}-000002")


def test_fields_that_spark_computes_are_filled(
    mysql: Any, schema: str, execute: Callable[..., Any], pipeline: Pipeline
) -> None:
    computed = PLAIN + "fields.loud = {{ sql = \"concat(upper(name), '!')\" }}\n"
    name = configure(pipeline, mysql, schema, computed)
    execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(40))", "INSERT INTO t VALUES (1, 'a'), (2, NULL)")
    assert rebuild(pipeline, name, "--offline").wait(120) == 0, pipeline.text()
    assert bodies(pipeline, name) == {
        "1": {"id": 1, "name": "a", "loud": "A!"},
        "2": {"id": 2, "name": None, "loud": None},
    }
    pipeline.elastic.indices.delete(index=f"{name}-000002")
