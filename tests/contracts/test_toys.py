"""One package and one line of registration are enough: a sink, a format and a cluster service that headrace has never
heard of, from the configuration to the rows of a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.wiring import Wiring
from headrace.destination.destination import Destination
from headrace.destination.status import DestinationStatus
from headrace.errors import ConfigError
from headrace.model import State
from headrace.ports.state_records import Head
from tests.contracts.conftest import TOYS, loader
from tests.support import destination_toml
from tests.toys.cluster import ROOMS

MAIN = '[daemon]\nnode = "one"\n[http]\nlisten = ""\n[toy]\nroom = "{room}"\n'
TOY = 'type = "toy"\nshelf = "{shelf}"'


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(main: str, shop: str) -> Path:
        (tmp_path / "destinations").mkdir(exist_ok=True)
        (tmp_path / "destinations" / "shop.toml").write_text(shop)
        (tmp_path / "headrace.toml").write_text(main)
        return tmp_path / "headrace.toml"

    return write


def shop(sink: str, more: str = "") -> str:
    return f'[source]\nhost = "h"\nuser = "u"\npassword = ""\n{more}\n[sink]\n{sink}\n'


def test_their_sections_are_read_and_checked(write: Any) -> None:
    more = '[message]\nformat = "toy"\nloud = true'
    settings = loader().load(write(MAIN.format(room="r"), shop(TOY.format(shelf="s"), more)))
    destination = settings.destinations["shop"]
    assert (destination.sink.type, destination.message.format, settings.service) == ("toy", "toy", "toy")
    assert settings.state_of(destination).store == "toy"


@pytest.mark.parametrize(
    ("main", "sink", "more", "problem"),
    [
        ("", 'type = "toy"', "", "sink.shelf: is missing"),
        (
            "",
            'type = "toys"',
            "",
            "sink.type: should be one of kafka, rabbitmq, rocketmq, canal, jsonl, null, toy; others",
        ),
        ("", 'type = "null"\nshelf = "s"', "", 'sink.shelf: has no meaning with type = "null"'),
        ("", 'type = "null"', "[message]\nloud = true", 'message.loud: has no meaning with format = "canal"'),
        ("[toy]", 'type = "null"', "", "toy.room: is missing"),
        (MAIN.format(room="r") + '[zookeeper]\nhosts = "h:1"', 'type = "null"', "", "there is a section [zookeeper]"),
        (MAIN.format(room="r") + '[state]\nstore = "sqlite"', 'type = "null"', "", "as [toy] asks for"),
    ],
)
def test_what_is_wrong_with_them_is_said_as_for_all_others(
    write: Any, main: str, sink: str, more: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        loader().load(write(main, shop(sink, more)))
    assert any(problem in one for one in caught.value.problems), caught.value.problems


async def test_rows_of_a_server_reach_the_toy_sink_in_the_toy_format_and_another_daemon_takes_over(
    mysql: Any, schema: str, execute: Any, write: Any, tmp_path: Path
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))")
    shelf = tmp_path / "shelf"
    text = destination_toml(mysql, schema, TOY.format(shelf=shelf), more='[message]\nformat = "toy"')
    path = write(MAIN.format(room=schema), text)
    running: list[tuple[Wiring, Destination, DestinationStatus, asyncio.Event, asyncio.Task[None]]] = []
    for node in ("one", "two"):
        path.write_text(MAIN.format(room=schema).replace('"one"', f'"{node}"'))
        settings = loader({"TEST_PASSWORD": mysql.password}).load(path)
        wiring = Wiring(settings, TOYS)
        await wiring.open()
        status, stop = DestinationStatus("shop"), asyncio.Event()
        destination = settings.destinations["shop"]
        actor = Destination(destination, settings.daemon, wiring.dependencies(destination), status)
        running.append((wiring, actor, status, stop, asyncio.create_task(actor.run(stop))))
        expected = State.STREAMING if node == "one" else State.STANDBY
        await until(lambda status=status, expected=expected: status.state is expected)
    execute("INSERT INTO t VALUES (1, 'a')")
    await until(lambda: shelf.exists() and shelf.read_text().count("\n") == 1)
    assert running[1][2].holding.holder.startswith("one")
    running[0][3].set()
    await running[0][4]
    await until(lambda: running[1][2].holding.role == "ACTIVE" and running[1][2].state is State.STREAMING)
    execute("UPDATE t SET name = 'b'")
    await until(lambda: shelf.read_text().count("\n") == 2)
    running[1][3].set()
    await running[1][4]
    for wiring, *_ in running:
        await wiring.close()
    rows = f"{schema} 0 INSERT {schema}.t [(1, 'a')]\n{schema} 0 UPDATE {schema}.t [(1, 'b')]\n"
    assert shelf.read_text() == rows
    assert Head.decode(ROOMS[schema].nodes["/toy/destinations/shop/position"].data, "").position is not None


async def until(condition: Callable[[], bool], limit: float = 30) -> None:
    async with asyncio.timeout(limit):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
