"""Failed messages in a table of MySQL or MariaDB: kept byte by byte, fenced, and made with little."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pymysql
import pytest

from headrace.adapters.mysql_parking.settings import MySqlParkingSettings
from headrace.adapters.mysql_parking.store import MySqlParkingStore
from headrace.errors import Fenced, StateStoreError
from headrace.lease import Guard
from headrace.model import Unit
from headrace.ports.parking import ParkingState
from tests import versions
from tests.parked import batch, new_parking, unit

_numbers = itertools.count(1)
ONE, TWO = Guard(1, 0), Guard(2, 0)


@pytest.fixture(params=versions.SQL)
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def database(server: Any) -> Iterator[str]:
    name = f"failed`{next(_numbers)}"
    yield name
    with pymysql.connect(**server.connection("root"), autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS `{name.replace('`', '``')}`")


def store_of(server: Any, database: str, destination: str = "shop", **more: Any) -> MySqlParkingStore:
    login = server.connection("root")
    given = {"user": login["user"], "password": login.get("password", ""), "database": database}
    where = {"store": "mysql", "host": server.host, "port": server.port}
    return MySqlParkingStore(MySqlParkingSettings.model_validate({**where, **given, **more}), destination)


@pytest.fixture
async def parked(server: Any, database: str) -> AsyncIterator[MySqlParkingStore]:
    store = store_of(server, database)
    await store.open()
    yield store
    await store.close()


async def test_messages_come_back_as_they_were(parked: MySqlParkingStore) -> None:
    parking = new_parking(parked)
    await parking.open(ONE)
    messages = batch(unit("1", "家庭"), Unit(("shop.*",)), Unit(()), topic="路由")
    every = bytes(range(256))
    messages.values = [every * 3, None, "%s' 家庭保洁\\".encode()]
    messages.keys, messages.tags = [every, None, b""], ["标签", "", "x"]
    messages.headers[0].append(("名", every))
    for index in range(3):
        parking.park("ex", messages, index, "returned: NO_ROUTE 'x'", 4)
    await parking.flush(ONE)
    again = new_parking(parked)
    await again.open(TWO)
    assert again.waiting() == parking.waiting()
    assert [entry.unit for entry in again.waiting()] == messages.units
    found = await parked.contents([entry.number for entry in again.waiting()])
    contents = [found[entry.number] for entry in again.waiting()]
    assert [content.body for content in contents] == messages.values
    assert [content.key for content in contents] == messages.keys
    assert [list(content.headers) for content in contents] == messages.headers
    assert [content.tag for content in contents] == messages.tags
    assert {content.commit_time_us for content in contents} == {5_000_000}
    assert again.blocked("ex", unit("9"))


async def test_the_same_message_is_kept_once_and_other_destinations_are_apart(
    server: Any, database: str, parked: MySqlParkingStore
) -> None:
    other = store_of(server, database, "other")
    await other.begin(ONE)
    for store in (parked, other, parked):
        parking = new_parking(store)
        await parking.open(ONE)
        parking._numbers.clear()
        parking.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
        await parking.flush(ONE)
    assert [len(await store.entries()) for store in (parked, other)] == [1, 1]
    assert [entry.number for entry in await parked.entries()] == [2], "the later one is in its place"
    assert await parked.remove(ONE, [2]) == 1
    assert [len(await store.entries()) for store in (parked, other)] == [0, 1]
    await other.close()


async def test_nothing_is_written_under_a_former_epoch(server: Any, database: str, parked: MySqlParkingStore) -> None:
    parking = new_parking(parked)
    await parking.open(ONE)
    parking.park("ex", batch(unit("1"), unit("2")), 0, "NO_ROUTE", 1)
    await parking.flush(ONE)
    parking.park("ex", batch(unit("1"), unit("2")), 1, "NO_ROUTE", 1)
    successor = store_of(server, database)
    await successor.begin(TWO)
    with pytest.raises(Fenced, match="epoch 2, ours is 1"):
        await parking.flush(ONE)
    with pytest.raises(Fenced):
        await parked.remove(ONE, [1])
    with pytest.raises(Fenced):
        await parked.update(ONE, parking.waiting())
    with pytest.raises(Fenced):
        await parked.begin(ONE)
    assert [entry.id for entry in await successor.entries()] == ["g#1"]
    assert await successor.remove(TWO, [1]) == 1
    await successor.close()


async def test_an_operator_changes_entries_and_the_daemon_can_see_it(parked: MySqlParkingStore) -> None:
    parking = new_parking(parked)
    await parking.open(ONE)
    parking.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
    await parking.flush(ONE)
    before = await parked.changes()
    (entry,) = await parked.entries()
    mine = replace(entry, state=ParkingState.NEEDS_OPERATOR, attempts=9, reason="still", tried_us=entry.tried_us + 7)
    assert await parked.update(ONE, [mine, replace(mine, number=99)]) == 1
    assert await parked.entries() == [mine]
    assert await parked.changes() == before, "the daemon's own writes are none of an operator"
    assert await parked.update(None, [replace(mine, state=ParkingState.PENDING)]) == 1
    assert await parked.changes() == before + 1
    assert await parked.remove(None, [entry.number]) == 1
    assert await parked.changes() == before + 2
    assert await parked.remove(None, []) == 0


async def test_a_number_that_somebody_else_has_given_swallows_nothing(parked: MySqlParkingStore) -> None:
    first, second = new_parking(parked), new_parking(parked)
    await first.open(ONE)
    await second.open(ONE)
    first.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
    await first.flush(ONE)
    second.park("ex", batch(unit("2"), first=2), 0, "NO_ROUTE", 1)
    with pytest.raises(StateStoreError, match="Duplicate entry"):
        await second.flush(ONE)
    assert [entry.id for entry in await parked.entries()] == ["g#1"]


async def test_an_account_that_may_only_use_the_tables_is_enough(
    server: Any, database: str, parked: MySqlParkingStore
) -> None:
    quoted, user = f"`{database.replace('`', '``')}`", f"f{next(_numbers)}"
    with pymysql.connect(**server.connection("root"), autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'only-tables'")
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {quoted}.* TO {user}@'127.0.0.1'")
    modest = store_of(server, database, user=user, password="only-tables")
    await modest.open()
    await modest.begin(ONE)
    await modest.close()
    nowhere = store_of(server, "no_such_database", user=user, password="only-tables")
    with pytest.raises(StateStoreError, match=r"denied") as caught:
        await nowhere.open()
    assert "only-tables" not in str(caught.value)
    with pymysql.connect(**server.connection("root"), autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP USER {user}@'127.0.0.1'")


async def test_a_server_that_is_away_is_said_and_used_again_later(stack: Any) -> None:
    server = stack.mysql(None, name="failed-away")
    store = store_of(server, "headrace")
    await store.open()
    await store.begin(ONE)
    server.kill()
    with pytest.raises(StateStoreError, match=f"MySQL at {server.host}:{server.port}") as caught:
        await store.entries()
    assert caught.value.retriable
    assert len(await store.problems()) == 1
    server.start()
    assert await store.entries() == []
    assert await store.problems() == []
    await store.close()
    server.kill()
