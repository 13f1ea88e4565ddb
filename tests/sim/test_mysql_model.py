"""The model of MySQL: what the daemon's own reader makes of its binlog and its answers is what was committed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiomysql
import pymysql
import pytest

from headrace.errors import PositionLost, SourceUnreachable
from headrace.model import Position
from headrace.mysql.wire.connection import SourceConnection, address_of
from sim.mysql.accounts import NATIVE, Account
from sim.mysql.errors import ServerDown, SqlError
from sim.mysql.history import Kind
from tests.sim.reading import Clock, T, dump, model, reading, seen, serving, shop, source_of, truth, until

TYPES = (
    "CREATE TABLE kinds (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, t TINYINT, s SMALLINT UNSIGNED,"
    " m MEDIUMINT, i INT, d DOUBLE, n DECIMAL(20,4), v VARCHAR(20), w VARCHAR(300), c CHAR(5), x TEXT, l LONGTEXT,"
    " latin VARCHAR(10) CHARACTER SET latin1, b BLOB, f BINARY(4), vb VARBINARY(9), day DATE, at DATETIME(3),"
    " ts TIMESTAMP(6) NULL, e ENUM('small','it''s'), j JSON)"
)
ROWS: list[tuple[Any, ...]] = [
    (
        *(
            1,
            -128,
            65535,
            -8388608,
            -2147483648,
            -2.5e-30,
            "-1234567890123456.7890",
            "保洁",
            "长" * 300,
            "ab",
            "line\n\0",
        ),
        *("x" * 70000, "café", b"\0\1\xff", b"\1\2\0\0", b"\0\xff", "2026-11-21", "2026-11-21 23:59:59.987"),
        *("2026-11-21 03:04:05.000001", "it's", '{"a": [1, -2, 3.5, true, null, "引号"], "long": {"c": 100000}}'),
    ),
    (18446744073709551615, *[None] * 20),
    (7, 127, 0, 8388607, 2147483647, 1.0, "0.0000", "", "", "", "", "", "", b"", bytes(4), b"", *[None] * 5),
]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"binlog_row_metadata": "FULL"},
        {"binlog_transaction_compression": True},
        {"binlog_rows_query_log_events": True},
        {"auth_plugin": NATIVE, "version": "8.0.36"},
    ],
)
async def test_rows_of_all_types_are_decoded_to_what_was_committed(options: dict[str, Any]) -> None:
    server = model(**options)
    client = shop(server, TYPES)
    client.insert("kinds", *ROWS)
    client.update("kinds", 7, {"v": "changed", "at": "2026-01-01 00:00:00", "id": 8})
    client.delete("kinds", 1)
    async with serving(server) as port, reading(source_of(port)) as read:
        assert await read.to_end(server) == truth(server.history)
        assert len(read.changes) == 4  # the first row alone is larger than an event usually is
    assert server.unknown == []


async def test_a_statement_of_many_rows_is_split_into_events_of_8_kb_and_a_transaction_of_several_statements() -> None:
    server = model()
    client = shop(server, T)
    async with serving(server) as port, reading(source_of(port)) as read:
        client.begin()
        client.insert("t", *({"id": number, "v": "x" * 90} for number in range(500)))
        client.update("t", {"n": 0}, {"n": 1})
        client.execute("DELETE FROM t WHERE id >= 100 AND id < 200")
        client.commit()
        assert await read.to_end(server) == truth(server.history)
        assert len(read.changes) > 10
        assert len({change.gtid for change in read.changes}) == 1


async def test_a_row_of_more_than_16_mb_comes_in_several_packets() -> None:
    server = model()
    client = shop(server, "CREATE TABLE t (id INT PRIMARY KEY, v LONGBLOB)")
    async with serving(server) as port, reading(source_of(port)) as read:
        client.insert("t", (1, b"\7" * ((1 << 24) + 5)), (2, b""))
        assert await read.to_end(server) == truth(server.history)


async def test_what_a_rollback_undoes_is_not_in_the_binlog() -> None:
    server = model()
    client = shop(server, T)
    client.begin()
    client.insert("t", (1, "a", 0))
    client.savepoint("one")
    client.insert("t", (2, "b", 0))
    client.savepoint("two")
    client.insert("t", (3, "c", 0))
    client.rollback_to("one")
    client.insert("t", (4, "d", 0))
    client.commit()
    client.begin()
    client.insert("t", (5, "e", 0))
    client.rollback()
    with pytest.raises(SqlError, match="1062"):
        client.insert("t", (6, "f", 0), (1, "twice", 0))
    assert [key for key, _ in sorted(server.engine.catalog.schemas["shop"].tables["t"].rows.items())] == [(1,), (4,)]
    async with serving(server) as port, reading(source_of(port)) as read:
        assert await read.to_end(server) == truth(server.history)
        assert [one[4] for one in seen(read.changes)] == [(1, "a", 0), (4, "d", 0)]


async def test_rows_of_xa_transactions_count_once_they_are_committed() -> None:
    server = model()
    client = shop(server, T)
    for number, (name, phase) in enumerate([("a", ""), ("b", ""), ("c", " ONE PHASE")], 1):
        client.xa_start(name)
        client.insert("t", (number, name, 0))
        client.xa_end(name)
        if not phase:
            client.xa_prepare(name)
        else:
            client.execute(f"XA COMMIT '{name}'{phase}")
    with pytest.raises(SqlError, match="1205"):
        client.insert("t", (1, "locked", 0))
    client.insert("t", (10, "between", 0))
    client.xa_rollback("b")
    client.execute("XA COMMIT 'a'")
    with pytest.raises(SqlError, match="1397"):
        client.xa_commit("a")
    assert [one.kind for one in server.history[2:]] == [
        *(Kind.XA_PREPARE, Kind.XA_PREPARE, Kind.ROWS, Kind.ROWS, Kind.XA_ROLLBACK, Kind.XA_COMMIT)
    ]
    async with serving(server) as port, reading(source_of(port)) as read:
        assert await read.to_end(server) == truth(server.history)
        assert [one[4] for one in seen(read.changes)] == [(3, "c", 0), (10, "between", 0), (1, "a", 0)]


@pytest.mark.parametrize("metadata", ["MINIMAL", "FULL"])
async def test_statements_about_tables_are_followed(metadata: str) -> None:
    server = model(binlog_row_metadata=metadata)
    client = shop(server, T, "CREATE TABLE plain (a INT, b VARCHAR(9)) CHARACTER SET latin1")
    async with serving(server) as port, reading(source_of(port)) as read:
        client.insert("t", (1, "a", 5))
        client.insert("plain", (1, "x"), (1, "x"), (2, "y"))
        client.ddl("ALTER TABLE t ADD COLUMN at DATETIME(2) AFTER id, DROP COLUMN n, MODIFY v TEXT")
        client.update("t", 1, {"at": "2026-02-03 04:05:06.78"})
        client.ddl("ALTER TABLE t CHANGE v w VARCHAR(50) NOT NULL, ADD n DECIMAL(5,2) NOT NULL DEFAULT '1.5' FIRST")
        client.insert("t", {"id": 2, "w": "b"})
        client.ddl("ALTER TABLE shop.t RENAME COLUMN n TO m, ADD UNIQUE KEY by_w (w)")
        client.ddl("RENAME TABLE t TO u, plain TO other")
        client.insert("u", {"id": 3, "w": "c"})
        client.delete("other", {"a": 1})
        client.ddl("TRUNCATE TABLE u")
        client.insert("u", {"id": 3, "w": "again"})
        client.ddl("DROP TABLE other")
        client.ddl("CREATE TABLE IF NOT EXISTS u (id INT)")
        assert await read.to_end(server) == truth(server.history)
        columns = [[column.name for column in change.schema.columns] for change in read.changes]
        assert columns[-1] == ["m", "id", "at", "w"]
    statements = [one.sql for one in server.history if one.kind is Kind.DDL]
    assert statements[-2:] == [
        "DROP TABLE `other` /* generated by server */",
        "CREATE TABLE IF NOT EXISTS u (id INT)",
    ]
    assert server.unknown == []


async def test_binlogs_rotate_by_size_and_by_command_and_at_a_restart() -> None:
    server = model(max_binlog_size=2000)
    client = shop(server, T)
    async with serving(server) as port, reading(source_of(port)) as read:
        for number in range(40):
            client.insert("t", (number, "x" * 50, 0))
        client.execute("FLUSH BINARY LOGS")
        assert await read.to_end(server) == truth(server.history)
        assert len(server.engine.binlog.files) > 5
        position = read.stream.position()
        server.restart()
        with pytest.raises(ServerDown):
            client.insert("t", (50, "too late", 0))
        server.session().insert("shop.t", (51, "after", 0))
    async with serving(server) as port, reading(source_of(port), position) as read:
        assert await read.to_end(server) == truth(server.history)[-1:]


async def test_a_stream_resumes_by_gtid_and_by_file_and_offset() -> None:
    server = model()
    client = shop(server, T)
    for number in range(10):
        client.insert("t", (number, "before", 0))
    async with serving(server) as port:
        async with reading(source_of(port)) as read:
            await read.to_end(server)
            position = read.stream.position()
        server.rotate()
        for number in range(10, 15):
            client.insert("t", (number, "after", 0))
        assert position.gtid_set
        async with reading(source_of(port), position) as read:
            assert await read.to_end(server) == truth(server.history)[10:]
        at = server.history[6]
        async with reading(source_of(port, start=f"{at.file}:{at.offset}")) as read:
            assert await read.to_end(server) == truth(server.history)[4:]


async def test_purged_binlogs_are_refused() -> None:
    server = model()
    client = shop(server, T)
    position = Position(server.uuid, "binlog.000001", 4)
    by_gtid = Position(server.uuid, "binlog.000001", 4, f"{server.uuid}:1-2")
    client.insert("t", (1, "a", 0))
    server.rotate()
    server.rotate()
    client.execute("PURGE BINARY LOGS TO 'binlog.000003'")
    async with serving(server) as port:
        with pytest.raises(PositionLost, match="no longer has"):
            await source_of(port).open(position)
        with pytest.raises(PositionLost, match="purged 1 transactions"):
            await source_of(port).open(by_gtid)
        missing = f"the missing transactions are '{server.uuid}:1-3'"
        with pytest.raises(pymysql.err.OperationalError, match=missing):
            await dump(port, gtids=bytes(8))


@pytest.mark.parametrize(
    ("file", "offset", "text"),
    [
        ("binlog.000009", 4, "Could not find first log file name in binary log index file"),
        ("nope", 4, "Could not find first log file name in binary log index file"),
        ("binlog.000001", 2, "Client requested source to start replication from position < 4"),
        ("binlog.000001", 1_000_000, "Client requested source to start replication from position > file size"),
        ("binlog.000001", -7, "binlog truncated in the middle of event; consider out of disk space on source; the"),
    ],
)
async def test_a_dump_from_no_position_is_refused_with_error_1236(file: str, offset: int, text: str) -> None:
    server = model()
    shop(server, T)
    offset = server.engine.binlog.last.size + offset if offset < 0 else offset
    async with serving(server) as port:
        with pytest.raises(pymysql.err.OperationalError) as raised:
            await dump(port, file, offset)
    assert raised.value.args[0] == 1236
    assert raised.value.args[1].startswith(text)


async def test_a_second_reader_of_the_same_name_ends_the_first() -> None:
    server = model()
    client = shop(server, T)
    async with serving(server) as port:
        first = asyncio.create_task(dump_forever(port))
        await until(lambda: len(server.dumps) == 1)
        second = asyncio.create_task(dump_forever(port))
        with pytest.raises(pymysql.err.OperationalError, match="same server_uuid/server_id as this replica"):
            await asyncio.wait_for(first, 10)
        client.insert("t", (1, "a", 0))
        await until(lambda: len(server.dumps) == 1)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)


async def dump_forever(port: int) -> None:
    while True:
        await dump(port)


async def test_an_idle_dump_gets_heartbeats_and_a_commit_wakes_it() -> None:
    server = model()
    client = shop(server, T)
    async with serving(server) as port:
        begun = len(await dump(port))
        assert begun > server.engine.binlog.last.size  # up to the heartbeat, after a second
        async with reading(source_of(port)) as read:
            await read.to_end(server)
            client.insert("t", (1, "a", 0))
            assert await read.to_end(server) == truth(server.history)


# -- what readers of tables see ---------------------------------------------------------------------------------------


async def test_a_consistent_snapshot_shows_the_rows_of_its_moment() -> None:
    server = model()
    client = shop(server, T)
    client.insert("t", *((number, "old", 0) for number in range(0, 20, 2)))
    reader = server.session()
    reader.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    client.insert("t", (1, "new", 0))
    client.update("t", 4, {"v": "new"})
    client.update("t", 6, {"id": 7})
    client.delete("t", 8)
    old = [(number, "old", 0) for number in range(0, 20, 2)]
    assert list(reader.execute("SELECT * FROM shop.t ORDER BY id").rows) == old
    assert list(reader.execute("SELECT * FROM shop.t WHERE id > 3 AND id <= 8 ORDER BY id LIMIT 2").rows) == old[2:4]
    assert [row[0] for row in server.session().execute("SELECT id FROM shop.t").rows][:6] == [0, 1, 2, 4, 7, 10]
    client.ddl("ALTER TABLE t ADD more INT")
    with pytest.raises(SqlError, match="1412"):
        reader.execute("SELECT * FROM shop.t")
    reader.execute("COMMIT")
    assert len(reader.execute("SELECT * FROM shop.t").columns) == 4
    assert not server.engine._undo


async def test_a_commit_may_be_visible_later_than_it_is_in_the_binlog() -> None:
    server = model()
    client = shop(server, T)
    server.engine.visible_after = lambda: 0.05
    client.insert("t", (1, "a", 0))
    status = client.query("SHOW BINARY LOG STATUS")[0]
    assert status["Executed_Gtid_Set"] == f"{server.uuid}:1-2"
    assert int(status["Position"]) == server.engine.binlog.last.size
    assert client.query("SELECT * FROM t") == []
    await until(lambda: client.query("SELECT id FROM t") == [{"id": 1}])
    assert client.query("SELECT @@GLOBAL.gtid_executed AS g") == [{"g": f"{server.uuid}:1-3"}]


async def test_a_change_of_a_row_that_another_transaction_has_changed_is_refused() -> None:
    server = model()
    client, other = shop(server, T), server.session()
    client.insert("t", (1, "a", 0))
    client.begin()
    client.update("t", 1, {"v": "b"})
    with pytest.raises(SqlError, match="1205"):
        other.update("shop.t", 1, {"v": "c"})
    with pytest.raises(SqlError, match="1205"):
        other.ddl("DROP TABLE shop.t")
    assert other.query("SELECT v FROM shop.t") == [{"v": "a"}]
    assert client.query("SELECT v FROM t") == [{"v": "b"}]
    client.rollback()
    assert other.update("shop.t", 1, {"v": "c"}) == 1


async def test_a_statement_on_a_connection_waits_for_the_lock_of_another() -> None:
    server = model()
    client = shop(server, T)
    client.insert("t", (1, "a", 0))
    async with serving(server) as port, await SourceConnection.open(address_of(source_of(port).settings)) as other:
        await other.query("SET SESSION innodb_lock_wait_timeout = 1")
        client.begin()
        client.update("t", 1, {"n": 5})
        waiting = asyncio.create_task(other.change("UPDATE shop.t SET n = n + 1 WHERE id = 1"))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        client.commit()
        assert await waiting == 1
        assert client.get("t", 1) == (1, "a", 6)
        client.execute("BEGIN")
        client.execute("SELECT * FROM t WHERE id = 1 FOR UPDATE")
        with pytest.raises(Exception, match="Lock wait timeout exceeded"):
            await other.change("DELETE FROM shop.t")
        client.rollback()
        assert await other.change("DELETE FROM shop.t") == 1


# -- connections ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plugin", ["caching_sha2_password", NATIVE])
async def test_a_wrong_password_is_refused_with_error_1045(plugin: str) -> None:
    server = model(auth_plugin=plugin)
    async with serving(server) as port:
        good = await aiomysql.connect(host="127.0.0.1", port=port, user="canal", password="canal")
        async with good.cursor() as cursor:
            await cursor.execute("SELECT CURRENT_USER(), 1 + 1, NULL, 1.50, 2e0, x'00ff'")
            assert await cursor.fetchall() == (("canal@%", 2, None, pytest.approx(1.5), 2.0, b"\0\xff"),)
        await good.ensure_closed()
        for user in ("canal", "nobody"):
            with pytest.raises(pymysql.err.OperationalError, match=f"Access denied for user '{user}'") as raised:
                await aiomysql.connect(host="127.0.0.1", port=port, user=user, password="wrong")
            assert raised.value.args[0] == 1045


async def test_an_account_without_privileges_is_refused_by_name() -> None:
    server = model(accounts=[Account("canal", "canal", (), {"shop": ("SELECT",)})])
    shop(server, T)
    async with serving(server) as port:
        async with await SourceConnection.open(address_of(source_of(port).settings)) as connection:
            assert await connection.query("SELECT * FROM shop.t") == []
            for sql, errno, text in (
                ("SHOW BINARY LOG STATUS", 1227, r"the SUPER, REPLICATION CLIENT privilege\(s\)"),
                ("SHOW REPLICAS", 1227, r"the REPLICATION SLAVE privilege\(s\)"),
                ("INSERT INTO shop.t VALUES (1, '', 0)", 1142, "INSERT command denied to user 'canal'@"),
                ("SELECT 1 FROM headrace.heartbeat", 1142, "for table 'heartbeat'"),
                ("CREATE DATABASE headrace", 1044, "to database 'headrace'"),
            ):
                with pytest.raises(Exception, match=text) as raised:
                    await connection.query(sql)
                cause = raised.value.__cause__
                assert isinstance(cause, pymysql.err.MySQLError)
                assert cause.args[0] == errno
        with pytest.raises(Exception, match="REPLICATION SLAVE"):
            await source_of(port).open(None)


async def test_an_unknown_statement_is_error_1064_and_is_recorded() -> None:
    server = model()
    async with serving(server) as port, await SourceConnection.open(address_of(source_of(port).settings)) as connection:
        with pytest.raises(Exception, match="1064"):
            await connection.query("SHOW MASTER STATUS")
        with pytest.raises(Exception, match="1193"):
            await connection.query("SELECT @@global.no_such")
    assert server.unknown == ["SHOW MASTER STATUS", "SELECT @@global.no_such"]


async def test_faults_of_connections() -> None:
    server = model()
    client = shop(server, T)
    async with serving(server) as port:
        async with reading(source_of(port)) as read:
            await read.to_end(server)
            (connection,) = [one for one in server.connections if one.dump is not None]
            connection.cut(after=100)
            client.insert("t", (1, "x" * 90, 0))
            with pytest.raises(Exception, match="closed the connection"):
                await read.until(lambda: False)
            assert read.changes == []
        async with reading(source_of(port)) as read:
            await read.to_end(server)
            (connection,) = [one for one in server.connections if one.dump is not None]
            client.execute(f"KILL {connection.thread}")
            with pytest.raises(Exception, match="closed the connection"):
                await read.until(lambda: False)
        server.refuse = SqlError(1040, "Too many connections")
        with pytest.raises(SourceUnreachable, match="Too many connections"):
            await source_of(port).open(None)
        server.refuse = None
        server.delay = lambda: 0.03
        loop = asyncio.get_running_loop()
        async with await SourceConnection.open(address_of(source_of(port).settings)) as other:
            begun = loop.time()
            await other.query("SELECT 1")
            assert loop.time() - begun >= 0.03


# -- the same again ---------------------------------------------------------------------------------------------------

SCRIPT = """
import hashlib
from tests.sim.reading import model
server = model(7, binlog_row_metadata="FULL")
client = server.session()
client.ddl("CREATE DATABASE shop")
client.use("shop")
client.ddl("CREATE TABLE t (id INT PRIMARY KEY, e ENUM('a','b'), v VARCHAR(9), UNIQUE KEY (v))")
for number in range(50):
    client.insert("t", (number, "ab"[number % 2], str(number)))
    client.update("t", number // 2, {"v": f"v{number}"})
server.crash(lose=3)
server.start()
print(hashlib.sha256(b"".join(file.as_bytes() for file in server.engine.binlog.files)).hexdigest(), server.uuid)
"""


def test_the_same_calls_give_the_same_bytes_under_any_hash_seed() -> None:
    root, found = Path(__file__).parents[2], []
    for seed in ("0", "1"):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{root}:{root}/daemon:{root}/common"}
        done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, env=env, capture_output=True, check=True)
        found.append(done.stdout)
    assert found[0] == found[1]


def test_a_stopped_clock_gives_increasing_numbers() -> None:
    clock = Clock()
    server = model(clock=clock)
    client = shop(server, T)
    client.insert("t", (1, "a", 0))
    assert [one.number for one in server.history] == [1, 2, 3]
