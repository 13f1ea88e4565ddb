"""Failed messages in a table of MySQL or MariaDB: kept byte by byte, fenced, and made with little."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pymysql
import pytest

from headrace.adapters.mysql_parking.settings import MySqlParkingSettings
from headrace.adapters.mysql_parking.store import MySqlFailedStore
from headrace.errors import Fenced, StateStoreError
from headrace.lease import Guard
from headrace.model import Unit
from headrace.ports.parking import FailedState
from tests.failed import batch, parking, unit

_numbers = itertools.count(1)
ONE, TWO = Guard(1, 0), Guard(2, 0)


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def database(server: Any) -> Iterator[str]:
    name = f"failed`{next(_numbers)}"
    yield name
    with pymysql.connect(**server.connection("root"), autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS `{name.replace('`', '``')}`")


def store_of(server: Any, database: str, destination: str = "shop", **more: Any) -> MySqlFailedStore:
    login = server.connection("root")
    given = {"user": login["user"], "password": login.get("password", ""), "database": database}
    where = {"store": "mysql", "host": server.host, "port": server.port}
    return MySqlFailedStore(MySqlParkingSettings.model_validate({**where, **given, **more}), destination)


@pytest.fixture
async def failed(server: Any, database: str) -> AsyncIterator[MySqlFailedStore]:
    store = store_of(server, database)
    await store.open()
    yield store
    await store.close()


async def test_messages_come_back_as_they_were(failed: MySqlFailedStore) -> None:
    desk = parking(failed)
    await desk.open(ONE)
    messages = batch(unit("1", "家庭"), Unit(("shop.*",)), Unit(()), topic="路由")
    every = bytes(range(256))
    messages.values = [every * 3, None, "%s' 家庭保洁\\".encode()]
    messages.keys, messages.tags = [every, None, b""], ["标签", "", "x"]
    messages.headers[0].append(("名", every))
    for index in range(3):
        desk.park("ex", messages, index, "returned: NO_ROUTE 'x'", 4)
    await desk.flush(ONE)
    again = parking(failed)
    await again.open(TWO)
    assert again.waiting() == desk.waiting()
    assert [entry.unit for entry in again.waiting()] == messages.units
    found = await failed.contents([entry.number for entry in again.waiting()])
    contents = [found[entry.number] for entry in again.waiting()]
    assert [content.body for content in contents] == messages.values
    assert [content.key for content in contents] == messages.keys
    assert [list(content.headers) for content in contents] == messages.headers
    assert [content.tag for content in contents] == messages.tags
    assert {content.commit_time_us for content in contents} == {5_000_000}
    assert again.blocked("ex", unit("9"))


async def test_the_same_message_is_kept_once_and_other_destinations_are_apart(
    server: Any, database: str, failed: MySqlFailedStore
) -> None:
    other = store_of(server, database, "other")
    await other.begin(ONE)
    for store in (failed, other, failed):
        desk = parking(store)
        await desk.open(ONE)
        desk._numbers.clear()
        desk.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
        await desk.flush(ONE)
    assert [len(await store.entries()) for store in (failed, other)] == [1, 1]
    assert [entry.number for entry in await failed.entries()] == [2], "the later one is in its place"
    assert await failed.remove(ONE, [2]) == 1
    assert [len(await store.entries()) for store in (failed, other)] == [0, 1]
    await other.close()


async def test_nothing_is_written_under_a_former_epoch(server: Any, database: str, failed: MySqlFailedStore) -> None:
    desk = parking(failed)
    await desk.open(ONE)
    desk.park("ex", batch(unit("1"), unit("2")), 0, "NO_ROUTE", 1)
    await desk.flush(ONE)
    desk.park("ex", batch(unit("1"), unit("2")), 1, "NO_ROUTE", 1)
    successor = store_of(server, database)
    await successor.begin(TWO)
    with pytest.raises(Fenced, match="epoch 2, ours is 1"):
        await desk.flush(ONE)
    with pytest.raises(Fenced):
        await failed.remove(ONE, [1])
    with pytest.raises(Fenced):
        await failed.update(ONE, desk.waiting())
    with pytest.raises(Fenced):
        await failed.begin(ONE)
    assert [entry.id for entry in await successor.entries()] == ["g#1"]
    assert await successor.remove(TWO, [1]) == 1
    await successor.close()


async def test_people_change_entries_and_the_daemon_can_see_it(failed: MySqlFailedStore) -> None:
    desk = parking(failed)
    await desk.open(ONE)
    desk.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
    await desk.flush(ONE)
    before = await failed.changes()
    (entry,) = await failed.entries()
    mine = replace(entry, state=FailedState.MANUAL, attempts=9, reason="still", tried_us=entry.tried_us + 7)
    assert await failed.update(ONE, [mine, replace(mine, number=99)]) == 1
    assert await failed.entries() == [mine]
    assert await failed.changes() == before, "the daemon's own writes are none of an operator"
    assert await failed.update(None, [replace(mine, state=FailedState.PENDING)]) == 1
    assert await failed.changes() == before + 1
    assert await failed.remove(None, [entry.number]) == 1
    assert await failed.changes() == before + 2
    assert await failed.remove(None, []) == 0


async def test_a_number_that_somebody_else_has_given_swallows_nothing(failed: MySqlFailedStore) -> None:
    first, second = parking(failed), parking(failed)
    await first.open(ONE)
    await second.open(ONE)
    first.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
    await first.flush(ONE)
    second.park("ex", batch(unit("2"), first=2), 0, "NO_ROUTE", 1)
    with pytest.raises(StateStoreError, match="Duplicate entry"):
        await second.flush(ONE)
    assert [entry.id for entry in await failed.entries()] == ["g#1"]


async def test_an_account_that_may_only_use_the_tables_is_enough(
    server: Any, database: str, failed: MySqlFailedStore
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
