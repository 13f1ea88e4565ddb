"""MySQL into RabbitMQ with the daemon: every row in order, through missing and full queues, kills and alarms."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from devstack import Stack
from tests import versions
from tests.integration.test_kill import Writer
from tests.rabbit import Broker, connected_to
from tests.support import DaemonProcess, destination_toml, replay, replay_by_pos

pytestmark = pytest.mark.server

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(40), n BIGINT)"
LAST = "INSERT INTO t VALUES (1000000, 'the last', 0)"


@pytest.fixture(scope="module", params=versions.RABBITMQ)
def own(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Any]:
    """A broker that may be hurt."""
    server = stack.rabbitmq(kind=request.param, name=f"hurt-daemon-{request.param}")
    yield server
    server.kill()


def section(server: Any, **keys: str) -> str:
    """The text of [sink]."""
    given = {
        "type": '"rabbitmq"',
        "hosts": f'"{server.host}:{server.port}"',
        "user": '"guest"',
        "password": '"guest"',
        "retry_delay": '"100ms"',
    }
    return "\n".join(f"{key} = {value}" for key, value in (given | keys).items())


def last_came(found: list[Any]) -> bool:
    return b"the last" in found[-1].body


async def read_all(broker: Broker, name: str) -> list[dict[str, Any]]:
    queue = await broker.channel.get_queue(name)
    return [json.loads(message.body) for message in await broker.read(queue, last_came, 60)]


def table(execute: Callable[..., Any]) -> dict[str, dict[str, str]]:
    rows = execute("SELECT id, name, n FROM t")
    return {str(i): {"id": str(i), "name": name, "n": str(n)} for i, name, n in rows}


@pytest.mark.parametrize("rows_per_message", [0, 1])
async def test_rows_and_statements_come_in_order(
    rows_per_message: int,
    mysql: Any,
    rabbitmq: Any,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
) -> None:
    execute(TABLE)
    more = f"[message]\nrows_per_message = {rows_per_message}"
    sink = section(rabbitmq, declare="true", exchange=f'"{schema}"', queue=f'"{schema}"')
    process = daemon(shop=destination_toml(mysql, schema, sink, more=more)).start()
    process.wait_state("shop", "STREAMING")
    writer = Writer(mysql, schema, 7)
    writer.start()
    process.wait("shop", lambda status: status["rows"] > 2000)
    writer.stop()
    execute("ALTER TABLE t ADD COLUMN later INT", "UPDATE t SET later = 1", "ALTER TABLE t DROP COLUMN later")
    execute("UPDATE t SET n = n + 1", LAST)
    async with connected_to(rabbitmq.url) as broker:
        messages = await read_all(broker, schema)
    assert replay(messages) == table(execute)
    assert replay_by_pos(messages) == table(execute)
    places = [int(message["_pos"]) for message in messages]
    assert places == sorted(places)
    statements = [i for i, message in enumerate(messages) if message["isDdl"]]
    with_column = [i for i, message in enumerate(messages) if "later" in (message["mysqlType"] or {})]
    assert statements[-2] < with_column[0] <= with_column[-1] < statements[-1]
    assert process.terminate() == 0


async def test_a_missing_queue_stops_the_destination_until_it_is_there(
    mysql: Any,
    rabbitmq: Any,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
) -> None:
    execute(TABLE)
    process = daemon(shop=destination_toml(mysql, schema, section(rabbitmq))).start()
    before = process.wait_state("shop", "STREAMING")["position"]
    execute("INSERT INTO t VALUES (1, 'one', 1)", "UPDATE t SET name = 'two'")
    status = process.wait_state("shop", "FAILED")
    assert "returned: NO_ROUTE" in status["message"]
    assert "4 times" in status["message"]
    assert status["position"]["offset"] == before["offset"] or not status["messages"]
    async with connected_to(rabbitmq.url) as broker:
        await broker.queue(schema)
        process.wait("shop", lambda status: status["state"] == "STREAMING" and status["rows"] >= 2, 60)
        execute(LAST)
        messages = await read_all(broker, schema)
    assert replay(messages) == table(execute)
    assert process.terminate() == 0


@pytest.mark.long
async def test_a_broker_killed_under_load_and_started_again_loses_nothing(
    mysql: Any, own: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    execute(TABLE)
    sink = section(own, declare="true", exchange=f'"{schema}"', queue=f'"{schema}"', queue_type='"classic"')
    process = daemon(shop=destination_toml(mysql, schema, sink, more="[message]\nrows_per_message = 1")).start()
    process.wait_state("shop", "STREAMING")
    writer = Writer(mysql, schema, 8)
    writer.start()
    try:
        process.wait("shop", lambda status: status["rows"] > 500)
        own.kill()
        process.wait("shop", lambda status: status["state"] == "STALLED" and status["reason"] == "sink")
        rows = process.health()[1]["destinations"]["shop"]["rows"]
        own.start()
        process.wait("shop", lambda status: status["rows"] > rows + 500, 60)
    finally:
        writer.stop()
    execute(LAST)
    async with connected_to(own.url) as broker:
        messages = await read_all(broker, schema)
    assert replay(messages) == table(execute)
    assert replay_by_pos(messages) == table(execute)
    assert process.terminate() == 0


async def test_a_memory_alarm_is_a_stall_by_the_sink_without_restarts(
    mysql: Any, own: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    execute(TABLE)
    sink = section(
        own, declare="true", exchange=f'"{schema}"', queue=f'"{schema}"', request_timeout='"2s"', heartbeat='"2s"'
    )
    process = daemon(shop=destination_toml(mysql, schema, sink, source='stall_after = "2s"')).start()
    process.wait_state("shop", "STREAMING")
    execute("INSERT INTO t VALUES (1, 'one', 1)")
    restarts = process.wait("shop", lambda status: status["rows"] == 1)["restarts"]
    own.raise_memory_alarm()
    try:
        execute("INSERT INTO t VALUES (2, 'two', 1)")
        status = process.wait_state("shop", "STALLED")
        assert status["reason"] == "sink"
        assert process.health()[0] == 503
        status = process.wait("shop", lambda status: status["oldest_unconfirmed_seconds"] > 6)
        assert (status["state"], status["restarts"]) == ("STALLED", restarts)
    finally:
        own.end_memory_alarm()
    execute(LAST)
    assert process.wait("shop", lambda status: status["rows"] == 3)["restarts"] == restarts
    process.wait_state("shop", "STREAMING")
    assert "takes no messages for now" in process.log.read_text()
    async with connected_to(own.url) as broker:
        messages = await read_all(broker, schema)
    assert replay(messages) == table(execute)
    assert process.terminate() == 0


def test_check_and_health_say_what_is_wrong_and_no_secret(
    mysql: Any, rabbitmq: Any, schema: str, daemon: Callable[..., DaemonProcess]
) -> None:
    process = daemon(
        good=destination_toml(mysql, schema, section(rabbitmq)),
        exchange=destination_toml(mysql, schema, section(rabbitmq, exchange='"nowhere"')),
        password=destination_toml(mysql, schema, section(rabbitmq, password='"quite-a-secret"')),
        vhost=destination_toml(mysql, schema, section(rabbitmq, virtual_host='"nowhere"')),
    )
    status, text = process.command("check")
    assert status == 1
    assert "good: ok      sink: the rabbitmq sink can be written to" in text
    broker = f"RabbitMQ at {rabbitmq.host}:{rabbitmq.port}"
    assert f"exchange: wrong   sink: {broker} refuses to take messages (NOT_FOUND - no exchange 'nowhere'" in text
    assert f"password: wrong   sink: {broker} refuses the account" in text
    assert f"vhost: wrong   sink: {broker} refuses the virtual host nowhere" in text
    process.start()
    for name in ("exchange", "password", "vhost"):
        process.wait_state(name, "FAILED")
    process.wait_state("good", "STREAMING")
    log = process.log.read_text()
    assert "quite-a-secret" not in text + log
    assert "Traceback" not in log
    assert process.terminate() == 0
