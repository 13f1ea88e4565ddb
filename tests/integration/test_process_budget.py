"""Many destinations in one process: what they hold together is bounded, and sinks that are away stop no other one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.site import Site
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl, read_topic, replay

pytestmark = pytest.mark.server


@pytest.fixture
def kafka(hurt_kafka: Any) -> Any:
    return hurt_kafka


BUDGET = 4 << 20
AWAY = 6
LARGEST = 1 << 20
"""Of a batch, at most; one passes alone in each destination."""
ROWS, PAD = 4000, 2000


async def test_destinations_whose_broker_is_away_leave_room_for_another(
    mysql: Any, kafka: Any, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    site = Site(mysql, "budget")
    site.run("CREATE TABLE t (id INT PRIMARY KEY, pad TEXT)")
    names = [f"away{number}" for number in range(AWAY)]
    out = tmp_path / "live.jsonl"
    sink = f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"'
    files = {
        name: destination_toml(mysql, "budget", sink).replace('topic = "budget"', f'topic = "{name}"') for name in names
    }
    files["live"] = destination_toml(mysql, "budget", f'type = "jsonl"\npath = "{out}"')
    process = daemon(settings=f"queue_bytes = {BUDGET}", **files).start()
    try:
        for name in files:
            process.wait_state(name, "STREAMING")
        kafka.brokers[0].freeze()
        for first in range(0, ROWS, 100):
            values = ",".join(f"({number}, REPEAT('p', {PAD}))" for number in range(first, first + 100))
            site.run(f"INSERT INTO t VALUES {values}")
        # 8 MB for each of them, twice the budget: nothing of the live one waits for the others.
        eventually(lambda: sum(len(m["data"]) for m in read_jsonl(out)) == ROWS, 60, process.log.read_text)

        def held() -> list[int]:
            found = process.health()[1]["destinations"]
            return [found[name]["queue_bytes"] for name in names]

        eventually(lambda: all(held()), 30, lambda: f"{held()}\n{process.log.read_text()[-4000:]}")
        assert sum(held()) <= BUDGET + AWAY * LARGEST
        kafka.brokers[0].thaw()
        for name in names:
            process.wait(name, lambda status: status["rows"] >= ROWS, 60)
    finally:
        kafka.brokers[0].thaw()
    table = site.table()
    for name in names:
        messages = [json.loads(record.value) for record in await read_topic(kafka.bootstrap_servers, name)]
        assert replay(messages) == table
    assert process.terminate() == 0
    site.close()
