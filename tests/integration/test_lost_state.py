"""A state store that is gone: nothing is passed over in silence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.site import wait_for
from tests.support import DaemonProcess, destination_toml, read_jsonl

pytestmark = pytest.mark.server


@pytest.fixture
def process(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> DaemonProcess:
    """Of a destination that has streamed, with its heartbeat row on the source."""
    execute("CREATE TABLE t (id INT PRIMARY KEY)")
    text = destination_toml(mysql, schema, f'type = "jsonl"\npath = "{tmp_path / "out.jsonl"}"')
    text = text.replace('on_state_lost = "start"', "")
    made = daemon(**{schema: text + "\n[heartbeat]\ninterval = 0.2\n"}).start()
    made.wait_state(schema, "STREAMING")
    execute("INSERT INTO t VALUES (1)")
    made.wait(schema, lambda s: s["messages"] == 1 and s["heartbeat"]["round_trip_seconds"] is not None)
    made.terminate()
    return made


def logged(process: DaemonProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.log.read_text().splitlines() if line.startswith("{")]


def lose(process: DaemonProcess) -> None:
    for file in process.folder.glob("var/*"):
        if file.is_file():
            file.unlink()


def test_a_lost_state_stops_with_what_to_do_instead_of_beginning_at_the_end(
    process: DaemonProcess, schema: str, execute: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    first = [line for line in logged(process) if line["event"].startswith("first start")]
    assert len(first) == 1
    assert "rows that are there already are not published" in first[0]["event"]
    stores = {line["store"] for line in logged(process) if line["event"] == "state"}
    assert len(stores) == 1
    assert Path(stores.pop()).is_absolute()
    lose(process)
    execute("INSERT INTO t VALUES (2)")
    status, printed = process.command("check")
    assert (status, "nothing is stored of this destination" in printed) == (1, True)
    assert f"headrace position set {schema} WHERE" in printed
    process.start()
    found = process.wait_state(schema, "POSITION_LOST")
    assert found["lost"] == "state_lost"
    assert "its heartbeat row on the source is of 2" in found["message"]
    assert f"headrace position set {schema}" in found["message"]
    assert process.health()[0] == 503
    status, _ = process.command("position", "set", schema, "earliest", "--yes")
    assert status == 0
    wait_for(out, "2")
    process.wait_state(schema, "STREAMING")
    process.terminate()
    process.start()
    process.wait_state(schema, "STREAMING")


def test_a_position_that_an_operator_has_taken_away_is_not_lost(
    process: DaemonProcess, schema: str, execute: Callable[..., Any], tmp_path: Path
) -> None:
    assert process.command("position", "reset", schema, "--yes")[0] == 0
    process.start()
    process.wait_state(schema, "STREAMING")
    execute("INSERT INTO t VALUES (3)")
    wait_for(tmp_path / "out.jsonl", "3")


@pytest.mark.parametrize("key", ['start = "earliest"', 'on_state_lost = "start"'])
def test_a_start_that_is_wanted_is_taken(
    key: str, process: DaemonProcess, schema: str, execute: Callable[..., Any], tmp_path: Path
) -> None:
    file = process.folder / "destinations" / f"{schema}.toml"
    text = file.read_text()
    file.write_text(text.replace('start = "latest"', key))
    lose(process)
    process.start()
    process.wait_state(schema, "STREAMING")
    execute("INSERT INTO t VALUES (4)")
    wait_for(tmp_path / "out.jsonl", "4")
    rows = [row["id"] for m in read_jsonl(tmp_path / "out.jsonl") for row in m["data"]]
    assert rows == (["1", "1", "4"] if "earliest" in key else ["1", "4"])
