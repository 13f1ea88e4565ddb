"""Places in the binlogs of real servers: by time, by offset, by GTIDs; what a source has, and its retention."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pydantic import SecretStr

from devstack import Stack
from headrace.model import Position
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.position.heads import FileHeads
from headrace.mysql.position.inventory import Inventory, retention, take_inventory
from headrace.mysql.position.move import parse_where, relocate
from headrace.mysql.position.search import PositionError, PositionFinder, distance
from headrace.mysql.wire.connection import SourceConnection, address_of, short_dump
from headrace.settings.destination import SourceSettings

pytestmark = pytest.mark.server

FILES = 8


class Written:
    """A server whose binlogs are known: `files` with four transactions each, some of them within one second."""

    def __init__(self, server: Any, *, mariadb: bool) -> None:
        self.server, self.mariadb = server, mariadb
        self.source = SourceSettings(
            host=server.host, port=server.port, user="canal", password=SecretStr("canal"), server_id=4711
        )
        self.connection = pymysql.connect(**server.connection("root"), autocommit=True)
        self.run("CREATE DATABASE places", "CREATE TABLE places.t (id INT PRIMARY KEY, v VARCHAR(100))")
        for number in range(FILES):
            self.run("FLUSH BINARY LOGS")
            for i in range(4):
                self.run("BEGIN", f"INSERT INTO places.t VALUES ({number * 10 + i}, 'a')", "COMMIT")
            time.sleep(1.01)

    def run(self, *statements: str) -> Any:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

    @property
    def files(self) -> list[str]:
        return [row[0] for row in self.run("SHOW BINARY LOGS")]

    def groups(self, file: str) -> list[tuple[int, int]]:
        """Where the transactions of a file begin and end, as the server itself lists its events."""
        starts, found = "Gtid", []
        events = self.run(f"SHOW BINLOG EVENTS IN '{file}'")
        for index, (_, at, kind, *_) in enumerate(events):
            if kind in (starts, "Anonymous_Gtid"):
                end = index + 1
                while end < len(events) and events[end][2] not in ("Gtid", "Rotate", "Stop", "Binlog_checkpoint"):
                    end += 1
                found.append((at, events[end - 1][4]))
        return found

    async def inventory(self) -> Inventory:
        async with connected(self.source) as connection:
            return await take_inventory(connection)


@asynccontextmanager
async def connected(source: SourceSettings) -> Any:
    connection = await SourceConnection.open(address_of(source))
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def written(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Written]:
    mariadb = request.param == "mariadb"
    server = (stack.mariadb if mariadb else stack.mysql)(None, name=f"places-{request.param}", server_id=31)
    made = Written(server, mariadb=mariadb)
    yield made
    made.connection.close()
    server.kill()


def commit_times(written: Written, file: str) -> list[tuple[int, int]]:
    """(commit time in us, offset) of the transactions of a file, out of the file itself."""
    raw = (Path(written.server.datadir) / file).read_bytes()
    found = []
    for at, _ in written.groups(file):
        seconds = int.from_bytes(raw[at : at + 4], "little")
        micros = seconds * 1_000_000
        if not written.mariadb:  # 42 bytes of GTID, flags and logical clock, then the commit time
            micros = int.from_bytes(raw[at + 19 + 42 : at + 19 + 49], "little") & 0x7FFFFFFFFFFFFF
        found.append((micros, at))
    return found


async def test_what_a_source_has_is_what_it_says(written: Written) -> None:
    inventory = await written.inventory()
    assert [(binlog.name, binlog.size) for binlog in inventory.files] == [
        (row[0], int(row[1])) for row in written.run("SHOW BINARY LOGS")
    ]
    assert inventory.end == (inventory.files[-1].name, inventory.files[-1].size)
    assert inventory.mariadb is written.mariadb
    assert inventory.gtid_mode is not written.mariadb
    assert abs(inventory.now - time.time()) < 5
    if written.mariadb:
        assert inventory.server_uuid == "mariadb-0-31"
        assert (inventory.executed, inventory.expire_seconds) == ("", 0)
    else:
        assert inventory.server_uuid == written.run("SELECT @@server_uuid")[0][0]
        assert inventory.executed == written.run("SELECT @@global.gtid_executed")[0][0]
        assert inventory.expire_seconds == 2592000


@pytest.fixture
def dumps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that short dumps were made for."""
    files = list[str]()

    def counted(source: SourceSettings, server_id: int, file: str, *rest: Any, **more: Any) -> Any:
        files.append(file)
        return short_dump(source, server_id, file, *rest, **more)

    monkeypatch.setattr("headrace.mysql.position.scan.short_dump", counted)
    return files


async def test_a_time_is_found_exactly_and_without_reading_all_binlogs(written: Written, dumps: list[str]) -> None:
    inventory = await written.inventory()
    wanted = written.files[FILES // 2]
    times = commit_times(written, wanted)
    for micros, _ in times:
        when = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
        first = next(offset for other, offset in times if other >= micros)
        dumps.clear()
        finder = PositionFinder(written.source, inventory)
        boundary = await finder.at_time(when)
        assert (boundary.file, boundary.offset, boundary.commit_time_us) == (wanted, first, micros)
        assert len(dumps) <= 6  # of FILES + 1 files: four heads, and one or two files that are read
        later = await finder.at_time(when + timedelta(microseconds=1))
        following = next((offset for other, offset in times if other > micros), None)
        if following is None:
            assert later.file == written.files[FILES // 2 + 1]
        else:
            assert later.file_position == (wanted, following)


async def test_a_time_before_and_after_everything(written: Written) -> None:
    finder = PositionFinder(written.source, await written.inventory())
    boundary = await finder.at_time(datetime(2020, 1, 1, tzinfo=UTC))
    assert boundary.file_position == (written.files[0], written.groups(written.files[0])[0][0])
    boundary = await finder.at_time(datetime(2100, 1, 1, tzinfo=UTC))
    assert boundary.file_position == (await written.inventory()).end


async def test_every_start_and_end_of_a_transaction_is_a_position_and_nothing_between(written: Written) -> None:
    inventory = await written.inventory()
    finder = PositionFinder(written.source, inventory)
    for file in (written.files[2], written.files[-1]):
        groups = written.groups(file)
        for start, end in groups:
            for offset in (start, end):
                assert (await finder.at(file, offset)).file_position == (file, offset)
        start, end = groups[1]
        inside = next(row[4] for row in written.run(f"SHOW BINLOG EVENTS IN '{file}'") if row[1] == start)
        with pytest.raises(PositionError, match="middle of a transaction") as caught:
            await finder.at(file, inside)
        assert f"{file}:{start} and {file}:{end}" in caught.value.remedy
        with pytest.raises(PositionError, match="middle of an event") as caught:
            await finder.at(file, start + 1)
        assert f"{file}:{start} and {file}:{end}" in caught.value.remedy
    assert (await finder.at(file, 4)).offset == 4
    closed = inventory.files[2]
    assert (await finder.at(closed.name, closed.size)).file_position == (inventory.files[3].name, 4)
    with pytest.raises(PositionError, match="beyond its end"):
        await finder.at(closed.name, closed.size + 1)
    with pytest.raises(PositionError, match=r"does not list mysql-bin\.000099"):
        await finder.at("mysql-bin.000099", 4)


@pytest.mark.parametrize("written", ["mysql"], indirect=True)  # positions of MariaDB have no GTID set
async def test_a_position_carries_the_gtids_that_were_executed_before_it(written: Written) -> None:
    inventory = await written.inventory()
    finder = PositionFinder(written.source, inventory)
    uuid = inventory.server_uuid
    before = 2 + 4 * 3  # the database, the table, and three files of four
    file = written.files[4]
    for index, (start, _) in enumerate(written.groups(file)):
        boundary = await finder.at(file, start)
        assert str(boundary.gtids) == f"{uuid}:1-{before + index}"
        missing = await finder.first_missing(GtidSet(str(boundary.gtids)))
        assert (missing.file_position, str(missing.gtids)) == (boundary.file_position, str(boundary.gtids))
    assert (await finder.first_missing(GtidSet(inventory.executed))).file_position == inventory.end
    holed = GtidSet(f"{uuid}:1-{before - 1}:{before + 1}-{before + 3}")
    assert (await finder.first_missing(holed)).file_position == (
        written.files[3],
        written.groups(written.files[3])[3][0],
    )


async def test_retention_is_what_would_be_purged_before_ours(written: Written, dumps: list[str]) -> None:
    inventory = replace(await written.inventory(), expire_seconds=1000)
    heads = FileHeads(written.source)
    sizes = [binlog.size for binlog in inventory.files]
    uuid, files = inventory.server_uuid, [binlog.name for binlog in inventory.files]
    room = await retention(inventory, Position(uuid, files[3], 200), heads)
    assert room.bytes == sum(sizes[:3]) + 200
    assert room.seconds is not None
    assert room.share is not None
    # the file was closed when the next one was begun, a second for each that follows
    age = (FILES - 3) * 1.01 + inventory.now - commit_times(written, files[-1])[-1][0] / 1e6
    assert room.seconds == pytest.approx(1000 - age, abs=3)
    assert room.share == pytest.approx(room.seconds / 1000)
    dumps.clear()
    for _ in range(3):
        await retention(inventory, Position(uuid, files[3], 300), heads)
    assert not dumps, "each head is read once"
    newest = await retention(inventory, Position(uuid, files[-1], 4), heads)
    assert (newest.seconds, newest.share) == (1000.0, 1.0)
    gone = await retention(inventory, Position(uuid, "mysql-bin.000000", 4), heads)
    assert (gone.bytes, gone.seconds, gone.share) == (0, 0.0, 0.0)
    for_ever = await retention(replace(inventory, expire_seconds=0), Position(uuid, files[3], 200), heads)
    assert (for_ever.seconds, for_ever.share) == (None, (sum(sizes[:3]) + 200) / sum(sizes))
    unknown = await retention(inventory, Position("another", files[3], 200), heads)
    assert (unknown.bytes, unknown.seconds, unknown.share) == (None, None, None)
    if not written.mariadb:
        gtids = (await PositionFinder(written.source, inventory).start_of(files[3])).gtids
        same = await retention(inventory, Position("another", "", 4, str(gtids)), heads)
        assert same.bytes == sum(sizes[:3]) + 4
        assert len(dumps) <= 5


async def test_distances_are_those_of_the_list(written: Written) -> None:
    inventory = await written.inventory()
    sizes = [binlog.size for binlog in inventory.files]
    files = [binlog.name for binlog in inventory.files]
    assert distance(inventory, (files[1], 100), (files[1], 150)) == (50, 0)
    assert distance(inventory, (files[1], 100), (files[3], 4)) == (sizes[1] - 100 + sizes[2] + 4, 2)
    purged = replace(inventory, files=inventory.files[1:])
    assert distance(purged, (files[0], 100), (files[2], 4)) == (None, 2)
    assert distance(inventory, ("other.000000", 100), (files[1], 4)) == (None, None)


async def test_compressed_and_xa_transactions_and_ddl_begin_where_the_server_says(written: Written) -> None:
    """Adds to the newest file, so it comes last."""
    file = written.files[-1]
    known = len(written.groups(file))
    if not written.mariadb:
        written.run("SET SESSION binlog_transaction_compression = ON")
    written.run("INSERT INTO places.t SELECT id + 1000, REPEAT('c', 100) FROM places.t")
    written.run("XA START 'a'", "INSERT INTO places.t VALUES (5000, 'x')", "XA END 'a'", "XA PREPARE 'a'")
    written.run("XA COMMIT 'a'", "ALTER TABLE places.t ADD COLUMN w INT", "CREATE TABLE places.u SELECT 1 AS a")
    starts = [start for start, _ in written.groups(file)]
    assert len(starts) >= known + 5
    inventory = await written.inventory()
    finder = PositionFinder(written.source, inventory)
    counts = []
    for start in starts:
        boundary = await finder.at(file, start)
        assert (boundary.file_position, boundary.commit_time_us > 0) == ((file, start), True)
        counts.append(boundary.gtids.count if boundary.gtids else 0)
    if not written.mariadb:
        assert counts == list(range(counts[0], counts[0] + len(starts)))
    assert (await finder.at(*inventory.end)).file_position == inventory.end


# Last: pytest orders by the number of a parameter, and would begin with another server in between.
@pytest.mark.parametrize("written", ["mariadb"], indirect=True)  # MySQL's GTID sets are kept as they are
async def test_a_gtid_position_of_mariadb_is_found_as_file_and_offset(written: Written) -> None:
    file = written.files[4]
    groups = written.groups(file)
    state = written.run(f"SELECT BINLOG_GTID_POS('{file}', {groups[2][0]})")[0][0]
    move = await relocate(written.source, parse_where(state), None, reason="operator")
    assert (move.position.file, move.position.gtid_set) == (file, "")
    assert groups[1][1] <= move.position.offset <= groups[2][0]  # the server may have written a checkpoint in between
    with pytest.raises(PositionError, match="no position"):
        await relocate(written.source, parse_where("0-31-99999"), None, reason="operator")
    theirs = parse_where("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-3")
    with pytest.raises(PositionError, match="MySQL"):
        await relocate(written.source, theirs, None, reason="operator")
