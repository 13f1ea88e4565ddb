"""What a source promises (ports.source), tried with each kind of server."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest

from headrace.cli.wiring import ADAPTERS
from headrace.errors import PositionLost, SourceEnded
from headrace.model import Position, RowsChange
from headrace.mysql.source import MysqlSource
from headrace.mysql.table_schemas import TableSchemas
from headrace.pipeline.projection import Projections
from headrace.ports.source import ChangeStream, Heartbeat, OpenSource, Receiver, Source
from headrace.settings.daemon import DaemonSettings
from headrace.settings.load import Loader
from headrace.tasks import cancel
from tests import versions

pytestmark = pytest.mark.server

_numbers = itertools.count(1)


@dataclass
class Site:
    """A schema on a server, and sources that capture it."""

    login: dict[str, Any]
    schema: str
    spool: Path

    def execute(self, *statements: str) -> Any:
        """Runs statements, each committed at once; returns the rows of the last."""
        connection = pymysql.connect(**self.login, autocommit=True)
        with connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

    def source(self, **section: Any) -> Source:
        """A source as a destination has it, with further keys of [source]."""
        raw = {
            "name": self.schema,
            "source": {**self.login, "tls": "disabled", "server_id": 900_000 + next(_numbers)} | section,
            "filter": {"include": rf"{self.schema}\..*"},
            "sink": {"type": "null"},
        }
        destination = Loader(ADAPTERS, {}).make_destination(raw)
        return MysqlSource(destination, DaemonSettings(spool=self.spool), Projections(destination).captures)

    def connections(self) -> int:
        return len(self.execute("SHOW PROCESSLIST"))


@pytest.fixture(params=versions.SQL)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    server = request.getfixturevalue(request.param)
    made = Site(server.connection("root"), f"source{next(_numbers)}", tmp_path / "spool")
    made.execute(
        f"CREATE DATABASE {made.schema}", f"CREATE TABLE {made.schema}.t (id INT PRIMARY KEY, name VARCHAR(9))"
    )
    yield made
    made.execute(f"DROP DATABASE {made.schema}")


class Taken:
    """A receiver of rows, which is full whenever it has some."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.new = False
        self.error: Exception | None = None

    def rows(self, change: RowsChange) -> None:
        if self.error is not None:
            raise self.error
        self.ids += [int(row[0]) for row in change.rows]
        self.new = True

    def receiver(self, **more: Any) -> Receiver:
        return Receiver(self.rows, full=lambda: self.new, **more)

    async def read(self, stream: ChangeStream, until: Callable[[], bool]) -> None:
        """Reads until something is so; nothing may fall that never falls."""
        async with asyncio.timeout(20):
            while not until():
                self.new = False
                before = stream.progress()
                await stream.read()
                after = stream.progress()
                assert (after.events, after.transactions, after.bytes) >= (
                    before.events,
                    before.transactions,
                    before.bytes,
                )


@asynccontextmanager
async def opened(source: Source, stored: Position | None = None, **more: Any) -> AsyncIterator[OpenSource]:
    made = await source.open(stored, **more)
    try:
        yield made
    finally:
        await made.close()
        await made.close()


async def test_changes_come_in_order_and_again_from_the_position_after_each(site: Site) -> None:
    insert = f"INSERT INTO {site.schema}.t VALUES "
    async with opened(site.source()) as one:
        first, positions = Taken(), list[Position]()
        stream = one.stream(first.receiver())
        statements = insert + "(3, 'c'), (1, 'a')", insert + "(2, 'b')", f"DELETE FROM {site.schema}.t WHERE id = 3"
        for statement, count in zip(statements, (2, 3, 4), strict=True):
            site.execute(statement)
            await first.read(stream, lambda count=count: len(first.ids) >= count and not stream.in_transaction())
            positions.append(stream.position())
        assert first.ids == [3, 1, 2, 3]
        entries = (*one.take_entries(), *stream.take_entries())
        assert json.loads(json.dumps(entries)) == list(entries), "they can be stored"
        await stream.close()
        await stream.close()
    for position, rest in zip(positions, ([2, 3], [3], []), strict=True):
        async with opened(site.source(), position, entries=entries) as again:
            second = Taken()
            stream = again.stream(second.receiver())
            assert again.start == position
            end = await site_end(site)
            await second.read(stream, lambda stream=stream, end=end: stream.has_reached(end))
            assert second.ids == rest
            assert stream.position().last_pos >= position.last_pos, "numbers never fall"


@pytest.mark.parametrize("site", ["mysql56"], indirect=True)  # its rows have no names of columns
async def test_a_first_start_begins_after_a_table_was_altered_meanwhile(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of before the statement could not be read, and nobody has asked for them."""
    read, table = TableSchemas.read, f"{site.schema}.t"
    statements = iter([f"INSERT INTO {table} VALUES (1, 'a')", f"ALTER TABLE {table} ADD COLUMN more INT FIRST"])

    async def altered(*given: Any) -> TableSchemas:
        site.execute(*statements, "DO 0")
        return await read(*given)

    monkeypatch.setattr(TableSchemas, "read", altered)
    async with opened(site.source(start="latest")) as one:
        taken = Taken()
        stream = one.stream(taken.receiver())
        site.execute(f"INSERT INTO {table} VALUES (7, 2, 'b')")
        await taken.read(stream, lambda: bool(taken.ids))
        assert taken.ids == [7]


async def site_end(site: Site) -> tuple[str, int]:
    second = site.source().second_connection()
    try:
        return await second.end()
    finally:
        await second.close()
        await second.close()


async def test_a_read_that_is_cancelled_has_given_nothing_and_goes_on(site: Site) -> None:
    async with opened(site.source()) as one:
        taken = Taken()
        stream = one.stream(taken.receiver())
        end = await site_end(site)
        await taken.read(stream, lambda: stream.has_reached(end))
        before = stream.position()
        waiting = asyncio.create_task(taken.read(stream, lambda: False))
        async with asyncio.timeout(10):
            while not stream.silent_since():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await cancel(waiting)
        assert (taken.ids, stream.position()) == ([], before)
        site.execute(f"INSERT INTO {site.schema}.t VALUES (7, 'x')")
        await taken.read(stream, lambda: bool(taken.ids))
        assert taken.ids == [7]
        waiting = asyncio.create_task(stream.read())
        await cancel(waiting)
        await stream.close()


async def test_nothing_counts_that_was_given_when_the_receiver_fails(site: Site) -> None:
    async with opened(site.source()) as one:
        taken = Taken()
        stream = one.stream(taken.receiver())
        end = await site_end(site)
        await taken.read(stream, lambda: stream.has_reached(end))
        before, taken.error = stream.position(), RuntimeError("no room")
        site.execute(f"INSERT INTO {site.schema}.t VALUES (1, 'a')")
        with pytest.raises(RuntimeError, match="no room"):
            await taken.read(stream, lambda: False)
    again = Taken()
    async with opened(site.source(), before) as one:
        await again.read(one.stream(again.receiver()), lambda: bool(again.ids))
    assert again.ids == [1]


async def test_an_ended_stream_is_reopened_after_what_it_gave(site: Site) -> None:
    async with opened(site.source()) as one:
        taken = Taken()
        stream = one.stream(taken.receiver())
        site.execute(f"INSERT INTO {site.schema}.t VALUES (1, 'a')")
        await taken.read(stream, lambda: bool(taken.ids) and not stream.in_transaction())
        dumps = [row[0] for row in site.execute("SHOW PROCESSLIST") if str(row[4]).startswith("Binlog Dump")]
        for number in dumps:
            site.execute(f"KILL {number}")
        with pytest.raises(SourceEnded):
            await taken.read(stream, lambda: False)
        assert await stream.reopen() > 0
        site.execute(f"INSERT INTO {site.schema}.t VALUES (2, 'b')")
        await taken.read(stream, lambda: len(taken.ids) == 2)
        assert taken.ids == [1, 2]
        await stream.close()


async def test_a_position_that_the_source_does_not_have_is_lost_and_nothing_is_left_open(site: Site) -> None:
    async with opened(site.source()) as one:
        start = one.start
    before = site.connections()
    lost = Position(start.server_uuid, "nowhere.000001", 4, start.gtid_set)
    if start.gtid_set:
        lost = Position(start.server_uuid, start.file, 1 << 40)
    with pytest.raises(PositionLost) as caught:
        await site.source().open(lost)
    assert caught.value.kind
    async with asyncio.timeout(10):
        while site.connections() > before:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


# The statement that makes the row warns where there is one already, which the client would tell of each time.
@pytest.mark.filterwarnings("ignore:Duplicate entry")
async def test_a_heartbeat_comes_back_in_the_stream_and_a_higher_epoch_remains(site: Site) -> None:
    source, seen = site.source(), list[Heartbeat]()
    second = source.second_connection()
    try:
        async with opened(source) as one:
            taken = Taken()
            stream = one.stream(taken.receiver(heartbeat=seen.append))
            assert await second.stored_heartbeat() is None
            mine = Heartbeat(site.schema, 2, "node", 1, 1_700_000_000_000_000)
            assert await second.write_heartbeat(mine) is None
            await taken.read(stream, lambda: bool(seen))
            assert (seen, taken.ids) == ([mine], [])
            assert await second.stored_heartbeat() == mine
            older = Heartbeat(site.schema, 1, "old", 9, 1_800_000_000_000_000)
            assert await second.write_heartbeat(older) == mine
            assert await second.stored_heartbeat() == mine
    finally:
        await second.close()
        site.execute(f"DELETE FROM headrace.heartbeat WHERE destination = '{site.schema}'")
        await source.check()


async def test_how_far_a_position_is_from_being_purged_is_reported(site: Site) -> None:
    source = site.source()
    async with opened(source) as one:
        left = await source.retention(one.start)
    assert (left.bytes or 0) >= 0
    assert left.share is None or 0 <= left.share <= 1


async def test_a_source_is_reachable_when_one_of_its_addresses_answers(site: Site) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and it does not listen
        nobody = taken.getsockname()[1]
        before = site.connections()
        assert await site.source().reachable()
        assert await site.source(password="wrong").reachable(), "it answers"
        assert not await site.source(port=nobody).reachable()
        standby = [{"host": site.login["host"], "port": site.login["port"]}]
        assert await site.source(port=nobody, standby=standby).reachable()
        async with asyncio.timeout(10):
            while site.connections() > before:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
