"""The same statements on a real MySQL and on the model: the same binlog byte by byte, apart from times and the numbers
of threads, the same results, and the same errors."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from typing import Any

import pymysql
import pytest

from devstack import Stack
from headrace.errors import SourceError
from headrace.mysql.wire.connection import SourceConnection, address_of
from sim.mysql import events
from sim.mysql.accounts import Account
from sim.mysql.errors import SqlError
from sim.mysql.gtids import Gtids
from sim.mysql.server import Server
from sim.mysql.session import Session
from tests.sim.reading import CANAL, dump, model, reading, seen, serving, source_of, truth
from tests.sim.test_mysql_bytes import plain
from tests.sim.test_mysql_model import TYPES

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def real(stack: Stack) -> Any:
    return stack.mysql(name="conformance", server_id=31)


@pytest.fixture
def root(real: Any) -> Iterator[Any]:
    """A session of root on the real server, whose binlogs and GTIDs begin with the test."""
    with closing(pymysql.connect(**real.connection("root"), autocommit=True, charset="utf8mb4")) as connection:
        with connection.cursor() as cursor:
            cursor.execute("DROP DATABASE IF EXISTS shop")
            cursor.execute("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
            cursor.execute("RESET BINARY LOGS AND GTIDS")
        yield connection


@pytest.fixture
async def twin(real: Any, root: Any) -> AsyncIterator[tuple[Server, Session, int]]:
    """A model with the name of the real server, a session on it, and its port."""
    with root.cursor() as cursor:
        cursor.execute("SELECT @@server_uuid, @@version")
        uuid, version = cursor.fetchone()
    names = {"uuid": uuid, "version": version, "prefix": "mysql-bin", "server_id": 31}
    server = model(**names, accounts=[CANAL, Account("root", real.root_password)])
    server.reset()  # as the real one: its first binlog does not begin with the server
    async with serving(server) as port:
        yield server, server.session(), port


def run(root: Any, client: Session, *statements: str) -> None:
    """Runs statements on both."""
    with root.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
            client.execute(statement)


async def raw(port: int, file: str) -> list[bytes]:
    """The events of a file as a dump gives them."""
    data, found, at = await dump(port, file, server_id=4711), [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 3], "little")
        found.append(data[at + 5 : at + 4 + size])
        at += 4 + size
    return found


async def same_binlogs(real: Any, server: Server, port: int) -> None:
    """Compares every event of every file."""
    for file in server.engine.binlog.names:
        theirs, ours = await raw(real.port, file), await raw(port, file)
        for one, two in zip(theirs, ours, strict=False):
            assert plain(two) == plain(one)
        assert len(ours) == len(theirs)


T = "CREATE TABLE shop.t (id INT PRIMARY KEY, v VARCHAR(100), n INT NOT NULL DEFAULT 0)"
KINDS = TYPES.replace("TABLE kinds", "TABLE shop.kinds")
VALUES = (
    "(1, -128, 65535, -8388608, -2147483648, -2.5e-30, -1234567890123456.7890, '保洁', REPEAT('长', 300), 'ab',"
    " 'line\\n\\0', REPEAT('x', 70000), 'café', x'0001ff', x'01020000', x'00ff', '2026-11-21',"
    " '2026-11-21 23:59:59.987', '2026-11-21 03:04:05.000001', 'it''s',"
    ' \'{"a": [1, -2, 3.5, true, null, "引号"], "long": {"c": 100000}}\')',
    "(18446744073709551615" + ", NULL" * 20 + ")",
    "(7, 127, 0, 8388607, 2147483647, 1, 0, '', '', '', '', '', '', '', '', ''" + ", NULL" * 5 + ")",
)


@pytest.mark.parametrize("metadata", ["MINIMAL", "FULL"])
async def test_rows_of_all_types_are_the_same_bytes_and_the_same_changes(
    real: Any, root: Any, twin: tuple[Server, Session, int], metadata: str
) -> None:
    server, client, port = twin
    run(root, client, f"SET GLOBAL binlog_row_metadata = '{metadata}'")
    with closing(pymysql.connect(**real.connection("root"), autocommit=True, charset="utf8mb4")) as root:
        client = server.session()
        run(root, client, "SET time_zone = '+00:00'", "CREATE DATABASE shop", KINDS)
        run(root, client, *(f"INSERT INTO shop.kinds VALUES {values}" for values in VALUES))
        run(root, client, "UPDATE shop.kinds SET v = 'changed', at = '2026-01-01 00:00:00', id = 8 WHERE id = 7")
        run(root, client, "UPDATE shop.kinds SET v = 'changed' WHERE id = 8", "DELETE FROM shop.kinds WHERE id < 9")
    await same_binlogs(real, server, port)
    found = []
    for one in (real.port, port):
        async with reading(source_of(one, tls="preferred")) as read:
            found.append(await read.to_end(server))
    assert found[0] == found[1] == truth(server.history)


async def test_transactions_and_statements_about_tables_are_the_same_bytes(
    real: Any, root: Any, twin: tuple[Server, Session, int]
) -> None:
    server, client, port = twin
    run(root, client, "CREATE DATABASE shop", "USE shop", T, "CREATE TABLE plain (a INT, b VARCHAR(9)) CHARSET latin1")
    run(root, client, "BEGIN", "INSERT INTO t VALUES (1, 'a', 0), (2, 'b', 0)", "SAVEPOINT one")
    run(root, client, "UPDATE t SET n = n + 1", "SAVEPOINT `two`", "DELETE FROM t WHERE id = 1", "ROLLBACK TO one")
    run(root, client, "INSERT INTO shop.plain VALUES (1, 'x'), (1, 'x')", "COMMIT")
    run(root, client, "BEGIN", "SAVEPOINT alone", "COMMIT", "BEGIN", "INSERT INTO t (id) VALUES (9)", "ROLLBACK")
    run(root, client, "XA START 'a'", "INSERT INTO t (id) VALUES (3)", "XA END 'a'", "XA PREPARE 'a'", "XA COMMIT 'a'")
    run(root, client, "XA START 'b', 'q', 7", "UPDATE t SET v = 'xa'", "XA END 'b', 'q', 7", "XA PREPARE 'b', 'q', 7")
    run(root, client, "XA ROLLBACK 'b', 'q', 7", "XA START 'c'", "DELETE FROM t WHERE id = 3", "XA END 'c'")
    run(root, client, "XA COMMIT 'c' ONE PHASE", "UPDATE t SET v = v")
    run(root, client, "ALTER TABLE t ADD COLUMN at DATETIME(2) AFTER id, DROP COLUMN n, MODIFY v TEXT")
    run(
        root,
        client,
        "INSERT INTO t VALUES (4, '2026-02-03 04:05:06.78', 'after')",
        "CREATE TABLE IF NOT EXISTS t (id INT)",
    )
    run(root, client, "RENAME TABLE t TO u, plain TO other", "DELETE FROM other LIMIT 1", "TRUNCATE TABLE u")
    run(root, client, "DROP TABLE other", "DROP TABLE IF EXISTS shop.none", "DROP TABLE shop.u", "FLUSH BINARY LOGS")
    run(root, client, "CREATE TABLE IF NOT EXISTS t (id INT PRIMARY KEY)", "INSERT IGNORE INTO t VALUES (1), (1), (2)")
    run(root, client, "INSERT INTO t VALUES (2) ON DUPLICATE KEY UPDATE id = id + 5", "REPLACE INTO t VALUES (1), (3)")
    run(root, client, "CREATE TABLE two (id INT PRIMARY KEY, v INT UNIQUE, n INT)", "INSERT INTO two VALUES (1, 1, 0)")
    run(root, client, "REPLACE INTO two VALUES (1, 2, 0), (3, 2, 1)", "REPLACE INTO two VALUES (3, 2, 1)")
    run(root, client, "CREATE DATABASE IF NOT EXISTS shop", "SAVEPOINT outside", "DROP DATABASE shop")
    await same_binlogs(real, server, port)


async def test_large_and_compressed_transactions_are_split_in_the_same_way(
    real: Any, root: Any, twin: tuple[Server, Session, int]
) -> None:
    server, client, port = twin
    run(root, client, "CREATE DATABASE shop", T, "SET SESSION binlog_rows_query_log_events = ON")
    rows = ", ".join(f"({number}, '{'x' * (number % 90)}', {number})" for number in range(700))
    run(
        root,
        client,
        f"INSERT INTO shop.t VALUES {rows}",
        "UPDATE shop.t SET n = n + 1",
        "DELETE FROM shop.t WHERE n < 300",
    )
    await same_binlogs(real, server, port)
    run(root, client, "SET SESSION binlog_transaction_compression = ON", "UPDATE shop.t SET n = 0")
    assert [one[4] for one in (await raw(real.port, "mysql-bin.000001"))[-2:]] == [events.GTID, events.PAYLOAD]
    found = []
    for one in (real.port, port):
        async with reading(source_of(one, tls="preferred")) as read:
            last = server.engine.binlog.last
            await read.until(lambda read=read: len(seen(read.changes)) == len(truth(server.history)))  # type: ignore[misc]
            found.append(seen(read.changes))
    assert found[0] == found[1] == truth(server.history)
    assert last.events[-1][4] == events.PAYLOAD


REFUSED = (
    "INSERT INTO shop.t VALUES (1, 'again', 0)",
    "INSERT INTO shop.t VALUES (2)",
    "INSERT INTO shop.t (id, v, n) VALUES (2, NULL, NULL)",
    "INSERT INTO shop.t (v) VALUES ('no id')",
    "INSERT INTO shop.t (id, none) VALUES (2, 3)",
    "INSERT INTO shop.t (id, v) VALUES (2, REPEAT('x', 101))",
    "INSERT INTO shop.t (id) VALUES (2147483648)",
    "INSERT INTO shop.none VALUES (1)",
    "SELECT * FROM none.t",
    "SELECT none FROM shop.t",
    "SELECT * FROM shop.t WHERE none = 1",
    "SELECT * FROM t",
    "SELECT @@global.no_such",
    "SET SESSION no_such = 1",
    "SHOW MASTER STATUS",
    "SHOW SLAVE STATUS",
    "SHOW SLAVE HOSTS",
    "CREATE DATABASE shop",
    "DROP DATABASE none",
    "CREATE TABLE shop.t (id INT)",
    "DROP TABLE shop.none",
    "ALTER TABLE shop.t ADD v INT",
    "ALTER TABLE shop.t DROP none",
    "RENAME TABLE shop.t TO shop.by_key",
    "ROLLBACK TO none",
    "RELEASE SAVEPOINT none",
    "XA COMMIT 'none'",
    "XA END 'none'",
    "INSERT INTO shop.by_key VALUES (2, 'A', 0)",
    "UPDATE shop.by_key SET v = 'a' WHERE id = 5",
    "PURGE BINARY LOGS TO 'none'",
    "KILL 999999",
    "USE none",
)


_XA_ACTIVE = ("XA START 'a'", "BEGIN", "COMMIT", "ROLLBACK", "XA PREPARE 'a'", "XA COMMIT 'a'", "XA ROLLBACK 'a'")
_XA_IDLE = (
    "INSERT INTO shop.t VALUES (9)",
    "SELECT * FROM shop.t",
    "SELECT 1",
    "SAVEPOINT y",
    "ROLLBACK TO y",
    "BEGIN",
)
XA = (
    *("XA END 'n'", "XA PREPARE 'n'", "XA COMMIT 'n'", "XA COMMIT 'n' ONE PHASE", "XA ROLLBACK 'n'"),
    *("XA START 'a'", *_XA_ACTIVE, "XA COMMIT 'a' ONE PHASE", "XA END 'b'", "XA PREPARE 'b'", "XA ROLLBACK 'b'"),
    *("CREATE TABLE shop.u (id INT)", "SAVEPOINT x", "ROLLBACK TO x", "SELECT * FROM shop.t", "SET autocommit = 1"),
    *("XA END 'a'", "XA END 'a'", *_XA_IDLE, "COMMIT", "ROLLBACK", "XA START 'c'", "XA COMMIT 'a'", "XA PREPARE 'b'"),
    *("XA ROLLBACK 'b'", "XA COMMIT 'b' ONE PHASE", "CREATE TABLE shop.u (id INT)", "SET @x = 1", "XA ROLLBACK 'a'"),
    *("XA START 'a'", "INSERT INTO shop.t VALUES (1)", "XA END 'a'", "XA PREPARE 'a'", "XA START 'a'", "XA END 'a'"),
    *("XA START 'b'", "XA COMMIT 'a'", "XA END 'b'", "XA COMMIT 'a'", "XA ROLLBACK 'b'", "XA COMMIT 'a' ONE PHASE"),
    *("XA COMMIT 'a'", "BEGIN", "XA START 'd'", "XA COMMIT 'd'", "INSERT INTO shop.t VALUES (2)", "COMMIT"),
    *("SET autocommit = 0", "XA START 'd'", "XA END 'd'", "XA ROLLBACK 'd'", "INSERT INTO shop.t VALUES (3)"),
    *("XA START 'd'", "COMMIT", "SET autocommit = 1", "XA START 'e'", "XA END 'e'", "XA PREPARE 'e'"),
    *("XA COMMIT 'e'", "XA START 'f'", "XA END 'f'", "XA COMMIT 'f' ONE PHASE", "XA RECOVER"),
)


async def test_xa_statements_are_refused_in_the_same_states(
    real: Any, root: Any, twin: tuple[Server, Session, int]
) -> None:
    _, client, _ = twin
    run(root, client, "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
    for number, statement in enumerate(XA):
        said: list[Any] = [None, None]
        try:
            with root.cursor() as cursor:
                cursor.execute(statement)
        except pymysql.err.MySQLError as error:
            said[0] = error.args
        try:
            client.execute(statement)
        except SqlError as refused:
            said[1] = refused.errno, refused.text
        assert said[1] == said[0], (number, statement)


async def test_refusals_have_the_same_numbers_and_texts(
    real: Any, root: Any, twin: tuple[Server, Session, int]
) -> None:
    _, client, _ = twin
    run(root, client, "CREATE DATABASE shop", T, "INSERT INTO shop.t VALUES (1, 'a', 0)")
    run(root, client, "CREATE TABLE shop.by_key (id INT PRIMARY KEY, v VARCHAR(9), n INT, UNIQUE KEY by_v (v, n))")
    run(root, client, "INSERT INTO shop.by_key VALUES (1, 'a', 0), (5, 'e', 0)")
    for statement in REFUSED:
        said: list[Any] = []
        with root.cursor() as cursor, pytest.raises(pymysql.err.MySQLError) as raised:
            cursor.execute(statement)
        said.append(raised.value.args)
        with pytest.raises(SqlError) as refused:
            client.execute(statement)
        said.append((refused.value.errno, refused.value.text))
        if said[0][0] == 1064:
            said = [one[0] for one in said]
        assert said[1] == said[0], statement


SELECTED = (
    "SELECT * FROM shop.kinds ORDER BY id",
    "SELECT id, d - 0e0, CAST(e AS UNSIGNED), n FROM shop.kinds WHERE id > 1 ORDER BY id LIMIT 1",
    "SELECT id FROM shop.kinds WHERE v = 'CHANGED' OR e IN ('small', 2) AND NOT n IS NULL ORDER BY id DESC",
    "SELECT COUNT(*) FROM shop.kinds",
    "SELECT 1, 1.50, 1e0, 'a', x'00ff', NULL, 1 + 1, 2 * 1.5, 7 / 2, 'b' = 'B', 1 IN (2, NULL)",
    "SELECT GREATEST(1, 7, 3), COALESCE(NULL, 2), CONCAT('a', 1)",
    "SELECT CAST(1.5 AS UNSIGNED), CAST('7x' AS SIGNED), CONVERT(0x616263 USING utf8mb4), _latin1 x'e9'",
    "SELECT @@global.read_only AS r, @@global.gtid_mode, @@GLOBAL.server_uuid, @@global.gtid_executed",
    "SELECT 2/3, 1.50/3, 1.5*2.25, 1.5e0/2, 10/0, 'b' = 'B', 'a' <> 'b', 'É' IN ('e')",
    "SELECT COALESCE(NULL, NULL), COALESCE(NULL, 1.5), COALESCE('a', 2), IFNULL(NULL, 'x'), _latin1 'abc'",
    "SELECT CURRENT_USER() AS u, DATABASE(), ROW_COUNT()",
    "SHOW BINARY LOG STATUS",
    "SHOW BINARY LOGS",
    "SHOW REPLICAS",
    "SHOW REPLICA STATUS",
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'server_id', 'binlog_format', 'binlog_row_image')",
    "(SELECT 1 FROM shop.kinds LIMIT 0) UNION ALL (SELECT 1 FROM shop.t LIMIT 0)",
    "SELECT TABLE_SCHEMA AS s, TABLE_NAME AS t, TABLE_TYPE AS kind FROM information_schema.TABLES"
    " WHERE TABLE_TYPE IN ('BASE TABLE', 'SEQUENCE') AND TABLE_SCHEMA = 'shop' ORDER BY TABLE_NAME",
    "SELECT TABLE_NAME AS t, COLUMN_NAME AS name, COLUMN_TYPE AS type, IS_NULLABLE AS nullable,"
    " CHARACTER_SET_NAME AS charset, COLUMN_DEFAULT AS value, COLUMN_COMMENT AS comment, EXTRA AS extra,"
    " ORDINAL_POSITION AS ordinal FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'shop'"
    " ORDER BY TABLE_NAME, ORDINAL_POSITION",
    "SELECT TABLE_NAME AS t, INDEX_NAME AS Key_name, NON_UNIQUE AS Non_unique, COLUMN_NAME AS Column_name,"
    " SUB_PART AS Sub_part, SEQ_IN_INDEX AS Seq_in_index FROM information_schema.STATISTICS"
    " WHERE TABLE_SCHEMA = 'shop' ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX",
    "SELECT TABLE_NAME AS t, TABLE_COLLATION AS collation, TABLE_TYPE AS kind FROM information_schema.TABLES"
    " WHERE TABLE_SCHEMA = CONVERT(0x73686f70 USING utf8mb4) ORDER BY TABLE_NAME",
    "SELECT SCHEMA_NAME AS s, DEFAULT_CHARACTER_SET_NAME AS charset FROM information_schema.SCHEMATA"
    " WHERE SCHEMA_NAME IN ('shop', 'mysql', 'sys') ORDER BY SCHEMA_NAME",
    "SHOW CREATE TABLE shop.t",
)


async def test_results_have_the_same_columns_and_values(
    real: Any, root: Any, twin: tuple[Server, Session, int]
) -> None:
    _, client, port = twin
    run(root, client, "SET time_zone = '+00:00'", "CREATE DATABASE shop", T, KINDS, "CREATE TABLE shop.plain (a INT)")
    run(root, client, *(f"INSERT INTO shop.kinds VALUES {values}" for values in VALUES))
    run(root, client, "UPDATE shop.kinds SET v = 'changed' WHERE id = 7")
    login = {"host": "127.0.0.1", "user": "root", "password": real.root_password, "charset": "utf8mb4"}
    connected = await asyncio.to_thread(pymysql.connect, port=port, autocommit=True, **login)
    with closing(connected) as other:
        for statement in ("SET time_zone = '+00:00'", *SELECTED):
            theirs = _asked(root, statement)
            ours = await asyncio.to_thread(_asked, other, statement)
            if statement == "SHOW REPLICA STATUS":  # the model has the columns that the daemon reads
                names = [one[0] for one in ours[0]]
                theirs = sorted((one for one in theirs[0] if one[0] in names), key=lambda one: names.index(one[0])), ()
            assert ours[1] == theirs[1], statement
            assert ours[0] == theirs[0], statement


def _asked(connection: Any, statement: str) -> tuple[list[tuple[Any, ...]], Sequence[Any]]:
    """The names and types of columns, and the rows."""
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return [(one[0], one[1]) for one in cursor.description or ()], cursor.fetchall()


async def test_bad_dumps_end_with_the_same_errors(real: Any, root: Any, twin: tuple[Server, Session, int]) -> None:
    server, client, port = twin
    run(root, client, "CREATE DATABASE shop", T, "INSERT INTO shop.t VALUES (1, 'a', 0)", "FLUSH BINARY LOGS")
    run(root, client, "INSERT INTO shop.t VALUES (2, 'b', 0)")
    first, last = server.engine.binlog.files
    places = [("none.000001", 4), ("mysql-bin.000009", 4), ("", 3), (last.name, 0), (last.name, last.size + 1)]
    places += [(first.name, first.size + 1), (first.name, first.size - 7), (last.name, last.size - 3)]
    places += [(last.name, last.offsets[2] + 5), (first.name, first.offsets[4] + 2)]
    for file, offset in places:
        said = [await _refusal(one, file, offset) for one in (real.port, port)]
        assert said[1] == said[0], (file, offset)
    ahead = Gtids(f"{server.uuid}:1-99").encode()
    unknown = Gtids("11111111-2222-3333-4444-555555555555:1-5").encode()
    run(root, client, f"PURGE BINARY LOGS TO '{last.name}'")
    for gtids in (ahead, unknown, bytes(8), Gtids(f"{server.uuid}:1-2").encode()):
        said = [await _refusal(one, "", 4, gtids) for one in (real.port, port)]
        assert said[1] == said[0]


async def _refusal(port: int, file: str, offset: int, gtids: bytes | None = None) -> Any:
    with pytest.raises(pymysql.err.MySQLError) as raised:
        await dump(port, file, offset, gtids=gtids, server_id=4712)
    return raised.value.args


async def test_a_dump_by_gtid_gives_the_same_events(real: Any, root: Any, twin: tuple[Server, Session, int]) -> None:
    server, client, port = twin
    run(root, client, "CREATE DATABASE shop", T)
    run(root, client, *(f"INSERT INTO shop.t (id) VALUES ({number})" for number in range(6)), "FLUSH BINARY LOGS")
    run(root, client, *(f"DELETE FROM shop.t WHERE id = {number}" for number in range(6)))
    for has in ("1-3", "1-8", "1-10", "1-14", "1-3:6:9-11"):
        given = Gtids(f"{server.uuid}:{has}").encode()
        found = []
        for one in (real.port, port):
            data, at = await dump(one, gtids=given, server_id=4713), 0
            kinds = []
            while at < len(data):
                size = int.from_bytes(data[at : at + 3], "little")
                event = data[at + 5 : at + 4 + size]
                kinds.append((event[4], int.from_bytes(event[13:17], "little")))
                at += 4 + size
            found.append(kinds)
        assert found[1] == found[0], has


async def test_a_second_reader_and_a_refused_login_get_the_same_errors(
    real: Any, root: Any, twin: tuple[Server, Session, int]
) -> None:
    _, _, port = twin
    said = []
    for one in (real.port, port):
        settings = source_of(one, tls="preferred", password="wrong").settings
        with pytest.raises(Exception, match="Access denied") as raised:
            await SourceConnection.open(address_of(settings))
        said.append(str(raised.value).partition("Access denied")[2])
    assert said[0] == said[1]


async def test_a_refused_login_over_tls_leaves_no_socket_that_waits_for_the_server(real: Any) -> None:
    settings = source_of(real.port, tls="required", password="wrong").settings
    before = open_sockets()
    with pytest.raises(SourceError, match="Access denied"):
        await SourceConnection.open(address_of(settings))
    await asyncio.sleep(0)
    assert open_sockets() <= before


def open_sockets() -> set[str]:
    found = set()
    for file in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the folder's own, and one that another thread closes
            found.add(os.readlink(f"/proc/self/fd/{file}"))
    return {name for name in found if name.startswith("socket:")}
