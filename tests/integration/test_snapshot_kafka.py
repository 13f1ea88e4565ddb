"""Rows that tables have already, into Kafka: exactly once, in Debezium's form, and taken over by another daemon."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.once import consumed
from tests.site import Site
from tests.snapshots import done, fill, reading, slowly
from tests.support import DaemonProcess, destination_toml, read_jsonl, read_topic, replay, replay_by_pos

pytestmark = pytest.mark.server


def sink_of(kafka: Any, more: str = "") -> str:
    return f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"\n{more}'


@pytest.mark.long
async def test_exactly_once_each_row_is_published_once_over_kills(
    mysql_site: Site, kafka: Any, daemon: Callable[..., DaemonProcess], writers: Any
) -> None:
    site, name = mysql_site, mysql_site.schema
    fill(site, 10_000)
    sink = sink_of(kafka, 'delivery = "exactly_once"\ntransaction_timeout = "10s"')
    text = destination_toml(site.server, name, sink, snapshot="initial", source=slowly(4_000))
    process = daemon(**{name: text}).start()
    work = writers(site)
    for rows in (1_000, 3_500):
        process.wait(name, reading(rows))
        process.kill()
        process.start()
    process.wait(name, done)
    work.stop()
    site.run("INSERT INTO t VALUES (1000000, 'last')")
    messages: list[dict[str, Any]] = []
    while not any(row["id"] == "1000000" for one in messages[-1:] for row in one["data"]):
        messages = [json.loads(value) for value in await consumed(kafka.bootstrap_servers, name, settled=False)]
    inserted = Counter(
        row["id"] for one in messages if one["type"] == "INSERT" for row in one["data"] if row["name"] == "first"
    )
    assert set(inserted.values()) == {1}
    wanted = site.table()
    assert replay(messages) == wanted
    assert replay_by_pos(messages) == wanted
    assert process.terminate() == 0


async def test_debezium_marks_the_rows_that_were_read_and_their_place(
    mysql_site: Site, kafka: Any, daemon: Callable[..., DaemonProcess]
) -> None:
    site, name = mysql_site, mysql_site.schema
    for table in ("a", "b"):
        fill(site, 50, table)
    more = '[message]\nformat = "debezium"\n'
    text = destination_toml(site.server, name, sink_of(kafka), snapshot="initial", more=more)
    process = daemon(shop=text).start()
    process.wait("shop", done)
    records = await read_topic(kafka.bootstrap_servers, name)
    values = [json.loads(record.value) for record in records]
    payloads = [value.get("payload", value) for value in values]
    assert {one["op"] for one in payloads} == {"r"}
    marks = [one["source"]["snapshot"] for one in payloads]
    first = ["first", *["true"] * 48, "last_in_data_collection"]
    assert marks == [*first, "first_in_data_collection", *["true"] * 48, "last"]
    assert dict(records[0].headers)["headrace-snapshot"] == b"initial"
    assert len({dict(record.headers)["headrace-id"] for record in records}) == 100
    process.command("resync", "shop", f"{name}.a", "--where", "id < 4")
    process.wait("shop", lambda status: status["messages"] == 102)
    records = await read_topic(kafka.bootstrap_servers, name)
    again = [json.loads(one.value) for one in records[100:]]
    assert [one.get("payload", one)["source"]["snapshot"] for one in again] == ["incremental"] * 2
    assert dict(records[100].headers)["headrace-snapshot"] == b"resync"


@pytest.mark.long  # the simulator's scenario snapshot has the same faults
def test_another_daemon_takes_a_snapshot_over_in_the_midst_of_it(
    mysql_site: Site, zookeeper: Any, daemon: Callable[..., DaemonProcess], out: Path, writers: Any
) -> None:
    site = mysql_site
    fill(site)
    sink = f'type = "jsonl"\npath = "{out}"'
    more = '[message]\nrows_per_message = 1\n[queue]\nbytes = "1MiB"'
    text = destination_toml(site.server, site.schema, sink, snapshot="initial", source=slowly(5_000), more=more)
    settings = f'[zookeeper]\nhosts = "{zookeeper.hosts}"\nroot = "/{site.schema}"\nsession_timeout = "4s"'
    one = daemon(shop=text, settings=settings, node="one").start()
    work = writers(site)
    one.wait("shop", reading(2_000))
    two = daemon(shop=text, settings=settings, node="two").start()
    two.wait("shop", lambda status: status["state"] == "STANDBY")
    one.kill()
    seen = two.wait("shop", lambda status: bool(status["snapshot"]))
    assert seen["snapshot"]["rows"] >= 2_000 - 200
    two.wait("shop", done, 40)
    work.stop()
    site.run("INSERT INTO t VALUES (1000000, 'last')")
    two.wait("shop", lambda status: any(row["id"] == "1000000" for m in read_jsonl(out)[-3:] for row in m["data"]))
    wanted = site.table()
    assert replay(read_jsonl(out)) == wanted
    assert replay_by_pos(read_jsonl(out)) == wanted
