"""Tables read chunk by chunk from real servers: every key pages through once, in bounds, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from devstack import Stack
from headrace.errors import GrantMissing, SourceError, SourceMisconfigured
from headrace.model import ABSENT
from headrace.mysql.snapshot import reader as module
from headrace.ports.tables import ChunkRequest, TableChanged
from tests import versions
from tests.binlogs import connect, declared
from tests.support import eventually
from tests.table_reads import chunks_of, numbered, reader_of, rows_of, table
from tests.type_bench import Bench, open_bench

pytestmark = pytest.mark.server


@pytest.fixture(scope="module", params=["mysql", *versions.long("mariadb", "mysql56", "mariadb118")])
def bench(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Bench]:
    """What is asked of a server is the same for all, but where a test says otherwise."""
    yield from open_bench(request, stack)


every_kind = pytest.mark.parametrize("bench", versions.SQL, indirect=True)


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


@pytest.fixture
def by_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers never find rows that meet a condition in time, so that ranges of keys are read."""
    monkeypatch.setattr(module, "_SEARCH_SECONDS", 1e-9)
    monkeypatch.setattr(module, "_SEARCH_AGAIN", 1e12)


@every_kind
@pytest.mark.parametrize(
    ("each", "rows"),
    [
        pytest.param(1, 3, id="alone"),
        pytest.param(2, 1, id="first_of_two"),
        pytest.param(1, 1, id="alone_singly", marks=pytest.mark.long),
        pytest.param(2, 3, id="first_of_two_in_threes", marks=pytest.mark.long),
    ],
)
async def test_every_type_of_key_pages_through_each_row_once_in_its_order(bench: Bench, each: int, rows: int) -> None:
    await page_through_every_type(bench, each, rows)


@every_kind
@pytest.mark.parametrize(
    "each", [pytest.param(1, id="alone", marks=pytest.mark.long), pytest.param(2, id="first_of_two")]
)
async def test_every_type_of_key_gives_ranges_that_have_each_row_once(bench: Bench, by_ranges: None, each: int) -> None:
    await page_through_every_type(bench, each, 2, "n % 3 <> 1")


async def page_through_every_type(bench: Bench, each: int, rows: int, where: str = "") -> None:
    keys = KEYS | (MARIADB_KEYS if bench.mariadb else MYSQL_KEYS if bench.describes else {})
    reader, _ = await reader_of(bench.server)
    for kind, values in keys.items():
        primary = "k" if each == 1 else "k, m"
        made = table(bench, f"k {kind} NOT NULL, m INT, n INT, PRIMARY KEY ({primary})")
        rest = [(value, m) for value in values for m in range(each)]
        if each == 2:
            rest = [(value, m) for value, m in rest if "()" not in value]  # UUID() is another one each time
        bench.run(f"INSERT INTO t VALUES {', '.join(f'({value}, {m}, {n})' for n, (value, m) in enumerate(rest))}")
        bench.cursor.execute(f"SELECT n FROM t WHERE {where or 'TRUE'} ORDER BY {primary}")
        wanted = [int(n) for (n,) in bench.cursor.fetchall()]
        assert where or len(wanted) == len(rest), kind
        _, end = await reader_of(bench.server)
        chunks = await chunks_of(reader, ChunkRequest(made, end, rows=rows, where=where))
        assert [row[2] for _, got in chunks for row in got] == wanted, kind
        assert all(len(got) <= rows for _, got in chunks)
    await reader.close()


COMPOSITES = [
    ("a INT, b VARCHAR(10), c DATETIME(6)", ["-1", "0", "7"], ["''", "'a'", "'中'"], ["'2026-01-01'", "'2026-01-02'"]),
    ("a ENUM('x','y','z'), b VARBINARY(5), c INT UNSIGNED", ["1", "2", "3"], ["0x00", "0x0000", "0x61"], ["1", "9"]),
    ("a VARCHAR(9) CHARACTER SET gbk, b ENUM('m','n'), c BIT(9)", ["'北京'", "'a'"], ["1", "2"], ["0", "257", "511"]),
]


@pytest.mark.parametrize(("rows", "where"), [(1, ""), (4, ""), (3, "n % 4 < 3")], ids=["one", "four", "ranges"])
@pytest.mark.parametrize(("columns", "a", "b", "c"), COMPOSITES, ids=["int", "enum", "gbk"])
async def test_keys_of_several_columns_page_through_each_row_once(
    bench: Bench, by_ranges: None, rows: int, where: str, columns: str, a: list[str], b: list[str], c: list[str]
) -> None:
    values = [f"{x}, {y}, {z}" for x in a for y in b for z in c]
    made = table(bench, f"{columns}, n INT, PRIMARY KEY (a, b, c)", *(f"{v}, {i}" for i, v in enumerate(values)))
    bench.cursor.execute(f"SELECT n FROM t WHERE {where or 'TRUE'} ORDER BY t.a, t.b, t.c")
    wanted = [int(n) for (n,) in bench.cursor.fetchall()]
    assert [row[3] for row in await rows_of(bench.server, made, rows=rows, where=where)] == wanted


async def test_a_unique_key_without_a_primary_key_pages_by_its_own_columns_in_its_own_order(bench: Bench) -> None:
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
async def test_a_chunk_in_the_middle_reads_no_row_before_it(bench: Bench, columns: str, values: str) -> None:
    made = table(bench, columns)
    bench.run("INSERT INTO t VALUES " + ", ".join(f"({values.format(i)})" for i in range(2000)), "ANALYZE TABLE t")
    reader, end = await reader_of(bench.server)
    first = await reader.read(ChunkRequest(made, end, rows=1000))
    first.take(1000)

    def read_columns() -> int:
        bench.cursor.execute("SHOW GLOBAL STATUS LIKE 'Handler_read_next'")
        return int(bench.cursor.fetchall()[0][1])

    before = read_columns()
    second = await reader.read(ChunkRequest(made, end, first.key, rows=10))
    assert second.rows == 10
    assert read_columns() - before < 100
    await reader.close()


async def test_the_last_chunk_is_the_one_with_fewer_rows_than_it_may_have(bench: Bench, reading: Any) -> None:
    made = numbered(bench, 10)
    reader, end = await reading()
    chunks = await chunks_of(reader, ChunkRequest(made, end, rows=5))
    assert [(len(rows), chunk.last) for chunk, rows in chunks] == [(5, False), (5, False), (0, True)]
    assert chunks[-1][0].key == chunks[-2][0].key
    chunks = await chunks_of(reader, ChunkRequest(made, end, rows=6))
    assert [(len(rows), chunk.last) for chunk, rows in chunks] == [(6, False), (4, True)]


async def test_a_chunk_ends_after_its_bytes_by_one_row_at_most(bench: Bench, reading: Any) -> None:
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


async def test_a_condition_chooses_rows_and_one_that_is_none_is_reported(bench: Bench, reading: Any) -> None:
    made = numbered(bench, 100)
    assert len(await rows_of(bench.server, made, where="id < 10 OR id > 95 -- and a remark", rows=3)) == 14
    for condition in ("no_such_column = 1", "id ="):
        reader, end = await reading()
        with pytest.raises(SourceMisconfigured, match=r"the condition on types\.t"):
            await reader.read(ChunkRequest(made, end, where=condition))


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("id > 5; DROP TABLE t", "it has a ;"),
        ("id > 5 ;", "it has a ;"),
        ("id > 5)", "its brackets do not pair"),
        ("SLEEP(5)", "it names no column of the table"),
        ("(SELECT COUNT(*) FROM mysql.user) > 3", "it names no column of the table"),
    ],
)
async def test_what_is_wrong_with_a_condition_is_named(bench: Bench, reading: Any, condition: str, why: str) -> None:
    made, (reader, end) = numbered(bench, 2), await reading()
    with pytest.raises(SourceMisconfigured, match=re.escape(why)):
        await reader.read(ChunkRequest(made, end, where=condition))


async def test_a_condition_that_takes_the_source_too_long_is_given_up_for_good(
    bench: Bench, reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SILENCE", 1.0)
    monkeypatch.setattr(module, "_SEARCH_SECONDS", 0.2)
    made, (reader, end) = numbered(bench, 2), await reading()
    with pytest.raises(SourceMisconfigured, match="its condition takes the source too long") as caught:
        await reader.read(ChunkRequest(made, end, where="SLEEP(30) = id"))
    assert not caught.value.retriable
    assert len(await rows_of(bench.server, made)) == 2


async def test_a_condition_that_few_rows_meet_makes_the_server_read_a_chunk_of_rows_at_a_time(
    bench: Bench, reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = numbered(bench, 600)
    monkeypatch.setattr(module, "_SEARCH_SECONDS", 0.3)
    reader, end = await reading()
    where = "IF(SLEEP(0.002) = 0, id, 0) IN (5, 6, 450)"  # 1.2 s for all rows
    chunks = await chunks_of(reader, ChunkRequest(made, end, rows=100, where=where))
    assert [len(rows) for _, rows in chunks] == [2, 0, 0, 0, 1, 0, 0]
    assert [row[0] for _, rows in chunks for row in rows] == [5, 6, 450]
    assert [chunk.last for chunk, _ in chunks] == [False] * 6 + [True]
    assert all(chunk.seconds > 0.19 for chunk, _ in chunks[:-1])
    assert chunks[1][0].key == chunks[1][0].end != chunks[0][0].key  # a range without a row is behind us too


async def test_a_range_of_more_bytes_than_a_chunk_continues_after_the_last_row_that_came(
    bench: Bench, reading: Any, by_ranges: None
) -> None:
    made = numbered(bench, 100)
    reader, end = await reading()
    chunks = await chunks_of(reader, ChunkRequest(made, end, rows=60, size=2_000, where="id <> 30"))
    assert [row[0] for _, rows in chunks for row in rows] == [i for i in range(100) if i != 30]
    assert max(len(rows) for _, rows in chunks) < 30


async def test_a_search_is_tried_again_after_a_time_in_which_the_server_was_slow(
    bench: Bench, reading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = numbered(bench, 100)
    monkeypatch.setattr(module, "_SEARCH_SECONDS", 1e-9)
    monkeypatch.setattr(module, "_SEARCH_AGAIN", 1)
    reader, end = await reading()
    first = await reader.read(ChunkRequest(made, end, rows=10, where="id > 80"))
    assert (first.rows, first.last) == (0, False)
    monkeypatch.setattr(module, "_SEARCH_SECONDS", 60.0)
    second = await reader.read(ChunkRequest(made, end, first.end, rows=10, where="id > 80"))
    assert (second.rows, second.last) == (10, False)


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


@every_kind
async def test_an_account_without_the_right_is_shown_the_grant(bench: Bench, reading: Any) -> None:
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


async def test_a_connection_that_is_killed_between_chunks_is_opened_again(bench: Bench, reading: Any) -> None:
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


async def test_a_statement_that_is_ended_in_the_middle_is_an_error_and_the_next_read_begins_again(
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
    facts = {(fact.schema, fact.table): fact for fact in (await reader.tables()).tables}
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
