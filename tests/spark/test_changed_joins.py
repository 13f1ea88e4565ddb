"""A join is added to an index that has documents: the consumer says so, and a rebuild gives it to all of them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import DaemonProcess, eventually

from .conftest import Pipeline
from .source_tables import JOINED, PLAIN, configure, fill, start_command, start_daemon

pytestmark = [pytest.mark.server, pytest.mark.long]


def test_a_join_that_is_added_stops_the_consumer_until_the_index_is_filled_again(
    mysql: Any,
    schema: str,
    execute: Callable[..., Any],
    pipeline: Pipeline,
    daemon: Callable[..., DaemonProcess],
) -> None:
    changes = start_daemon(mysql, schema, execute, pipeline, daemon)
    name = configure(pipeline, mysql, schema, PLAIN)
    fill(execute, 500)
    pipeline.drain()
    assert len(pipeline.documents(name)) == 500
    pipeline.change(PLAIN.format(name=name, schema=schema), JOINED.format(name=name, schema=schema))
    execute("UPDATE price SET amount = 1 WHERE id = 5", "UPDATE t SET name = 'new' WHERE id = 7")
    consumer = pipeline.start()
    pipeline.wait_for(lambda: pipeline.health()["state"] == "FAILED", 90)
    assert f"headrace-spark rebuild --index {name}`" in pipeline.health()["last_error"]["reason"]
    assert "name" in pipeline.documents(name)["7"][1]
    rebuild = start_command(pipeline, "rebuild", "--index", name)
    # Its next try sees that the index is replaced, and goes on.
    assert rebuild.wait(240) == 0, pipeline.text()
    execute("UPDATE price SET amount = 2 WHERE id = 6")

    def joined() -> bool:
        rows = {key: body for key, (_, body) in pipeline.documents(name).items()}
        wanted: dict[int, list[tuple[int, str]]] = {}
        for key, owner, amount in execute("SELECT id, t_id, amount FROM price ORDER BY id"):
            wanted.setdefault(owner, []).append((key, str(amount)))
        found = {body["id"]: [(one["id"], one["amount"]) for one in body.get("prices", ())] for body in rows.values()}
        return found == {key: wanted.get(key, []) for key in range(500)} and rows["7"]["name"] == "new"

    eventually(joined, 90, pipeline.text)
    pipeline.wait_for(lambda: pipeline.health()["state"] == "RUNNING")
    consumer.send_signal(signal.SIGTERM)
    assert consumer.wait(60) == 0, pipeline.text()
    assert changes.terminate() == 0
    assert "Traceback" not in pipeline.text()
    pipeline.elastic.indices.delete(index=f"{name}-000002,headrace-rows.{name}-000002")
