"""The daemon's other parts against the model of MySQL: snapshots, heartbeats, checks, moves, and the whole of it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.adapters.mysql_parking.settings import MySqlParkingSettings
from headrace.adapters.mysql_parking.store import MySqlParkingStore
from headrace.cli.wiring import Wiring
from headrace.destination.destination import Destination
from headrace.errors import Fenced
from headrace.lease import Guard
from headrace.model import State
from headrace.mysql.checks import Wanted, check_source
from headrace.mysql.replicas import replicas
from headrace.mysql.schema.current import schemas_now
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.ports.finding import Level
from headrace.ports.source import Heartbeat
from headrace.ports.state import Stored
from headrace.ports.tables import NOWHERE, ChunkRequest
from headrace.supervisor.supervisor import Supervisor
from sim.mysql.accounts import Account
from tests.configured import load
from tests.parked import batch, new_parking, unit
from tests.sim.reading import CANAL, Clock, model, reading, serving, shop, source_of, truth, until
from tests.snapshots import slowly
from tests.support import destination_toml, read_jsonl
from tests.table_reads import chunks_of, reader_of

ROOT = Account("root", "root")


@pytest.mark.parametrize(
    ("columns", "keys"),
    [
        ("id BIGINT UNSIGNED PRIMARY KEY, v VARCHAR(30)", [(number * 3,) for number in range(300)]),
        (
            "id VARCHAR(20) PRIMARY KEY, v TEXT",
            [(f"{'aZ'[number % 2]}{number % 7}é{number}",) for number in range(300)],
        ),
        (
            "a INT, b VARCHAR(9) COLLATE utf8mb4_bin, v TEXT, PRIMARY KEY (b, a)",
            [(n // 3, "aBb"[n % 3]) for n in range(99)],
        ),
        ("d DATETIME(2) PRIMARY KEY, v TEXT", [(f"2026-01-01 00:{n:02d}:00.5",) for n in range(60)]),
        ("n DECIMAL(9,3) PRIMARY KEY, v TEXT", [(f"{n - 40}.25",) for n in range(90)]),
        ("f DOUBLE PRIMARY KEY, v TEXT", [(float(n) / 7 - 3,) for n in range(50)]),
        ("b BINARY(4) PRIMARY KEY, v TEXT", [(bytes([n, 255 - n]),) for n in range(50)]),
        ("e ENUM('z','b','a'), id INT, v TEXT, PRIMARY KEY (e, id)", [("zba"[n % 3], n) for n in range(40)]),
        ("id INT, v TEXT", [(n // 2,) for n in range(120)]),
    ],
)
async def test_tables_are_read_by_ranges_of_their_keys(columns: str, keys: list[tuple[Any, ...]]) -> None:
    server = model(accounts=[ROOT, CANAL])
    client = shop(server, f"CREATE TABLE t ({columns})")
    names = [column.name for column in server.engine.catalog.schemas["shop"].tables["t"].definition.columns]
    order = [name for name in names if name != "v"]
    client.insert("t", *({**dict(zip(order, key, strict=True)), "v": f"row {key}"} for key in keys))
    if len(set(keys)) < len(keys):
        client.insert("t", dict.fromkeys(names))
    async with serving(server) as port:
        source = source_of(port)
        schema = (await schemas_now(source.settings, lambda *_: True))["shop", "t"]
        reader, end = await reader_of(SimpleNamespace(host="127.0.0.1", port=port))
        chunks = await chunks_of(reader, ChunkRequest(schema, end, rows=17))
        rows = [row for _, found in chunks for row in found]
        listed = await reader.tables()
        await reader.close()
    table = server.engine.catalog.schemas["shop"].tables["t"]
    assert rows == [table.rows[key] for key in sorted(table.rows)]
    assert len(chunks) > 2
    assert [(one.schema, one.table, one.rows) for one in listed.tables] == [("shop", "t", len(table.rows))]
    assert server.unknown == []


async def test_a_condition_of_an_operator_selects_rows() -> None:
    server = model(accounts=[ROOT, CANAL])
    client = shop(server, "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9), n INT)")
    client.insert("t", *((n, "ab"[n % 2], n % 10) for n in range(100)))
    async with serving(server) as port:
        source = source_of(port)
        schema = (await schemas_now(source.settings, lambda *_: True))["shop", "t"]
        reader = await source.reader_now()
        where = "v = 'A' AND (n IN (2, 4) OR n IS NULL) AND NOT id < 50 -- those"
        request = ChunkRequest(schema, NOWHERE, rows=7, where=where, columns=frozenset({"n"}))
        found = [row for _, rows in await chunks_of(reader, request) for row in rows]  # type: ignore[arg-type]
        await reader.close()
    assert [row[0] for row in found] == [52, 54, 62, 64, 72, 74, 82, 84, 92, 94]


async def test_heartbeats_are_written_by_sql_and_come_back_in_the_stream() -> None:
    server = model()
    async with serving(server) as port:
        source = source_of(port)
        second = source.second_connection()
        assert await second.stored_heartbeat(required=True) is None
        async with reading(source) as read:
            ours = Heartbeat("shop", 3, "nöde'", 1, 1_000)
            assert await second.write_heartbeat(ours) is None
            assert await second.write_heartbeat(Heartbeat("shop", 3, "nöde'", 2, 2_000)) is None
            assert await second.write_heartbeat(Heartbeat("shop", 2, "late", 9, 9)) == Heartbeat(
                "shop", 3, "nöde'", 2, 2_000
            )
            server.session().execute(
                "INSERT INTO headrace.signal (destination, command) VALUES ('shop', 'pause'), ('shop', 'resume')"
            )
            await read.to_end(server)
            assert [one.sequence for one in read.heartbeats] == [1, 2]
            assert read.changes == []
            assert read.stream.position().own_gtids
        assert server.session().query("SELECT id, command FROM headrace.signal ORDER BY id DESC LIMIT 1") == [
            {"id": 2, "command": "resume"}
        ]
        await second.close()
    assert server.unknown == []


async def test_no_heartbeat_is_written_on_a_replica_or_a_server_that_is_read_only() -> None:
    server = model()
    replica = server.replica()
    async with serving(replica) as port:
        second = source_of(port).second_connection()
        assert await second.write_heartbeat(Heartbeat("shop", 1, "n", 1, 1)) is None
        await second.close()
    alone = model(read_only=True, accounts=[CANAL])
    async with serving(alone) as port:
        second = source_of(port).second_connection()
        with pytest.raises(Exception, match="read-only"):
            await second.write_heartbeat(Heartbeat("shop", 1, "n", 1, 1))
        await second.close()
    assert replica.history == []


async def test_parked_messages_are_kept_in_tables_of_the_model() -> None:
    server = model()
    where = {"store": "mysql", "port": 0, "host": "127.0.0.1", "user": "canal", "password": "canal", "tls": "disabled"}
    async with serving(server) as port:
        store = MySqlParkingStore(MySqlParkingSettings.model_validate({**where, "port": port}), "shop")
        await store.open()
        await store.open()
        parking = new_parking(store)
        await parking.open(Guard(1, 0))
        messages = batch(unit("1", "家庭"), unit("2"), unit("3"))
        messages.values = [bytes(range(256)), None, b"'%s\\"]
        for index in range(3):
            parking.park("ex", messages, index, "returned", 1)
        await parking.flush(Guard(1, 0))
        again = new_parking(store)
        await again.open(Guard(2, 0))
        assert again.waiting() == parking.waiting()
        found = await store.contents([entry.number for entry in again.waiting()])
        assert [found[entry.number].body for entry in again.waiting()] == messages.values
        with pytest.raises(Fenced):
            await store.add(Guard(1, 0), [])
        assert await store.remove(None, [again.waiting()[0].number, 99]) == 1
        assert await store.changes() == 1
        assert len(await store.entries()) == 2
        await store.close()
    assert server.unknown == []


async def test_the_checks_of_a_source_find_nothing_wrong() -> None:
    server = model(clock=lambda: time.time_ns() // 1000, binlog_row_metadata="FULL")
    client = shop(server, "CREATE TABLE t (id INT PRIMARY KEY)")
    client.insert("t", (1,))
    async with serving(server) as port:
        source = source_of(port)
        async with reading(source) as read:
            await read.to_end(server)
            async with await SourceConnection.open(address_of(source.settings)) as connection:
                (registered,) = await replicas(connection) or []
                assert registered.host == "headrace/test/shop"
            wanted = Wanted(("shop",), reads_rows=True, position=read.stream.position(), captures=lambda *_: True)
            findings = await check_source(source.settings, 77, node="test", destination="shop", wanted=wanted)
            assert [one for one in findings if one.level is not Level.OK] == []
            assert len(findings) > 12
            found = await source.retention(read.stream.position())
            assert found.behind == 0
    assert server.unknown == []


async def test_a_position_is_found_by_time_and_by_gtid_and_in_the_middle_of_a_file() -> None:
    clock = Clock()
    server = model(clock=clock)
    client = shop(server, "CREATE TABLE t (id INT PRIMARY KEY)")
    for number in range(30):
        clock.micros += 60_000_000
        client.insert("t", (number,))
        if number % 5 == 0:
            server.rotate()
    history = server.history
    async with serving(server) as port:
        source = source_of(port)
        async with reading(source) as read:
            await read.to_end(server)
            stored = Stored(read.stream.position(), 1, 1, read.stream.position().last_pos)
        wanted = history[12]
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wanted.commit_us // 1_000_000))
        for where in (when, f"{wanted.file}:{wanted.offset}", f"{server.uuid}:1-12"):
            move = await source.move_by_hand(where, stored, [], [], read_schemas=False)
            async with reading(source, move.position) as read:
                assert await read.to_end(server) == truth(history)[10:]
    assert server.unknown == []


async def test_a_daemon_publishes_a_snapshot_and_every_change_that_was_committed(tmp_path: Path) -> None:
    server = model(clock=lambda: time.time_ns() // 1000)
    client = shop(server, "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(50), n INT NOT NULL DEFAULT 0)")
    client.insert("t", *((number, "first", 0) for number in range(300)))
    before = len(server.history)
    out = tmp_path / "out.jsonl"
    async with serving(server) as port:
        (tmp_path / "destinations").mkdir()
        sink = f'type = "jsonl"\npath = "{out}"'
        more = 'tls = "disabled"\n' + slowly(300)
        address = SimpleNamespace(host="127.0.0.1", port=port)
        text = destination_toml(address, "shop", sink, snapshot="initial", source=more)
        (tmp_path / "destinations" / "shop.toml").write_text(text)
        (tmp_path / "headrace.toml").write_text(
            f'[daemon]\nnode = "test"\ncheckpoint_interval = "50ms"\n[http]\nlisten = ""\n'
            f'[state]\npath = "{tmp_path}/headrace.db"\n'
        )
        settings = load(tmp_path / "headrace.toml", {"TEST_PASSWORD": "canal"})
        wiring = Wiring(settings)

        def actor(destination: Any, status: Any) -> Destination:
            return Destination(destination, settings.daemon, wiring.dependencies(destination), status)

        supervisor = Supervisor(settings, actor)
        await wiring.open()
        running = asyncio.create_task(supervisor.run())
        status = supervisor.handles["shop"].status
        try:
            async with asyncio.timeout(60):
                await until(lambda: status.state is State.SNAPSHOTTING)
                number = 0
                while status.state is not State.STREAMING or number < 400:
                    client.update("t", number * 7 % 300, {"n": number + 1})
                    client.begin()
                    if number < 400:  # with more new keys the table would grow faster than the snapshot reads it
                        client.insert("t", (1_000 + number, "second", number))
                    client.execute(f"DELETE FROM t WHERE id = {(number * 11) % 300}")
                    client.insert("t", (number * 11 % 300, "third", number))
                    client.commit()
                    number += 1
                    await asyncio.sleep(0.002)
                client.delete("t", 5)
                client.insert("t", (9_999, "last", 0))
                await until(lambda: any(row["id"] == "9999" for one in read_jsonl(out) for row in one["data"]), 0.05)
        finally:
            supervisor.request_stop()
            assert await running == 0
            await wiring.close()
    assert server.unknown == []
    messages = read_jsonl(out)
    given = [(one["gtid"], one["type"], row) for one in messages for row in one["data"] if one["gtid"]]
    committed = [
        (one.gtid, change.operation, shown(change.after or change.before))
        for one in server.history[before:]
        for change in one.changes
        if change.schema == "shop"
    ]
    assert given == committed
    assert len(given) < sum(len(one["data"]) for one in messages)  # rows of the snapshot have no GTID
    image: dict[str, dict[str, str]] = {}
    for one in messages:
        for row in one["data"]:
            if one["type"] == "DELETE":
                image.pop(row["id"], None)
            else:
                image[row["id"]] = row
    table = server.engine.catalog.schemas["shop"].tables["t"]
    assert image == {str(row[0]): shown(row) for row in table.rows.values()}


def shown(row: Any) -> dict[str, str]:
    """A row as the daemon publishes it."""
    return {name: str(value) for name, value in zip(("id", "name", "n"), row, strict=True)}
