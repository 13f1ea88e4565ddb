"""Failed messages with the daemon and RabbitMQ: parked, kept through kills and take-overs, delivered in order."""

from __future__ import annotations

import asyncio
import json
import random
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pymysql
import pytest

from tests.proxy import Proxy
from tests.rabbit import Broker, connected_to
from tests.support import DaemonProcess, destination_toml, eventually

pytestmark = pytest.mark.server
TABLE = "(id INT PRIMARY KEY, n INT)"
PATIENT = "attempts = 100000"
Make = Callable[..., DaemonProcess]


def site(mysql: Any, schema: str, rabbitmq: Any, parked: str = "", *, sink: str = "", each: bool = True) -> str:
    """A queue a table, named SCHEMA.TABLE, through the default exchange; refused messages are parked at once."""
    text = (
        f'type = "rabbitmq"\nhosts = "{rabbitmq.host}:{rabbitmq.port}"\nuser = "guest"\npassword = "guest"\n'
        'routing_key = "{schema}.{table}"\nretries = 1\nretry_delay = "50ms"\n' + (sink or 'on_failure = "park"')
    )
    more = f'[parking]\ndelay = "200ms"\nmax_delay = "500ms"\n{parked or PATIENT}' if not sink else ""
    made = destination_toml(mysql, schema, text, more=more)
    return made.replace("[route]", f"[message]\nrows_per_message = {int(each)}\n[route]")


def failed_of(process: DaemonProcess) -> dict[str, Any]:
    found: dict[str, Any] = process.health()[1]["destinations"]["shop"]["parked"]
    return found


def metrics_of(process: DaemonProcess) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{process.port}/metrics", timeout=5) as answer:
        text: str = answer.read().decode()
    return text


def stored(process: DaemonProcess, mysql: Any, count: int, limit: float = 30) -> None:
    """Until so many messages wait, and a position behind them is stored."""
    end = mysql.sql("SHOW BINARY LOG STATUS")[0]

    def reached(status: dict[str, Any]) -> bool:
        position = status["position"]
        return status["parked"]["messages"] == count and [position["file"], position["offset"]] >= [end[0], int(end[1])]

    process.wait("shop", reached, limit)


async def rows(broker: Broker, queue: Any, count: int) -> list[tuple[str, str, str]]:
    """Type, id and n of so many rows, in the order they came; what comes twice in a row counts once."""
    seen: list[tuple[str, str, str]] = []

    def enough(found: list[Any]) -> bool:
        message = json.loads(found[-1].body)
        for row in message["data"] or ():
            one = message["type"], row["id"], row["n"]
            if one not in seen:
                seen.append(one)
        return len(seen) >= count

    await broker.read(queue, enough, 30)
    return seen


async def test_a_table_whose_queue_is_missing_waits_alone_and_in_order(
    mysql: Any, rabbitmq: Any, schema: str, execute: Callable[..., Any], daemon: Make
) -> None:
    execute(f"CREATE TABLE a {TABLE}", f"CREATE TABLE b {TABLE}")
    process = daemon(shop=site(mysql, schema, rabbitmq)).start()
    process.wait_state("shop", "STREAMING")
    async with connected_to(rabbitmq.url) as broker:
        there = await broker.queue(f"{schema}.b")
        execute("INSERT INTO a VALUES (1, 1), (2, 1)", "INSERT INTO b VALUES (1, 1)")
        execute("UPDATE a SET n = 2", "UPDATE b SET n = 2", "DELETE FROM a WHERE id = 2")
        assert await rows(broker, there, 2) == [("INSERT", "1", "1"), ("UPDATE", "1", "2")]
        stored(process, mysql, 5)
        status = process.wait_state("shop", "DEGRADED")
        trouble = status["troubles"]["parked_messages"]
        assert "5 messages that the sink refused" in trouble
        command = trouble.split(" -> ")[1]
        assert command == "headrace parked list shop"
        assert process.command(*command.split()[1:])[1].count("PENDING") == 5, "it can be run as it stands there"
        before = status["position"]

        process.kill()
        process.start()
        stored(process, mysql, 5)
        assert process.health()[1]["destinations"]["shop"]["position"]["offset"] >= before["offset"]
        execute(
            "UPDATE a SET n = 3 WHERE id = 1", "ALTER TABLE a ADD COLUMN m INT", "INSERT INTO a (id, n) VALUES (9, 9)"
        )
        stored(process, mysql, 8)

        queue = await broker.queue(f"{schema}.a")
        came = await rows(broker, queue, 7)
        for key in ("1", "2", "9"):
            expected = {
                "1": [("INSERT", "1", "1"), ("UPDATE", "1", "2"), ("UPDATE", "1", "3")],
                "2": [("INSERT", "2", "1"), ("UPDATE", "2", "2"), ("DELETE", "2", "2")],
                "9": [("INSERT", "9", "9")],
            }[key]
            assert [one for one in came if one[1] == key] == expected
        stored(process, mysql, 0)
        process.wait_state("shop", "STREAMING")
        execute("UPDATE a SET n = 4 WHERE id = 1")
        assert await rows(broker, queue, 1) == [("UPDATE", "1", "4")]


async def test_an_operator_lists_shows_retries_and_discards(
    mysql: Any, rabbitmq: Any, schema: str, execute: Callable[..., Any], daemon: Make
) -> None:
    execute(f"CREATE TABLE a {TABLE}")
    process = daemon(shop=site(mysql, schema, rabbitmq, "attempts = 3")).start()
    process.wait_state("shop", "STREAMING")
    assert process.command("parked", "list", "shop") == (0, "shop: no parked messages\n")
    execute("INSERT INTO a VALUES (1, 1)", "UPDATE a SET n = 2", "INSERT INTO a VALUES (7, 7)")
    process.wait("shop", lambda s: s["parked"]["need_operator"] == 2)

    status, printed = process.command("parked", "list", "shop", "--json")
    entries = json.loads(printed)
    assert status == 0
    assert [(e["number"], e["state"], e["keys"]) for e in entries] == [
        (1, "NEEDS_OPERATOR", [f"{schema}.a 1"]),
        (2, "PENDING", [f"{schema}.a 1"]),
        (3, "NEEDS_OPERATOR", [f"{schema}.a 7"]),
    ]
    assert all(e["attempts"] >= 3 and "NO_ROUTE" in e["reason"] for e in entries if e["state"] == "NEEDS_OPERATOR")
    metrics = metrics_of(process)
    assert 'headrace_parked_need_operator{destination="shop"} 2.0' in metrics
    assert 'headrace_parked_messages{destination="shop"} 3.0' in metrics
    assert process.command("parked", "list", "shop", "--table", "nothing.*")[1] == "shop: no parked messages\n"
    status, printed = process.command("parked", "list", "shop", "--state", "needs_operator")
    assert (status, printed.count("NEEDS_OPERATOR"), "PENDING" in printed) == (0, 2, False)
    assert printed.split()[:5] == ["NUMBER", "STATE", "ATTEMPTS", "NEXT", "TOPIC"]

    status, printed = process.command("parked", "show", "shop", "1")
    assert (status, f"{schema}.a" in printed, '"type":"INSERT"' in printed) == (0, True, True)
    status, printed = process.command("parked", "show", "shop", "1", "--json")
    assert json.loads(json.loads(printed)["body"])["data"] == [{"id": "1", "n": "1"}]
    status, printed = process.command("parked", "show", "shop", "99")
    assert (status, "no parked message 99" in printed) == (1, True)
    assert process.command("parked", "retry", "shop")[0] == 2, "which ones?"
    assert process.command("parked", "list", "elsewhere")[0] == 2
    status, printed = process.command("parked", "discard", "shop", "1")
    assert (status, "nobody can be asked" in printed) == (1, True)

    async with connected_to(rabbitmq.url) as broker:
        queue = await broker.queue(f"{schema}.a")
        assert process.command("parked", "discard", "shop", "1", "--yes") == (0, "shop: 1 messages were given up\n")
        assert await rows(broker, queue, 1) == [("UPDATE", "1", "2")]
        status, printed = process.command("parked", "retry", "shop", "--state", "NEEDS_OPERATOR")
        assert (status, "1 messages are sent again" in printed) == (0, True)
        assert await rows(broker, queue, 1) == [("INSERT", "7", "7")]
    process.wait_state("shop", "STREAMING")
    assert failed_of(process) == {"messages": 0, "bytes": 0, "need_operator": 0, "oldest_at": None}


def test_a_full_store_stops_the_destination_and_its_position(
    mysql: Any, rabbitmq: Any, schema: str, execute: Callable[..., Any], daemon: Make
) -> None:
    execute(f"CREATE TABLE a {TABLE}")
    process = daemon(shop=site(mysql, schema, rabbitmq, f"max_messages = 3\n{PATIENT}")).start()
    process.wait_state("shop", "STREAMING")
    execute(*[f"INSERT INTO a VALUES ({i}, 1)" for i in range(6)])
    status = process.wait_state("shop", "FAILED")
    assert "no more may be" in status["message"]
    status, printed = process.command("parked", "list", "shop", "--json")
    assert len(json.loads(printed)) == 3


def test_what_waits_is_not_forgotten_when_the_sink_parks_nothing_any_more(
    mysql: Any, rabbitmq: Any, schema: str, execute: Callable[..., Any], daemon: Make
) -> None:
    execute(f"CREATE TABLE a {TABLE}")
    process = daemon(shop=site(mysql, schema, rabbitmq)).start()
    process.wait_state("shop", "STREAMING")
    execute("INSERT INTO a VALUES (1, 1)")
    stored(process, mysql, 1)
    process.kill()
    file = process.folder / "destinations" / "shop.toml"
    file.write_text(site(mysql, schema, rabbitmq, sink='on_failure = "halt"'))
    process.start()
    status = process.wait_state("shop", "FAILED")
    assert "1 parked messages of shop wait" in status["message"]


def change_at_random(mysql: Any, schema: str, seed: int, rounds: int) -> None:
    dice = random.Random(seed)
    session = pymysql.connect(**mysql.connection("root"), database=schema, autocommit=True)
    with session, session.cursor() as cursor:
        for number in range(rounds):
            key = dice.randrange(25)
            if dice.random() < 0.8:
                cursor.execute("REPLACE INTO a (id, n) VALUES (%s, %s)", (key, number))
            else:
                cursor.execute("DELETE FROM a WHERE id = %s", (key,))


def replay(messages: list[dict[str, Any]]) -> dict[str, str]:
    table: dict[str, str] = {}
    for message in messages:
        for row in message["data"] or ():
            table.pop(row["id"], None)
            if message["type"] != "DELETE":
                table[row["id"]] = row["n"]
    return table


async def taken(queue: Any, limit: int = 1_000_000) -> list[Any]:
    """What lies in the queue now, at most so many."""
    found: list[Any] = []
    while len(found) < limit and (message := await queue.get(fail=False, no_ack=True)) is not None:
        found.append(message)
    return found


async def all_stored(process: DaemonProcess, mysql: Any) -> bool:
    end = mysql.sql("SHOW BINARY LOG STATUS")[0]
    position = process.health()[1]["destinations"]["shop"]["position"]
    return [position["file"], position["offset"]] >= [end[0], int(end[1])]


@pytest.mark.parametrize("each", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_a_queue_that_is_full_now_and_then_gets_every_row_in_order(
    mysql: Any, rabbitmq: Any, schema: str, execute: Callable[..., Any], daemon: Make, each: bool
) -> None:
    """Nacks come for some messages while others of the same row are taken; the daemon is killed in between."""
    execute(f"CREATE TABLE a {TABLE}")
    async with connected_to(rabbitmq.url) as broker:
        queue = await broker.queue(f"{schema}.a", x_max_length=40, x_overflow="reject-publish")
        process = daemon(shop=site(mysql, schema, rabbitmq, each=each)).start()
        process.wait_state("shop", "STREAMING")
        found: list[Any] = []
        for part in range(4):
            change_at_random(mysql, schema, part, 150)
            process.wait("shop", lambda s: s["parked"]["messages"] > 0)
            if part == 1:
                process.kill()
                process.start()
            found += await taken(queue, 30)  # a consumer would throw away what it has fetched ahead
        async with asyncio.timeout(60):
            while failed_of(process)["messages"] or not await all_stored(process, mysql):
                found += await taken(queue)
        found += await taken(queue)
    messages = [json.loads(message.body) for message in found]
    assert replay(messages) == {str(i): str(n) for i, n in execute("SELECT id, n FROM a")}
    last_place: dict[str, int] = {}
    by_key: dict[str, list[int]] = defaultdict(list)
    for place, message in enumerate(messages):
        last_place[str(message["_pos"])] = place
    for pos, place in sorted(last_place.items(), key=lambda item: item[1]):
        for row in messages[place]["data"] or ():
            by_key[row["id"]].append(int(pos))
    assert all(places == sorted(places) for places in by_key.values())


async def test_a_connection_lost_while_the_source_is_quiet_does_not_hold_up_what_waits(
    mysql: Any, rabbitmq: Any, schema: str, execute: Callable[..., Any], daemon: Make
) -> None:
    execute(f"CREATE TABLE a {TABLE}")
    async with connected_to(rabbitmq.url) as broker:
        with Proxy(rabbitmq.host, rabbitmq.port) as proxy:
            process = daemon(shop=site(mysql, schema, proxy)).start()
            process.wait_state("shop", "STREAMING")
            execute("INSERT INTO a VALUES (1, 1)")
            stored(process, mysql, 1)
            proxy.close_all()
            queue = await broker.queue(f"{schema}.a")
            assert await rows(broker, queue, 1) == [("INSERT", "1", "1")]
            stored(process, mysql, 0)
            process.wait_state("shop", "STREAMING")
            assert process.terminate() == 0


@pytest.mark.long
async def test_another_daemon_goes_on_with_what_the_first_had_parked(
    mysql: Any, rabbitmq: Any, zookeeper: Any, schema: str, execute: Callable[..., Any], daemon: Make
) -> None:
    execute(f"CREATE TABLE a {TABLE}")
    login = mysql.connection("root")
    store = (
        f'store = "mysql"\nhost = "{mysql.host}"\nport = {mysql.port}\nuser = "{login["user"]}"\n'
        f'password = "{login.get("password", "")}"\ndatabase = "{schema}"'
    )
    text = site(mysql, schema, rabbitmq, f"{store}\n{PATIENT}")
    settings = f'[zookeeper]\nhosts = "{zookeeper.hosts}"\nroot = "/{schema}"\nsession_timeout = "4s"'
    one = daemon(shop=text, settings=settings, node="one").start()
    one.wait_state("shop", "STREAMING")
    two = daemon(shop=text, settings=settings, node="two").start()
    two.wait_state("shop", "STANDBY")
    execute("INSERT INTO a VALUES (1, 1), (2, 1)", "UPDATE a SET n = 2 WHERE id = 1")
    stored(one, mysql, 3)
    assert [row[0] for row in execute("SELECT id FROM headrace_parked_message ORDER BY number")]
    one.kill()
    eventually(lambda: two.ready("shop") == 200, 40)
    execute("UPDATE a SET n = 3 WHERE id = 1")
    stored(two, mysql, 4)
    async with connected_to(rabbitmq.url) as broker:
        queue = await broker.queue(f"{schema}.a")
        came = await rows(broker, queue, 4)
    assert [one for one in came if one[1] == "1"] == [("INSERT", "1", "1"), ("UPDATE", "1", "2"), ("UPDATE", "1", "3")]
    stored(two, mysql, 0)
    assert execute("SELECT COUNT(*) FROM headrace_parked_message") == ((0,),)
    _, printed = two.command("check")
    assert "headrace_parked_message" not in printed


@pytest.mark.parametrize(
    ("settings", "parked", "reported"),
    [
        ('[zookeeper]\nhosts = "127.0.0.1:1"', "", 'store = "mysql"'),
        ("", 'host = "127.0.0.1"', "host: has no meaning with store"),
        ("", 'store = "mysql"', "user: is missing"),
    ],
)
def test_a_store_that_does_not_go_with_the_rest_is_refused(
    mysql: Any, rabbitmq: Any, schema: str, daemon: Make, settings: str, parked: str, reported: str
) -> None:
    status, printed = daemon(shop=site(mysql, schema, rabbitmq, parked), settings=settings).command("check")
    assert (status, reported in printed) == (2, True), printed
