"""Repeated messages, dropped by their ids: a file of SQLite, a real Redis, and what happens without either."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

import devstack
from devstack.servers.redis import RedisServer
from headrace_consume.duplicates import Duplicates
from headrace_consume.seen import DuplicatesError
from headrace_consume.seen_redis import RedisSeen
from headrace_consume.seen_sqlite import SqliteSeen
from headrace_consume.settings import DuplicatesSettings
from tests.canal_messages import START, change, row

from .conftest import Line

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def redis(stack: devstack.Stack) -> RedisServer:
    return stack.redis()


def section(kind: str, folder: Path, redis: RedisServer) -> dict[str, Any]:
    return {"store": kind, **({"path": str(folder / "ids.db")} if kind == "sqlite" else {"url": redis.url})}


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_a_repeated_message_is_dropped_by_its_id_also_by_the_next_process(
    line: Line, redis: RedisServer, kind: str, tmp_path: Path
) -> None:
    messages = [change(line.name, START + 10 * number, "INSERT", row(number)) for number in range(50)]
    ids = [f"a:1#{number}" for number in range(50)]
    line.configure(duplicates=section(kind, tmp_path, redis))
    line.start()
    await line.wait_for(lambda: line.status().get("state") == "RUNNING")
    await line.send(messages, ids=ids)
    await line.wait_settled()
    await line.send(messages[:30], ids=ids[:30])
    await line.wait_settled()
    line.stop()
    assert (line.count("applied"), line.count("duplicates")) == (50, 30)
    line.start()
    await line.send(messages, ids=ids)
    # Noted only once it was applied: a message that fails under its id is not a repeated one later.
    await line.send([b"garbage"], ids=["a:2#0"])
    await line.wait_for(lambda: line.count("dead_letters") == 1)
    await line.send([change(line.name, START, "INSERT", row(99))], ids=["a:2#0"])
    await line.wait_for(lambda: line.count("applied") == 1)
    line.stop()
    assert line.count("duplicates") == 50
    assert len(line.documents()) == 51


async def test_redis_away_costs_only_repeated_writes(line: Line, redis: RedisServer, tmp_path: Path) -> None:
    messages = [change(line.name, START + 10 * number, "INSERT", row(number)) for number in range(20)]
    ids = [f"b:1#{number}" for number in range(20)]
    line.configure(duplicates={**section("redis", tmp_path, redis), "timeout": 0.3})
    redis.kill()
    try:
        line.start()
        await line.send_when_running(messages, ids)
        await line.wait_settled()
        assert "Redis can't be used" in line.status()["troubles"]["duplicates"]
        await line.send(messages, ids=ids)
        await line.wait_settled()
    finally:
        redis.start()
    line.stop()
    assert (line.count("applied"), line.count("duplicates")) == (40, 0)
    assert len(line.documents()) == 20


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_an_id_is_remembered_for_its_time(kind: str, tmp_path: Path, redis: RedisServer) -> None:
    settings = DuplicatesSettings.model_validate({**section(kind, tmp_path, redis), "ttl": 1.0})
    now = [1000.0]
    store = SqliteSeen(settings, "q", lambda: now[0]) if kind == "sqlite" else RedisSeen(settings, "q")
    other = SqliteSeen(settings, "p", lambda: now[0]) if kind == "sqlite" else RedisSeen(settings, "p")
    await store.open()
    await other.open()
    names = [f"保#{number}" for number in range(1200)]
    await store.note(names)
    assert await store.seen([*names, "new"]) == set(names)
    assert await other.seen(names) == set()
    if kind == "sqlite":
        now[0] += 1.1
    else:
        end = time.monotonic() + 5
        while await store.seen(names):
            assert time.monotonic() < end
    assert await store.seen(names) == set()
    await store.close()
    await other.close()


async def test_old_ids_are_removed_from_the_file(tmp_path: Path) -> None:
    now = [1000.0]
    settings = DuplicatesSettings.model_validate({"store": "sqlite", "path": str(tmp_path / "ids.db"), "ttl": 10.0})
    store = SqliteSeen(settings, "q", lambda: now[0])
    await store.open()
    await store.note(["a", "b"])
    now[0] += 100
    await store.note(["c"])
    await store.close()
    with sqlite3.connect(tmp_path / "ids.db") as connection:
        assert connection.execute("SELECT name FROM seen").fetchall() == [("q|c",)]
    connection.close()


async def test_a_file_that_is_no_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "ids.db").write_text("this is no database, it is a text of some length" * 100)
    settings = DuplicatesSettings.model_validate({"store": "sqlite", "path": str(tmp_path / "ids.db")})
    with pytest.raises(DuplicatesError, match="not a database"):
        await SqliteSeen(settings, "q").open()


async def test_a_store_that_failed_is_left_alone_for_a_moment(redis: RedisServer) -> None:
    settings = DuplicatesSettings.model_validate({"store": "redis", "url": redis.url, "timeout": 0.3})
    now = [0.0]
    duplicates = Duplicates(RedisSeen(settings, "moment"), lambda: now[0])
    await duplicates.note(["a"])  # before it was ever opened
    assert await duplicates.seen(["a", ""]) == set()
    await duplicates.note(["a", ""])
    redis.freeze()
    try:
        assert await duplicates.seen(["a"]) == set()
        assert "did not answer" in duplicates.trouble or "Timeout" in duplicates.trouble
    finally:
        redis.thaw()
    assert await duplicates.seen(["a"]) == set()
    now[0] += 6
    assert await duplicates.seen(["a"]) == {"a"}
    assert duplicates.trouble == ""
    await duplicates.close()
