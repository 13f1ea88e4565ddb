"""What the filters hide leaves in no byte: topics with keys and headers, parked messages, the state store, the log,
health and metrics; in both formats."""

from __future__ import annotations

import hmac
import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import once
from tests.site import Site
from tests.snapshots import done, fill, reading, slowly, some_are_stored
from tests.support import DaemonProcess, destination_toml, read_jsonl, read_topic

pytestmark = pytest.mark.server

FORMS = (b"GEHEIM", b"GEHEIM".hex().encode(), b"GEHEIM".hex().upper().encode())
FORMATS = {
    "canal": ("", "partitions = 2\npartition_hash = '.*:note'"),
    "debezium": (
        '[message]\nformat = "debezium"\n[message.debezium]\nname = "n"\n'
        'transaction_topic = "{topic}-marks"\nschema_topic = "{topic}-schema"\n',
        "partitions = 2\npartition_hash = '.*:$pk$'",
    ),
}
"""The section of the format, and what decides on the partition: a column that is left out, or a masked key."""
FILTERS = """exclude_columns = '.*\\.t:note'
transactions = true
[[filter.where]]
tables = '.*'
rows = 'city = "open"'
[[filter.mask]]
tables = '.*'
columns = "id, phone"
mask = "hash"
salt = "${TEST_PASSWORD}"
"""


@pytest.mark.parametrize("format", [*FORMATS])
async def test_what_is_hidden_is_in_no_byte_that_leaves(
    format: str, mysql: Any, kafka: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    topic, brokers = once.new_name(), kafka.bootstrap_servers
    topics = {topic: 2, **({f"{topic}-marks": 1, f"{topic}-schema": 1} if format == "debezium" else {})}
    for name, partitions in topics.items():
        await once.make_topic(brokers, name, partitions, max_message_bytes="20000")
    message, route = FORMATS[format]
    text = destination_toml(mysql, schema, f'type = "kafka"\nbootstrap_servers = "{brokers}"\non_oversize = "park"')
    text = text.replace("[route]", f"{FILTERS}{message.format(topic=topic)}[route]")
    process = daemon(shop=text.replace(f'topic = "{schema}"\n', f'topic = "{topic}"\n{route}\n'))
    with (process.folder / "headrace.toml").open("a") as settings:
        settings.write('level = "debug"\n')
    execute(
        "CREATE TABLE t (id VARCHAR(40) PRIMARY KEY, city VARCHAR(40), phone VARCHAR(40), note TEXT, body MEDIUMTEXT)"
    )
    process.start().wait_state("shop", "STREAMING")
    values = ", ".join(f"('GEHEIM-{n}', '%s', 'GEHEIM-phone', 'GEHEIM-note{n}', REPEAT('x', %s))" for n in (1, 2, 3))
    execute(
        "SET binlog_rows_query_log_events = ON",  # the statements are in the binlog, too
        f"INSERT INTO t VALUES {values % ('open', 5, 'GEHEIM-city', 5, 'open', 30_000)}",
        "UPDATE t SET phone = 'GEHEIM-other'",
        "UPDATE t SET note = 'GEHEIM-other'",
        "UPDATE t SET id = CONCAT(id, '-moved')",
        "UPDATE t SET city = 'open' WHERE id LIKE 'GEHEIM-2%'",
        "UPDATE t SET city = 'GEHEIM-gone' WHERE id LIKE 'GEHEIM-1%'",
        "ALTER TABLE t ADD COLUMN extra INT",
        "DELETE FROM t WHERE id LIKE 'GEHEIM-2%'",
        "INSERT INTO t VALUES ('GEHEIM-9', 'open', NULL, NULL, 'the last', 1)",
    )
    process.wait("shop", lambda s: s["parked"]["messages"] >= 5)  # the large row, and what follows for it

    async def sent() -> dict[str, bytes]:
        found = {}
        for name, count in topics.items():
            records = [one for n in range(count) for one in await read_topic(brokers, name, n)]
            found[name] = b"\n".join(map(all_of, records))
        return found

    async def whole() -> bool:
        # Parked messages are counted when they are refused, and stored with the next position.
        stored = parked(process)
        return "x" * 30_000 in stored and (b"the last" in (await sent())[topic] or "the last" in stored)

    await once.until(whole)
    left = await sent()
    assert left[topic].count(b"\n") >= 6
    assert all(left.values())
    health, metrics = str(process.health()), metrics_of(process)
    seen = parked(process)
    assert "x" * 30_000 in seen
    assert process.terminate() == 0
    everything = {
        **left,
        "parked": seen.encode(),
        "health": health.encode(),
        "metrics": metrics,
        "log": process.log.read_bytes(),
        **{path.name: path.read_bytes() for path in (process.folder / "var").iterdir() if path.is_file()},
    }
    assert [name for name, data in everything.items() if any(form in data for form in FORMS)] == []


def parked(process: DaemonProcess) -> str:
    """All that the commands tell of parked messages."""
    entries = process.command("parked", "list", "shop", "--json")[1]
    numbers = [str(entry["number"]) for entry in json.loads(entries)]
    return entries + "".join(process.command("parked", "show", "shop", number, "--json")[1] for number in numbers)


def metrics_of(process: DaemonProcess) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{process.port}/metrics", timeout=5) as answer:
        metrics: bytes = answer.read()
        return metrics


def all_of(record: Any) -> bytes:
    """Everything of a record that a producer chose."""
    headers = b"".join(name.encode() + value for name, value in record.headers)
    return (record.key or b"") + (record.value or b"") + headers


MASKED_KEY = """[[filter.mask]]
tables = '.*'
columns = "id"
mask = "hash"
salt = "${TEST_PASSWORD}"
"""


def test_a_masked_key_is_in_no_progress_that_is_stored_and_a_snapshot_continues_after_it(
    mysql_site: Site, daemon: Callable[..., DaemonProcess], out: Path
) -> None:
    fill(mysql_site)
    mysql_site.run("ALTER TABLE t MODIFY id VARCHAR(40)", "UPDATE t SET id = CONCAT('GEHEIM-', LPAD(id, 6, '0'))")
    sink = f'type = "jsonl"\npath = "{out}"'
    text = destination_toml(mysql_site.server, mysql_site.schema, sink, snapshot="initial", source=slowly(6_000))
    process = daemon(shop=text.replace("[route]", f"{MASKED_KEY}[route]")).start()
    process.wait("shop", reading(3_000))
    rows = process.wait("shop", some_are_stored)["position"]["snapshots"][0]["open"][0]["rows"]
    process.kill()
    begin = len(published(out))
    kept = {path.name: path.read_bytes() for path in (process.folder / "var").iterdir() if path.is_file()}
    kept["log"] = process.log.read_bytes()
    assert [name for name, data in kept.items() if any(form in data for form in FORMS)] == []
    process.start()
    process.wait("shop", done)
    ids = published(out)
    wanted = [hmac.digest(b"canal", f"GEHEIM-{2 * n:06d}".encode(), "sha256").hex() for n in range(20_000)]
    assert set(ids) == set(wanted)
    assert wanted.index(ids[begin]) >= rows, "what was stored does not come again"


OPEN = """[[filter.where]]
tables = '.*'
rows = 'name = "open"'
"""


def test_a_key_that_a_condition_leaves_out_is_in_no_progress_that_is_stored_and_a_snapshot_goes_on(
    mysql_site: Site, daemon: Callable[..., DaemonProcess], out: Path
) -> None:
    fill(mysql_site)
    mysql_site.run(
        "ALTER TABLE t MODIFY id VARCHAR(40)",
        "UPDATE t SET name = 'open' WHERE id % 200 = 0",
        "UPDATE t SET id = CONCAT(LPAD(id, 6, '0'), IF(name = 'open', '', '-GEHEIM'))",
    )
    sink = f'type = "jsonl"\npath = "{out}"'
    text = destination_toml(mysql_site.server, mysql_site.schema, sink, snapshot="initial", source=slowly(6_000))
    process = daemon(shop=text.replace("[route]", f"{OPEN}[route]")).start()
    process.wait("shop", reading(3_000))
    rows = process.wait("shop", some_are_stored)["position"]["snapshots"][0]["open"][0]["rows"]
    process.kill()
    begin = len(published(out))
    kept = {path.name: path.read_bytes() for path in (process.folder / "var").iterdir() if path.is_file()}
    kept["log"] = process.log.read_bytes()
    assert [name for name, data in kept.items() if any(form in data for form in FORMS)] == []
    process.start()
    process.wait("shop", done)
    ids = published(out)
    assert set(ids) == {f"{n:06d}" for n in range(0, 40_000, 200)}
    assert int(ids[begin]) >= 2 * (rows - 100), "what was stored does not come again"


def published(out: Path) -> list[str]:
    return [row["id"] for one in read_jsonl(out) for row in one["data"]]
