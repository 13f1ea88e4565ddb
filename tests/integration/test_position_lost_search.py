"""Places that a source lost: what is proven of a file that is cut off, and where the policies lead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pydantic import SecretStr

from devstack import Stack
from headrace.errors import LostKind, PositionLost, SourceError
from headrace.model import OpenXa, Position
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.events.splitter import EventSplitter
from headrace.mysql.opening import make_ready
from headrace.mysql.position.inventory import Inventory, take_inventory
from headrace.mysql.position.move import NextFile, relocate, relocate_by_policy
from headrace.mysql.position.report import _ask, judge
from headrace.mysql.position.scan import limit_after
from headrace.mysql.position.search import PositionFinder
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.settings.destination import SourceSettings

pytestmark = pytest.mark.server


class Lost:
    """A server of its own with a few binlogs, which the tests purge, cut and remove: each has its own files."""

    def __init__(self, server: Any, *, mariadb: bool) -> None:
        self.server, self.mariadb = server, mariadb
        self.source = SourceSettings(
            host=server.host, port=server.port, user="canal", password=SecretStr("canal"), server_id=4712
        )
        self.connection = pymysql.connect(**server.connection("root"), autocommit=True)
        self.run("CREATE DATABASE lost", "CREATE TABLE lost.t (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(100))")

    def run(self, *statements: str) -> Any:
        with self.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

    def files(self, count: int, rows: int = 3) -> list[str]:
        """New files with so many transactions each; the last is in use."""
        for _ in range(count):
            self.run("FLUSH BINARY LOGS")
            self.wait_for_checkpoint()
            for _ in range(rows):
                self.run("INSERT INTO lost.t (v) VALUES (REPEAT('x', 50))")
        return [row[0] for row in self.run("SHOW BINARY LOGS")][-count:]

    def wait_for_checkpoint(self) -> None:
        """Waits for the event that MariaDB's background thread writes to a new file, else between any two
        transactions of it."""
        while self.mariadb:
            newest = self.run("SHOW BINARY LOGS")[-1][0]
            events = self.run(f"SHOW BINLOG EVENTS IN '{newest}'")
            if any(row[2] == "Binlog_checkpoint" and row[5] == newest for row in events):
                return

    def starts(self, file: str) -> list[int]:
        return [row[1] for row in self.run(f"SHOW BINLOG EVENTS IN '{file}'") if row[2] in ("Gtid", "Anonymous_Gtid")]

    def path(self, file: str) -> Path:
        return Path(self.server.datadir) / file

    async def inventory(self) -> Inventory:
        connection = await SourceConnection.open(address_of(self.source))
        try:
            return await take_inventory(connection)
        finally:
            await connection.close()

    async def position(self, file: str, offset: int, **more: Any) -> Position:
        """A stored position there, by GTID where the server has them."""
        inventory = await self.inventory()
        gtids = (await PositionFinder(self.source, inventory).at(file, offset)).gtids
        return Position(
            inventory.server_uuid, file, offset, str(gtids) if gtids else "", last_pos=77, commit_time_us=9, **more
        )

    async def lose(self, stored: Position) -> PositionLost:
        """How the source loses this position."""
        with pytest.raises(PositionLost) as caught:
            await self.read(stored)
        return caught.value

    async def read(self, stored: Position) -> list[str]:
        """The files that a stream from here reads, up to the end of the binlog."""
        dump = await (await make_ready(self.source, stored)).dump()
        cursor, files = EventCursor(stored.file, stored.offset, checksums=dump.start.checksums), set[str]()

        def note(data: bytes, at: int, stop: int) -> None:
            if cursor.start >= 0:
                files.add(cursor.file)

        reader = EventSplitter(cursor, {}, other=note)
        try:
            data, end = b"", (await self.inventory()).end
            while (cursor.file, cursor.end) < end:
                data = await dump.packets.read(data, reader.need, 10)
                at, more = 0, True
                while more:
                    at, more = reader.feed(data, at, lambda: False)
                data = data[at:]
        finally:
            await dump.close()
        return sorted(files)


async def prove_truncated(
    source: SourceSettings, inventory: Inventory, file: str, offset: int = 0
) -> tuple[int, str] | None:
    return await PositionFinder(source, inventory).truncation(file, offset)


@pytest.fixture(scope="module", params=["mysql", "mariadb", pytest.param("mysql-without-gtid", marks=pytest.mark.long)])
def lost(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Lost]:
    mariadb = request.param == "mariadb"
    off = ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF") if request.param == "mysql-without-gtid" else ()
    launch = stack.mariadb if mariadb else stack.mysql
    server = launch(None, *off, name=f"lost-places-{request.param}", server_id=41)
    made = Lost(server, mariadb=mariadb)
    yield made
    made.connection.close()
    server.kill()


def cut(path: Path, size: int) -> None:
    os.truncate(path, size)


async def test_a_file_that_is_cut_off_is_proven_and_passed_over(lost: Lost) -> None:
    before, broken, following, newest = lost.files(4)
    starts = lost.starts(broken)
    stored = await lost.position(broken, starts[1], open_xa=(OpenXa("1:61:", before, 4),))
    await lost.read(stored)
    cut(lost.path(broken), starts[2] + 30)
    inventory = await lost.inventory()
    assert await prove_truncated(lost.source, inventory, broken, starts[1]) == (starts[2], following)
    assert await prove_truncated(lost.source, inventory, broken) is not None
    assert await prove_truncated(lost.source, inventory, broken, starts[1] + 1) is None
    assert await prove_truncated(lost.source, inventory, broken, starts[2] + 1) is None
    assert await prove_truncated(lost.source, inventory, before, 4) is None
    assert await prove_truncated(lost.source, inventory, newest, 4) is None
    plain = Position(**{**_fields(stored), "open_xa": ()})
    error = await lost.lose(plain)
    assert error.kind is LostKind.TRUNCATED
    state, text = judge(lost.source, plain, await _ask("shop", [lost.source], plain))
    assert (state, text.split(": ")[1]) == ("POSITION_LOST", "truncated"), "headrace position show says so too"
    whole = Position(**{**_fields(plain), "file": following, "offset": 4})
    assert judge(lost.source, whole, await _ask("shop", [lost.source], whole))[0] == "ok"
    for policy in ("next_file", "earliest"):  # the oldest would lead into the same file again
        move = await relocate_by_policy(lost.source, policy, error, stored)
        assert move is not None
        assert (move.position.file, move.position.offset) == (following, 4)
        assert move.position.last_pos >= limit_after(int(inventory.now)), "above all that is committed"
        assert (move.gap.reason, move.gap.files, move.gap.backward) == ("truncated", 1, False)
        assert any("XA" in note for note in move.notes)
        if stored.gtid_set:
            ours = GtidSet(stored.gtid_set)
            assert move.gap.transactions == 2
            assert str(GtidSet(move.position.gtid_set).minus(ours)) == move.gap.gtids
        else:
            assert move.gap.transactions is None
        assert move.gap.bytes is not None
        assert [entry["kind"] for entry in move.entries] == ["doubt"]
        seen = await lost.read(move.position)
        assert broken not in seen
        assert newest in seen
    operator = await relocate(lost.source, NextFile(), stored, reason="operator")
    numbers = {"last_pos": 0, "snapshot_pos": 0}  # which follow the clock
    assert _fields(operator.position) | numbers == _fields(move.position) | numbers, "what policies chose"
    lost.run(f"PURGE BINARY LOGS TO '{newest}'")


def _fields(position: Position) -> dict[str, Any]:
    return {name: getattr(position, name) for name in position.__slots__}


async def test_a_wrong_offset_in_a_sound_file_is_no_truncation(lost: Lost) -> None:
    file, _ = lost.files(2)
    start = lost.starts(file)[1]
    inventory = await lost.inventory()
    stored = Position(inventory.server_uuid, file, start + 25, last_pos=5)
    error = PositionLost(
        f"binlog truncated in the middle of event; the first event '{file}' at {start + 25}, the last event read from "
        f"'./{file}' at {start + 25}, the last byte read from './{file}' at {start + 44}.",
        kind=LostKind.TRUNCATED,
        position=f"{file}:{start + 44}",
    )
    if not inventory.gtid_mode:  # with GTIDs the file is read from its beginning anyway
        try:
            await lost.read(stored)
        except PositionLost as real:
            error = real
            assert error.kind is LostKind.TRUNCATED
        except SourceError:
            pass  # what the bytes there look like decides the text
    assert await relocate_by_policy(lost.source, "next_file", error, stored) is None
    assert await relocate_by_policy(lost.source, "fail", error, stored) is None


async def test_a_purged_position_goes_on_as_its_policy_says(lost: Lost) -> None:
    _, second, third, newest = lost.files(4)
    stored = await lost.position(second, lost.starts(second)[1])
    passed = await lost.position(second, lost.starts(second)[2])
    lost.run(f"PURGE BINARY LOGS TO '{third}'")
    error = await lost.lose(stored)
    assert error.kind in (LostKind.POSITION_PURGED, LostKind.GTIDS_PURGED)
    assert await relocate_by_policy(lost.source, "next_file", error, stored) is None
    move = await relocate_by_policy(lost.source, "earliest", error, stored)
    assert move is not None
    assert move.position.file == third
    assert move.position.last_pos >= limit_after(int((await lost.inventory()).now) - 60), "above all that is committed"
    assert (move.gap.files, move.gap.bytes) == (1, None)
    assert await lost.read(move.position) == [third, newest]
    if stored.gtid_set:
        assert move.gap.transactions == 2
        # what was published of the files that are left is not published again
        ahead = Position(**{**_fields(stored), "gtid_set": _without(await lost.inventory(), stored, passed)})
        kept = await relocate_by_policy(lost.source, "earliest", error, ahead)
        assert kept is not None
        assert kept.gap.transactions == 1
        assert GtidSet(kept.position.gtid_set).contains(GtidSet(ahead.gtid_set))
    move = await relocate_by_policy(lost.source, "latest", error, stored)
    assert move is not None
    assert (move.position.file, move.position.offset) == (await lost.inventory()).end
    assert move.position.gtid_set == (await lost.inventory()).executed
    assert move.gap.reason == error.kind.value


def _without(inventory: Inventory, stored: Position, passed: Position) -> str:
    """All that was executed, less one transaction that is purged."""
    one = GtidSet(passed.gtid_set).minus(GtidSet(stored.gtid_set))
    return str(GtidSet(inventory.executed).minus(one))


async def test_a_file_that_is_gone_from_the_disk_is_not_gone_into_again(lost: Lost) -> None:
    first, second, third, newest = lost.files(4)
    stored = await lost.position(first, lost.starts(first)[1])
    kept = lost.path(second).read_bytes()
    lost.path(second).unlink()
    try:
        inventory = await lost.inventory()
        assert [binlog.name for binlog in inventory.readable] == [third, newest]
        error = PositionLost("gone", kind=LostKind.POSITION_PURGED)
        move = await relocate_by_policy(lost.source, "earliest", error, stored)
        assert move is not None
        assert move.position.file == third
        assert await lost.read(move.position) == [third, newest]
    finally:
        lost.path(second).write_bytes(kept)


@pytest.mark.parametrize(
    "lost", [pytest.param("mysql-without-gtid", marks=pytest.mark.long), "mariadb"], indirect=True
)  # by GTID no offset counts
async def test_a_file_that_became_shorter_is_read_from_the_oldest(lost: Lost) -> None:
    lost.run("FLUSH BINARY LOGS")
    file, newest = lost.files(2)
    lost.run(f"PURGE BINARY LOGS TO '{file}'")
    start = lost.starts(file)[2]
    end = (await lost.inventory()).size(file)
    stored = await lost.position(file, start)
    beyond = Position(stored.server_uuid, file, end, last_pos=1 << 62, commit_time_us=1 << 51)
    cut(lost.path(file), start)
    error = await lost.lose(beyond)
    assert error.kind is LostKind.BEYOND_END
    assert await relocate_by_policy(lost.source, "next_file", error, beyond) is None
    move = await relocate_by_policy(lost.source, "earliest", error, beyond)
    assert move is not None
    assert (move.position.file, move.position.offset, move.gap.backward) == (file, 4, True)
    assert move.position.last_pos > 1 << 62, "the numbers of a binlog that has just begun may be any of its second"
    assert await lost.read(move.position) == [file, newest]


async def test_another_server_without_gtids_is_never_guessed_at(lost: Lost) -> None:
    error = PositionLost("gone", kind=LostKind.POSITION_PURGED)
    stored = Position("another", "mysql-bin.000001", 4)
    assert await relocate_by_policy(lost.source, "earliest", error, stored) is None


async def test_the_newest_file_is_never_cut_off_whatever_it_looks_like(lost: Lost) -> None:
    """The last of this server: its binlog is broken afterwards."""
    (newest,) = lost.files(1)
    starts = lost.starts(newest)
    cut(lost.path(newest), starts[2] + 30)
    assert await prove_truncated(lost.source, await lost.inventory(), newest, starts[1]) is None
