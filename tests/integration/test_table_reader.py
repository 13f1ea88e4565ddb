"""Tables read chunk by chunk from real servers: every key pages through once, and a read is placed in the binlog so
that nothing is missed and nothing is seen too early."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from headrace.errors import GrantMissing, SourceError, SourceMisconfigured
from headrace.model import ABSENT, Position, TableSchema
from headrace.mysql.snapshot.reader import MysqlTableReader
from headrace.ports.tables import ChunkRequest, TableChanged, TableReader
from tests.binlogs import connect, declared, decode, new_file
from tests.support import eventually
from tests.table_reads import chunks_of, reader_of, rows_of
from tests.type_bench import Bench, mariadb_only, mysql_only

pytestmark = pytest.mark.server

Reading = tuple[MysqlTableReader, Position]


def table(bench: Bench, columns: str, *values: str, more: str = "") -> TableSchema:
    """Makes a table anew, with a row for each of the values."""
    bench.run("DROP TABLE IF EXISTS t", f"CREATE TABLE t ({columns}) DEFAULT CHARSET utf8mb4 {more}")
    for value in values:
        bench.run(f"INSERT INTO t VALUES ({value})")
    return declared(bench.cursor, "types", "t")


def numbered(bench: Bench, count: int) -> TableSchema:
    """A table of so many rows with the keys 0, 1, 2 and so on."""
    made = table(bench, "id INT PRIMARY KEY, v VARCHAR(100)")
    bench.run("INSERT INTO t VALUES " + ", ".join(f"({i}, REPEAT('v', 100))" for i in range(count)))
    return made


def end_of(bench: Bench) -> tuple[str, int]:
    bench.cursor.execute("SHOW BINARY LOGS")
    file, size = bench.cursor.fetchall()[-1][:2]
    return file, int(size)


@pytest.fixture
async def reading(bench: Bench) -> AsyncIterator[Callable[..., Any]]:
    made: list[MysqlTableReader] = []

    async def open_one(**settings: Any) -> Reading:
        reader, end = await reader_of(bench.server, **settings)
        made.append(reader)
        return reader, end

    yield open_one
    for reader in made:
        await reader.close()


KEYS = {
    "INT": ["-2147483648", "-5", "0", "7", "2147483647"],
    "BIGINT UNSIGNED": ["0", "9223372036854775807", "9223372036854775808", "18446744073709551615"],
    "TINYINT ZEROFILL": ["0", "7", "42", "200"],
    "DECIMAL(30,10)": ["-12345678901234567890.5", "-0.0000000001", "0", "0.5", "12345678901234567890.0000000001"],
    "FLOAT": ["-3.4028234e38", "-1.1", "0", "0.1", "1.1", "1.2", "16777216", "3.14159274"],
    "DOUBLE": ["-1e300", "-0.1", "0", "0.1", "0.30000000000000004", "0.3", "1e22", "1.7976931348623157e308"],
    "DATE": ["'0000-00-00'", "'2026-00-00'", "'2026-11-21'", "'2026-11-00'", "'9999-12-31'"],
    "DATETIME(6)": ["'0000-00-00'", "'2026-11-21 01:02:03.000004'", "'2026-11-21 01:02:03.000005'", "'9999-12-31'"],
    "TIMESTAMP(3)": ["0", "'1970-01-01 00:00:01'", "'2026-03-29 01:30:00.499'", "'2026-03-29 01:30:00.500'"],
    "TIME(2)": ["'-838:59:59'", "'-00:00:00.50'", "'00:00:00'", "'00:00:00.01'", "'838:59:59'"],
    "YEAR": ["'0000'", "1901", "2026", "2155"],
    "ENUM('b','a','中','')": ["0", "1", "2", "3", "4"],
    "SET('x','y','z')": ["0", "1", "2", "5", "7"],
    "BIT(64)": ["0", "1", "256", "9223372036854775808", "18446744073709551615"],
    "VARCHAR(20)": ["''", "'a'", "'B'", "'ba'", "'é'", "'中文'", "'北京'", "'😀'", r"'quote\'s \\ back'", "'%'"],
    "VARCHAR(20) COLLATE utf8mb4_bin": ["''", "'a'", "'A'", "'B'", "'中文'", "'北京'", "'中'"],
    "CHAR(8) CHARACTER SET latin1": ["''", "'a'", "'é'", "'Z'", "'zz'"],
    "VARCHAR(20) CHARACTER SET gbk": ["'中文'", "'北京'", "'a'", "'B'", "'家庭'"],
    "VARCHAR(20) CHARACTER SET utf16": ["''", "'中文'", "'a'", "'B'", "'😀'"],
    "VARCHAR(20) CHARACTER SET utf8mb3": ["''", "'中文'", "'a'", "'B'"],
    "VARBINARY(8)": ["''", "0x00", "0x0000", "0x6100", "0x61", "0x00FF80", "0x5C27", "0xFF"],
    "BINARY(4)": ["''", "0x01", "0x6100", "0x6161", "0xFFFFFFFF"],
}
MYSQL_KEYS = {
    "VARCHAR(20) CHARACTER SET gb18030": ["'中文'", "'北京'", "'a'", "'B'", "'家庭'"],
    "VARCHAR(20) COLLATE utf8mb4_zh_0900_as_cs": ["'中文'", "'北京'", "'a'", "'A'", "'家庭'", "''"],
}
MARIADB_KEYS = {
    "UUID": ["'00000000-0000-0000-0000-000000000000'", "'21111111-2222-1333-8444-555555555555'", "UUID()"],
    "INET6": ["'::'", "'::1'", "'2001:db8::1'", "'ffff::'"],
    "INET4": ["'0.0.0.0'", "'10.0.0.1'", "'255.255.255.255'"],
}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("each", [1, 2], ids=["alone", "first_of_two"])
async def test_every_type_of_key_pages_through_each_row_once_in_its_order(bench: Bench, each: int, rows: int) -> None:
    keys = KEYS | (MARIADB_KEYS if bench.mariadb else MYSQL_KEYS if bench.describes else {})
    reader, _ = await reader_of(bench.server)
    for kind, values in keys.items():
        primary = "k" if each == 1 else "k, m"
        made = table(bench, f"k {kind} NOT NULL, m INT, n INT, PRIMARY KEY ({primary})")
        rest = [(value, m) for value in values for m in range(each)]
        if each == 2:
            rest = [(value, m) for value, m in rest if "()" not in value]  # UUID() is another one each time
        bench.run(f"INSERT INTO t VALUES {', '.join(f'({value}, {m}, {n})' for n, (value, m) in enumerate(rest))}")
        bench.cursor.execute(f"SELECT n FROM t ORDER BY {primary}")
        wanted = [int(n) for (n,) in bench.cursor.fetchall()]
        assert len(wanted) == len(rest), kind
        _, end = await reader_of(bench.server)
        chunks = await chunks_of(reader, ChunkRequest(made, end, rows=rows))
        assert [row[2] for _, got in chunks for row in got] == wanted, kind
        assert all(len(got) <= rows for _, got in chunks)
    await reader.close()


COMPOSITES = [
    ("a INT, b VARCHAR(10), c DATETIME(6)", ["-1", "0", "7"], ["''", "'a'", "'中'"], ["'2026-01-01'", "'2026-01-02'"]),
    ("a ENUM('x','y','z'), b VARBINARY(5), c INT UNSIGNED", ["1", "2", "3"], ["0x00", "0x0000", "0x61"], ["1", "9"]),
    ("a VARCHAR(9) CHARACTER SET gbk, b ENUM('m','n'), c BIT(9)", ["'北京'", "'a'"], ["1", "2"], ["0", "257", "511"]),
]


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(("columns", "a", "b", "c"), COMPOSITES, ids=["int", "enum", "gbk"])
async def test_keys_of_several_columns_page_through_each_row_once(
    bench: Bench, rows: int, columns: str, a: list[str], b: list[str], c: list[str]
) -> None:
    values = [f"{x}, {y}, {z}" for x in a for y in b for z in c]
    made = table(bench, f"{columns}, n INT, PRIMARY KEY (a, b, c)", *(f"{v}, {i}" for i, v in enumerate(values)))
    bench.cursor.execute("SELECT n FROM t ORDER BY t.a, t.b, t.c")
    wanted = [int(n) for (n,) in bench.cursor.fetchall()]
    assert [row[3] for row in await rows_of(bench.server, made, rows=rows)] == wanted


async def test_a_unique_key_that_stands_in_pages_by_its_own_columns_in_its_own_order(bench: Bench) -> None:
    made = table(bench, "n INT, b INT NOT NULL, a VARCHAR(9) NOT NULL, UNIQUE KEY (a, b)")
    bench.run("INSERT INTO t VALUES " + ", ".join(f"({i}, {i % 7}, 'n{i // 7}')" for i in range(50)))
    made = replace(made, keys=(2, 1), promoted=True)
    bench.cursor.execute("SELECT n FROM t ORDER BY a, b")
    wanted = [int(n) for (n,) in bench.cursor.fetchall()]
    assert [row[0] for row in await rows_of(bench.server, made, rows=3)] == wanted


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        ("a INT, b VARCHAR(20), PRIMARY KEY (a, b)", "{0} DIV 40, CONCAT('n', {0})"),
        ("a ENUM('x','y','z','u'), b INT, PRIMARY KEY (a, b)", "1 + {0} % 4, {0}"),
        ("a DATETIME(3), b VARBINARY(20), PRIMARY KEY (a, b)", "'2026-01-01' + INTERVAL {0} MINUTE, {0}"),
        ("a BIGINT UNSIGNED PRIMARY KEY, b INT", "{0} + 18446744073709540000, {0}"),
    ],
)
async def test_a_chunk_in_the_middle_looks_at_no_row_before_it(bench: Bench, columns: str, values: str) -> None:
    made = table(bench, columns)
    bench.run("INSERT INTO t VALUES " + ", ".join(f"({values.format(i)})" for i in range(2000)), "ANALYZE TABLE t")
    reader, end = await reader_of(bench.server)
    first = await reader.read(ChunkRequest(made, end, rows=1000))
    first.take(1000)

    def looked_at() -> int:
        bench.cursor.execute("SHOW GLOBAL STATUS LIKE 'Handler_read_next'")
        return int(bench.cursor.fetchall()[0][1])

    before = looked_at()
    second = await reader.read(ChunkRequest(made, end, first.key, rows=10))
    assert second.rows == 10
    assert looked_at() - before < 100
    await reader.close()


async def test_the_last_chunk_is_the_one_with_fewer_rows_than_it_may_have(bench: Bench, reading: Any) -> None:
    made = numbered(bench, 10)
    reader, end = await reading()
    chunks = await chunks_of(reader, ChunkRequest(made, end, rows=5))
    assert [(len(rows), chunk.last) for chunk, rows in chunks] == [(5, False), (5, False), (0, True)]
    assert chunks[-1][0].key == chunks[-2][0].key
    chunks = await chunks_of(reader, ChunkRequest(made, end, rows=6))
    assert [(len(rows), chunk.last) for chunk, rows in chunks] == [(6, False), (4, True)]


async def test_a_chunk_ends_behind_its_bytes_by_one_row_at_most(bench: Bench, reading: Any) -> None:
    made = numbered(bench, 20_000)
    reader, end = await reading()
    chunks = await chunks_of(reader, ChunkRequest(made, end, rows=20_000, size=300_000))
    assert [row[0] for _, rows in chunks for row in rows] == list(range(20_000))
    assert all(chunk.size <= 300_200 for chunk, _ in chunks)
    assert len(chunks) < 20


async def test_rows_larger_than_a_chunk_come_one_by_one(bench: Bench, reading: Any) -> None:
    made = table(bench, "id INT PRIMARY KEY, b LONGBLOB", *(f"{i}, REPEAT(0x00FF, 3000000)" for i in range(3)))
    reader, end = await reading()
    chunks = await chunks_of(reader, ChunkRequest(made, end, size=1_000_000))
    assert [len(rows) for _, rows in chunks][:3] == [1, 1, 1]
    assert all(row[1] == b"\0\xff" * 3_000_000 for _, rows in chunks for row in rows)


async def test_only_some_columns_are_read_and_the_key_always(bench: Bench) -> None:
    made = table(bench, "a INT, id INT PRIMARY KEY, B VARCHAR(9), c INT", "1, 2, 'x', 3", "4, 5, NULL, 6")
    assert await rows_of(bench.server, made, columns=frozenset({"b"})) == [
        (ABSENT, 2, "x", ABSENT),
        (ABSENT, 5, None, ABSENT),
    ]


async def test_a_condition_chooses_rows_and_one_that_is_none_is_told(bench: Bench, reading: Any) -> None:
    made = numbered(bench, 100)
    assert len(await rows_of(bench.server, made, where="id < 10 OR id > 95 -- and a remark", rows=3)) == 14
    for condition in ("no_such_column = 1", "id ="):
        reader, end = await reading()
        with pytest.raises(SourceMisconfigured, match=r"the condition on types\.t"):
            await reader.read(ChunkRequest(made, end, where=condition))


async def test_names_of_any_characters_are_read(bench: Bench) -> None:
    bench.run("DROP TABLE IF EXISTS `t``1; --`")
    bench.run("CREATE TABLE `t``1; --` (`key``s 'x' \\ 列` INT PRIMARY KEY, `select` INT)")
    bench.run("INSERT INTO `t``1; --` VALUES (1, 2), (3, 4), (5, 6)")
    made = declared(bench.cursor, "types", "t`1; --")
    assert await rows_of(bench.server, made, rows=1) == [(1, 2), (3, 4), (5, 6)]
    bench.run("DROP TABLE `t``1; --`")


async def test_a_table_without_a_key_is_read_in_one_statement(bench: Bench, reading: Any) -> None:
    made = table(bench, "a INT, v VARCHAR(200)")
    bench.run("INSERT INTO t VALUES " + ", ".join(f"({i}, REPEAT('v', 200))" for i in range(5000)))
    reader, end = await reading()
    request = ChunkRequest(made, end, rows=1000)
    first = await reader.read(request)
    bench.run("INSERT INTO t VALUES (9999, 'later')")
    rest = await chunks_of(reader, request)
    rows = first.take(1000) + [row for _, some in rest for row in some]
    assert [row[0] for row in rows] == list(range(5000))
    assert [first.continues, *(chunk.continues for chunk, _ in rest)] == [False] + [True] * len(rest)
    assert {(chunk.high, chunk.key) for chunk, _ in rest} == {(first.high, None)}
    again = await chunks_of(reader, request)
    assert not again[0][0].continues
    assert sum(len(some) for _, some in again) == 5001


async def test_another_table_ends_the_read_of_a_table_without_a_key(bench: Bench, reading: Any) -> None:
    made = table(bench, "a INT, v VARCHAR(200)")
    bench.run("INSERT INTO t VALUES " + ", ".join(f"({i}, REPEAT('v', 200))" for i in range(100)))
    bench.run("DROP TABLE IF EXISTS other", "CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    reader, end = await reading()
    await reader.read(ChunkRequest(made, end, rows=10))
    assert (await reader.read(ChunkRequest(declared(bench.cursor, "types", "other"), end))).take(9) == [(1,)]
    again = await reader.read(ChunkRequest(made, end, rows=10))
    assert not again.continues
    assert again.take(1)[0][0] == 0


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE t",
        "ALTER TABLE t DROP COLUMN v",
        "ALTER TABLE t CHANGE v w VARCHAR(100)",
        "ALTER TABLE t MODIFY v INT",
        "ALTER TABLE t MODIFY id INT UNSIGNED",
        "ALTER TABLE t MODIFY v VARCHAR(100) CHARACTER SET gbk",
    ],
)
async def test_a_table_that_is_not_as_the_stream_knows_it_has_changed(
    bench: Bench, reading: Any, statement: str
) -> None:
    made = table(bench, "id INT PRIMARY KEY, v VARCHAR(100)", "1, '2'")
    reader, end = await reading()
    assert (await reader.read(ChunkRequest(made, end))).take(9) == [(1, "2")]
    bench.run(statement)
    with pytest.raises(TableChanged):
        await reader.read(ChunkRequest(made, end))
    bench.run("DROP TABLE IF EXISTS t", "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(100)) DEFAULT CHARSET utf8mb4")
    assert (await reader.read(ChunkRequest(made, end))).last


async def test_an_account_without_the_right_is_told_the_grant(bench: Bench, reading: Any) -> None:
    made = numbered(bench, 1)
    rights = "BINLOG MONITOR, SLAVE MONITOR" if bench.mariadb else "REPLICATION CLIENT"
    bench.run("CREATE USER 'blind'@'%' IDENTIFIED BY 'blind'", "CREATE DATABASE IF NOT EXISTS headrace")
    bench.run(f"GRANT {rights} ON *.* TO 'blind'@'%'", "GRANT ALL ON headrace.* TO 'blind'@'%'")
    reader, end = await reading(user="blind", password="blind")
    with pytest.raises(GrantMissing, match="GRANT SELECT ON"):
        await reader.read(ChunkRequest(made, end))
    bench.run("DROP USER 'blind'@'%'")


async def test_no_transaction_outlives_a_chunk(bench: Bench, reading: Any) -> None:
    made = numbered(bench, 3000)
    reader, end = await reading()
    request = ChunkRequest(made, end, rows=1000)
    for _ in range(3):
        chunk = await reader.read(request)
        bench.cursor.execute("SELECT COUNT(*) FROM information_schema.innodb_trx")
        assert int(bench.cursor.fetchall()[0][0]) == 0
        chunk.take(1000)
        request = replace(request, after=chunk.key)
    whole = await reader.read(ChunkRequest(made, end, rows=3000, size=50_000))  # the server is cut off
    assert not whole.last

    def over() -> bool:
        bench.cursor.execute("SELECT COUNT(*) FROM information_schema.innodb_trx")
        return int(bench.cursor.fetchall()[0][0]) == 0

    eventually(over)


async def test_a_read_that_is_cancelled_leaves_a_reader_that_reads(bench: Bench, reading: Any) -> None:
    made = numbered(bench, 100)
    reader, end = await reading()
    blocker = connect(bench.server, "types")
    blocker.cursor().execute("LOCK TABLES t WRITE")
    task = asyncio.create_task(reader.read(ChunkRequest(made, end)))
    waiting = await asyncio.wait({task}, timeout=0.3)
    assert waiting[1] == {task}
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    blocker.close()
    assert len((await reader.read(ChunkRequest(made, end))).take(1000)) == 100


async def test_a_connection_that_is_killed_between_chunks_is_made_anew(bench: Bench, reading: Any) -> None:
    made = numbered(bench, 100)
    reader, end = await reading()
    first = await reader.read(ChunkRequest(made, end, rows=10))
    first.take(10)
    bench.cursor.execute("SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'root'")
    for (number,) in bench.cursor.fetchall():
        bench.run(f"KILL {number}")
    request = ChunkRequest(made, end, first.key, rows=10)

    async def read() -> list[Any]:
        return (await reader.read(request)).take(10)

    try:
        rows = await read()
    except SourceError:
        rows = await read()
    assert [row[0] for row in rows] == list(range(10, 20))


async def test_a_statement_that_is_ended_in_the_middle_is_an_error_and_the_next_read_begins_anew(
    bench: Bench, reading: Any
) -> None:
    made = table(bench, "a INT, v VARCHAR(200)")
    reader, end = await reading()
    for i in range(8):  # more than fits between the server and us
        bench.run("INSERT INTO t VALUES " + ", ".join(f"({i}, REPEAT('v', 200))" for _ in range(10_000)))
    request = ChunkRequest(made, end, rows=10)
    first = await reader.read(request)
    assert first.take(10)
    bench.cursor.execute(
        "SELECT id FROM information_schema.processlist WHERE info LIKE 'SELECT%`t`%' AND id <> CONNECTION_ID()"
    )
    bench.run(f"KILL {bench.cursor.fetchall()[0][0]}")
    with pytest.raises(SourceError):
        await chunks_of(reader, replace(request, rows=1000))
    again = await reader.read(request)
    assert not again.continues
    assert again.take(1)[0][0] == 0


async def test_tables_are_listed_with_their_size_and_no_system_schema(bench: Bench, reading: Any) -> None:
    numbered(bench, 2000)
    bench.run("ANALYZE TABLE t", "CREATE OR REPLACE VIEW seen AS SELECT * FROM t")
    bench.run("SET SESSION sql_mode = ''", "CREATE DATABASE IF NOT EXISTS headrace")
    reader, _ = await reading()
    facts = {(fact.schema, fact.table): fact for fact in await reader.tables()}
    assert ("types", "seen") not in facts
    assert {schema for schema, _ in facts}.isdisjoint({"mysql", "sys", "performance_schema", "headrace"})
    assert 1000 < facts["types", "t"].rows < 4000
    assert facts["types", "t"].size > 100_000
    bench.run("DROP VIEW seen")


async def test_the_load_of_a_server_that_is_no_replica_has_no_lag(bench: Bench, reading: Any) -> None:
    reader, _ = await reading()
    lag, threads = await reader.load()
    assert lag == 0.0
    assert threads >= 1


async def test_the_load_may_be_asked_for_while_a_chunk_is_read(bench: Bench, reading: Any) -> None:
    made = numbered(bench, 1000)
    reader, end = await reading()
    chunk, load, tables = await asyncio.gather(reader.read(ChunkRequest(made, end)), reader.load(), reader.tables())
    assert chunk.rows == 1000
    assert load[1] >= 1
    assert tables


# -- where a read belongs in the binlog -------------------------------------------------------------------------------


def last_gtid(path: Path, end: int) -> int:
    """The number of the last transaction in a binlog file before `end`; 0 when it has none."""
    raw, at, number = path.read_bytes()[:end], 4, 0
    while at < len(raw):
        if raw[at + 4] == 33:
            (number,) = struct.unpack_from("<Q", raw, at + 19 + 17)
        at += int.from_bytes(raw[at + 9 : at + 13], "little")
    return number


class Writers:
    """Sessions that insert one row a transaction into types.t, until they are told to stop."""

    def __init__(self, server: Any, count: int = 4) -> None:
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(server, i + 1)) for i in range(count)]

    def _write(self, server: Any, number: int) -> None:
        with connect(server, "types") as connection, connection.cursor() as cursor:
            id_ = number * 1_000_000
            while not self._stop.is_set():
                cursor.execute(f"INSERT INTO t VALUES ({id_}, 0)")
                id_ += 1

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


async def placed(bench: Bench, rounds: int = 60) -> None:
    """Reads a table while sessions write it: each read shows all that was in the binlog before it was asked for, and
    nothing that is not before its watermark."""
    made = table(bench, "id INT PRIMARY KEY, n INT")
    path = new_file(bench.server, bench.cursor)
    reader, start = await reader_of(bench.server)
    bench.cursor.execute("SELECT @@gtid_mode" if not bench.mariadb else "SELECT 'OFF'")
    uuid = start.server_uuid if bench.cursor.fetchall()[0][0] == "ON" else ""
    reads: list[tuple[int, set[int], int]] = []
    with Writers(bench.server):
        for _ in range(rounds):
            _, size = end_of(bench)
            gtids = f"{uuid}:1-{number}" if uuid and (number := last_gtid(path, size)) else ""
            chunk = await reader.read(ChunkRequest(made, replace(start, offset=size, gtid_set=gtids), rows=1_000_000))
            assert chunk.last
            assert chunk.high.file == path.name
            reads.append((size, {row[0] for row in chunk.take(1_000_000)}, chunk.high.offset))
    await reader.close()
    new_file(bench.server, bench.cursor)
    places = {
        row[0]: (change.origin.transaction, change.origin.offset)
        for change in decode(path, schema="types", known={("types", "t"): made})
        for row in change.rows
    }
    assert len(places) > 200
    for seen, ids, high in reads:
        assert ids <= places.keys()
        assert {id_ for id_, (_, rows_at) in places.items() if rows_at < seen} <= ids
        assert all(places[id_][0] < high for id_ in ids)


async def test_a_read_under_load_shows_all_before_it_and_nothing_behind_its_watermark(bench: Bench) -> None:
    await placed(bench)


async def waits_for(reader: TableReader, request: ChunkRequest, write: Callable[[], None]) -> list[Any]:
    """The rows of a read that goes on only after the write."""
    task = asyncio.create_task(reader.read(request))
    assert (await asyncio.wait({task}, timeout=0.3))[1] == {task}
    write()
    return (await task).take(1000)


@mysql_only
async def test_a_read_waits_for_transactions_that_are_not_visible_yet(bench: Bench, reading: Any) -> None:
    made = table(bench, "id INT PRIMARY KEY, n INT")
    reader, end = await reading()
    number = int(end.gtid_set.rpartition("-")[2].rpartition(":")[2])
    ahead = replace(end, gtid_set=f"{end.server_uuid}:1-{number + 2}")
    write = "INSERT INTO t VALUES (1, 1)", "INSERT INTO t VALUES (2, 2)"
    assert await waits_for(reader, ChunkRequest(made, ahead), lambda: bench.run(*write)) == [(1, 1), (2, 2)]


@mariadb_only
async def test_a_snapshot_is_taken_anew_until_it_has_what_the_stream_has(bench: Bench, reading: Any) -> None:
    made = table(bench, "id INT PRIMARY KEY, n INT")
    reader, end = await reading()
    ahead = replace(end, offset=end.offset + 200)
    write = "INSERT INTO t VALUES (1, 1)", "INSERT INTO t VALUES (2, 2)"
    assert await waits_for(reader, ChunkRequest(made, ahead), lambda: bench.run(*write)) == [(1, 1), (2, 2)]


async def test_the_wait_for_what_never_comes_ends_with_an_error(bench: Bench, reading: Any) -> None:
    if not bench.mariadb and not bench.describes:
        return  # MySQL 5.6 does not wait: it commits a row of ours
    made = numbered(bench, 1)
    reader, end = await reading(connect_timeout=1.0)
    ahead = replace(end, offset=end.offset + 10_000, gtid_set="" if bench.mariadb else f"{end.server_uuid}:1-999999")
    with pytest.raises(SourceError, match="still not visible"):
        await reader.read(ChunkRequest(made, ahead))


async def test_a_position_of_another_server_is_refused(bench: Bench, reading: Any) -> None:
    made = numbered(bench, 1)
    reader, end = await reading()
    with pytest.raises(SourceError, match="the stream reads from other"):
        await reader.read(ChunkRequest(made, replace(end, server_uuid="other")))


@pytest.mark.parametrize("engine", ["InnoDB", "MyISAM"])
async def test_what_a_table_of_any_engine_shows_lies_before_the_watermark(
    bench: Bench, reading: Any, engine: str
) -> None:
    made = table(bench, "id INT PRIMARY KEY, n INT", "1, 1", more=f"ENGINE={engine}")
    reader, end = await reading()
    chunk = await reader.read(ChunkRequest(made, end))
    assert chunk.take(9) == [(1, 1)]
    assert (chunk.high.file, chunk.high.offset) >= (end.file, end.offset)


# -- MySQL without GTIDs ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def anonymous(stack: Stack) -> Iterator[Bench]:
    """A MySQL without GTIDs."""
    server = stack.mysql(None, "--gtid-mode=OFF", "--enforce-gtid-consistency=OFF", name="anonymous")
    bench = Bench(server, mariadb=False)
    yield bench
    bench.connection.close()
    server.kill()


async def test_without_gtids_a_read_stands_behind_a_row_of_headraces_own(anonymous: Bench) -> None:
    anonymous.run("DROP DATABASE IF EXISTS headrace")
    await placed(anonymous, rounds=30)
    anonymous.cursor.execute("SELECT destination, number FROM headrace.watermark")
    assert anonymous.cursor.fetchall() == (("shop", "30"),)


@pytest.mark.parametrize(
    ("broken", "mended", "remedy"),
    [
        ("SET GLOBAL binlog_order_commits = OFF", "SET GLOBAL binlog_order_commits = ON", "binlog_order_commits = ON"),
        ("SET GLOBAL read_only = ON", "SET GLOBAL read_only = OFF", "gtid_mode = ON"),
    ],
)
async def test_without_gtids_a_server_whose_order_says_nothing_is_refused(
    anonymous: Bench, broken: str, mended: str, remedy: str
) -> None:
    made = numbered(anonymous, 1)
    reader, end = await reader_of(anonymous.server)
    anonymous.run(broken)
    try:
        with pytest.raises(SourceMisconfigured, match=remedy):
            await reader.read(ChunkRequest(made, end))
    finally:
        anonymous.run(mended)
        await reader.close()


async def test_without_gtids_an_account_that_may_not_write_is_told_the_grant(anonymous: Bench) -> None:
    made = numbered(anonymous, 1)
    anonymous.run("CREATE USER 'reads'@'%' IDENTIFIED BY 'reads'")
    anonymous.run("GRANT SELECT, REPLICATION CLIENT ON *.* TO 'reads'@'%'")
    reader, end = await reader_of(anonymous.server, user="reads", password="reads")
    with pytest.raises(GrantMissing, match=r"GRANT SELECT, INSERT, UPDATE, CREATE ON headrace\.\*"):
        await reader.read(ChunkRequest(made, end))
    await reader.close()


async def test_without_gtids_another_table_of_that_name_is_told(anonymous: Bench) -> None:
    made = numbered(anonymous, 1)
    anonymous.run("CREATE DATABASE IF NOT EXISTS headrace", "DROP TABLE IF EXISTS headrace.watermark")
    anonymous.run("CREATE TABLE headrace.watermark (other INT)")
    reader, end = await reader_of(anonymous.server)
    with pytest.raises(SourceError, match=r"DROP TABLE headrace\.watermark"):
        await reader.read(ChunkRequest(made, end))
    anonymous.run("DROP TABLE headrace.watermark")
    assert (await reader.read(ChunkRequest(made, end))).rows == 1
    await reader.close()


# -- another server than the stream's ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(stack: Stack) -> Iterator[tuple[Bench, Any]]:
    """A MySQL and its replica."""
    source = stack.mysql(name="read-source", server_id=311)
    replica = stack.mysql(name="read-replica", server_id=312)
    replica.sql(
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={source.port}, SOURCE_USER='root',"
        " SOURCE_PASSWORD='root', SOURCE_AUTO_POSITION=1, SOURCE_CONNECT_RETRY=1, GET_SOURCE_PUBLIC_KEY=1;"
        " START REPLICA"
    )
    bench = Bench(source, mariadb=False)
    yield bench, replica
    bench.connection.close()
    for server in (replica, source):
        server.kill()


async def test_a_replica_is_read_once_it_has_what_the_stream_has(pair: tuple[Bench, Any]) -> None:
    bench, replica = pair
    made = numbered(bench, 10)
    reader, end = await reader_of(replica, stream_of=bench.server)
    chunk = await reader.read(ChunkRequest(made, end))
    assert len(chunk.take(100)) == 10
    replica.sql("STOP REPLICA SQL_THREAD")
    bench.run("INSERT INTO t VALUES (100, 'later')")
    _, later = await reader_of(bench.server)
    rows = await waits_for(reader, ChunkRequest(made, later), lambda: replica.sql("START REPLICA"))
    assert rows[-1] == (100, "later")
    lag, _ = await reader.load()
    assert lag >= 0.0
    await reader.close()


async def test_the_watermark_of_a_replica_is_a_set_of_gtids(pair: tuple[Bench, Any]) -> None:
    bench, replica = pair
    made = numbered(bench, 10)
    reader, end = await reader_of(replica, stream_of=bench.server)
    chunk = await reader.read(ChunkRequest(made, end))
    bench.cursor.execute("SELECT GTID_SUBSET(%s, %s)", (end.gtid_set, chunk.high.gtid_set))
    assert bench.cursor.fetchall() == (("1",),)
    assert chunk.high.file == ""
    await reader.close()


async def test_a_replicas_own_transactions_are_not_in_its_watermark(pair: tuple[Bench, Any]) -> None:
    bench, replica = pair
    made = numbered(bench, 10)
    reader, end = await reader_of(replica, stream_of=bench.server)
    replica.sql("CREATE DATABASE of_its_own")
    bench.run("INSERT INTO t VALUES (100, 'later')")
    _, later = await reader_of(bench.server)
    rows = (chunk := await reader.read(ChunkRequest(made, later))).take(100)
    assert len(rows) == 11
    bench.cursor.execute("SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed)", (chunk.high.gtid_set,))
    assert bench.cursor.fetchall() == (("1",),)
    assert (await reader.read(ChunkRequest(made, end))).high == chunk.high
    await reader.close()


async def test_without_gtids_no_other_server_is_read(pair: tuple[Bench, Any], anonymous: Bench) -> None:
    made = numbered(anonymous, 1)
    reader, end = await reader_of(pair[1], stream_of=anonymous.server)
    with pytest.raises(SourceMisconfigured, match="set gtid_mode = ON on both"):
        await reader.read(ChunkRequest(made, end))
    await reader.close()
