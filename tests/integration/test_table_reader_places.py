"""Where reads of tables belong in the binlog, on real servers: nothing is missed, and nothing is seen too early."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from headrace.errors import GrantMissing, SourceError, SourceMisconfigured
from headrace.ports.tables import ChunkRequest, TableReader
from tests.binlogs import connect, decode, new_file
from tests.table_reads import end_of, numbered, reader_of, table
from tests.type_bench import Bench, mariadb_only, mysql_only

pytestmark = pytest.mark.server


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
        while len(reads) < rounds or len(reads[-1][1]) <= 200:
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
async def test_a_snapshot_is_taken_again_until_it_has_what_the_stream_has(bench: Bench, reading: Any) -> None:
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


async def test_without_gtids_a_read_is_after_a_row_of_headraces_own(anonymous: Bench) -> None:
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


async def test_without_gtids_an_account_that_may_not_write_is_shown_the_grant(anonymous: Bench) -> None:
    made = numbered(anonymous, 1)
    anonymous.run("CREATE USER 'reads'@'%' IDENTIFIED BY 'reads'")
    anonymous.run("GRANT SELECT, REPLICATION CLIENT ON *.* TO 'reads'@'%'")
    reader, end = await reader_of(anonymous.server, user="reads", password="reads")
    with pytest.raises(GrantMissing, match=r"GRANT SELECT, INSERT, UPDATE, CREATE ON headrace\.\*"):
        await reader.read(ChunkRequest(made, end))
    await reader.close()


async def test_without_gtids_another_table_of_that_name_is_reported(anonymous: Bench) -> None:
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
