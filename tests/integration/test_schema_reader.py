"""Readings of information_schema on real servers: from where on they hold, and that a wrong one is never used."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pymysql
import pytest
import structlog

from devstack import Stack
from headrace.errors import SchemaDiffers, SourceError
from headrace.model import Position
from headrace.mysql.events.query_event import QueryEvent
from headrace.mysql.schema.comparison import SchemaComparison
from headrace.mysql.schema.history import Reading, SchemaHistory
from headrace.mysql.schema.reader import prepare, read_schemas
from headrace.mysql.wire.connection import Server
from headrace.settings.destination import SourceSettings
from tests.ddl_replay import Recorder, Replay
from tests.versions import long

pytestmark = pytest.mark.server
_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["mysql", *long("mariadb")])
def server(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Any]:
    return stack.mysql() if request.param == "mysql" else stack.mariadb()


class Shop:
    """A schema on a server, and readings of it."""

    def __init__(self, server: Any, recorder: Recorder) -> None:
        self.server, self.recorder = server, recorder
        self.name = f"reading{next(_numbers)}"
        self.connection = recorder.session()
        self.cursor = self.connection.cursor()
        self.run(f"CREATE DATABASE {self.name} CHARACTER SET utf8mb4", f"USE {self.name}")

    def run(self, *statements: str) -> None:
        for statement in statements:
            assert self.recorder.run(self.name, self.cursor, statement, [self.name]), statement

    def here(self) -> Position:
        gtids = ""
        if not self.recorder.mariadb:
            self.cursor.execute("SELECT @@global.gtid_executed")
            gtids = str(self.cursor.fetchone()[0]).replace("\n", "")
        return Position("server", self.recorder.path.name, self.recorder.position(), gtids)

    def captures(self, schema: str, table: str) -> bool:
        return schema == self.name

    def history(self) -> SchemaHistory:
        return SchemaHistory(
            self.captures, mariadb=self.recorder.mariadb, version=self.recorder.version, lower_case_table_names=0
        )

    @property
    def source(self) -> Server:
        settings = SourceSettings(
            host=self.server.host,
            port=self.server.port,
            user=self.server.user,
            password=self.server.password,
            tls="disabled",
            server_id=7_000 + next(_numbers),
        )
        version, mariadb = self.recorder.version, self.recorder.mariadb
        return Server(settings, version, mariadb, gtid_mode=not mariadb, lower_case_table_names=0)

    async def read(self, position: Position, history: SchemaHistory | None = None) -> Reading:
        return await read_schemas(self.source, position, self.captures, history or self.history())

    async def read_late(self, position: Position, history: SchemaHistory) -> Reading:
        """When nothing behind the position may be scanned."""
        return await read_schemas(self.source, position, self.captures, history, scan_limit=-1)

    async def comparison(self, position: Position) -> tuple[SchemaComparison, SchemaHistory]:
        """Of a history that knows all tables as of a position that is the end of the binlog."""
        history = self.history()
        history.adopt(await self.read(position, history))
        return SchemaComparison("shop", self.source, history), history


@pytest.fixture
def shop(server: Any) -> Iterator[Shop]:
    recorder = Recorder(server)
    made = Shop(server, recorder)
    yield made
    made.cursor.execute(f"DROP DATABASE {made.name}")
    made.connection.close()
    recorder.close()


def names(history: SchemaHistory, shop: Shop, table: str) -> list[str] | None:
    known = history.table(shop.name, table)
    return None if known is None else [column.name for column in known.columns]


async def test_a_reading_without_ddl_after_the_position_is_valid_at_once(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a varchar(9) CHARACTER SET latin1)")
    position = shop.here()
    shop.run("INSERT INTO t VALUES (77, 'x')")
    history = shop.history()
    history.adopt(await shop.read(position, history))
    known = history.table(shop.name, "t")
    assert known is not None
    assert [(c.name, c.mysql_type, c.charset) for c in known.columns][1] == ("a", "varchar(9)", "latin1")
    assert known.keys == (0,)
    assert history.complete(shop.name)
    assert history.knows(shop.name, "never_made")


async def test_two_columns_swapped_while_the_daemon_was_behind_are_unknown_until_the_swap(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "CREATE TABLE quiet (x int)")
    position = shop.here()
    shop.run("INSERT INTO t VALUES (5, 6, 7)")
    swap = "ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a"
    shop.run(swap)
    behind = shop.recorder.steps[-1].end
    history = shop.history()
    history.adopt(await shop.read(position, history))
    assert names(history, shop, "t") is None
    assert "is true only after" in history.unknown_because(shop.name, "t")
    assert names(history, shop, "quiet") == ["x"]
    replay = Replay(shop.recorder, history).run()
    assert replay.differences == []
    assert names(history, shop, "t") == ["id", "b", "a"]
    assert behind > position.offset


async def test_several_ddls_after_the_position_leave_the_old_shapes_unknown(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int, a int, b int)")
    position = shop.here()
    shop.run("ALTER TABLE t ADD c int", "ALTER TABLE t RENAME COLUMN a TO z", "ALTER TABLE t DROP b")
    history = shop.history()
    reading = await shop.read(position, history)
    _, place = reading.tables[shop.name, "t"]
    assert place is not None
    assert place[1] > shop.recorder.steps[-2].end
    assert place[1] <= shop.recorder.steps[-1].end
    history.adopt(reading)
    assert names(history, shop, "t") is None
    query = QueryEvent(shop.name, b"ALTER TABLE t ADD c int")
    history.apply(query, file=place[0], end=place[1] - 1, pos=1)
    assert names(history, shop, "t") is None
    history.apply(query, file=place[0], end=place[1], pos=2)
    assert names(history, shop, "t") == ["id", "z", "c"]


async def test_a_statement_that_is_not_understood_puts_every_table_in_doubt(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int)", "CREATE TABLE u (id int)")
    position = shop.here()
    history = shop.history()
    history.adopt(await shop.read(position, history))
    history.apply(QueryEvent(shop.name, b"ALTER TABLE t FROBNICATE"), file=position.file, end=position.offset, pos=3)
    assert names(history, shop, "t") is None
    assert names(history, shop, "u") == ["id"]
    history.apply(QueryEvent(shop.name, b"CREATE STRANGE THING"), file=position.file, end=position.offset, pos=4)
    assert names(history, shop, "u") is None
    assert "CREATE STRANGE THING" in history.unknown_because(shop.name, "u")
    # The server shows what they are, and the binlog shows no DDL behind the position: known again.
    history.adopt(await shop.read(position, history))
    assert (names(history, shop, "t"), names(history, shop, "u")) == (["id"], ["id"])


async def test_a_reading_far_behind_is_valid_from_the_end_of_the_binlog_on(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int, a int)", "CREATE TABLE quiet (x int)")
    position, history = shop.here(), shop.history()
    shop.run("ALTER TABLE t RENAME COLUMN a TO b", "INSERT INTO t VALUES (5, 6)")
    end = shop.here()
    history.adopt(await shop.read_late(position, history))
    assert (names(history, shop, "t"), names(history, shop, "quiet")) == (None, None)
    history.pass_by((end.file, end.offset - 1), 1)
    assert (names(history, shop, "t"), names(history, shop, "quiet")) == (None, None)
    history.pass_by((end.file, end.offset), 1)
    assert (names(history, shop, "t"), names(history, shop, "quiet")) == (["id", "b"], ["x"])
    assert history.complete(shop.name)
    assert not history.waits


async def test_ddl_that_falls_into_a_reading_far_behind_has_it_read_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.mysql.schema import reader as schema_reader

    shop.run("CREATE TABLE t (id int, a int)")
    position, history = shop.here(), shop.history()
    shop.run("INSERT INTO t VALUES (5, 6)")
    left = ["ALTER TABLE t ADD b int"]
    original: Callable[..., Any] = schema_reader.read_tables

    async def torn(*arguments: Any) -> Any:
        async for read in original(*arguments):
            yield read
        if left:
            shop.run(left.pop())

    monkeypatch.setattr(schema_reader, "read_tables", torn)
    reading = await shop.read_late(position, history)
    table, behind = reading.tables[shop.name, "t"]
    assert [column.name for column in table.columns] == ["id", "a", "b"]
    assert behind is not None
    assert reading.since is not None
    assert behind > reading.since


async def test_nothing_is_scanned_or_read_when_all_is_known(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.run("CREATE TABLE t (id int)")
    position = shop.here()
    history = shop.history()
    history.adopt(await shop.read(position, history))
    entries = history.take_entries(0)
    shop.run("INSERT INTO t VALUES (3)")
    again = shop.history()
    again.restore(entries, 0)
    monkeypatch.setattr("headrace.mysql.schema.gap.DdlScan.run_to", _never)
    reading = await shop.read(position, again)
    assert (reading.tables, reading.schemas) == ({}, {})
    assert names(again, shop, "t") == ["id"]


async def _never(*_: object) -> None:
    raise AssertionError("the binlog is scanned")


@pytest.mark.parametrize("moment", ["before the columns are read", "after the columns are read"])
async def test_a_reading_that_ddl_tears_is_read_again(shop: Shop, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    from headrace.mysql.schema import reader as schema_reader

    shop.run("CREATE TABLE t (id int, a int)")
    position = shop.here()
    left = ["ALTER TABLE t RENAME COLUMN a TO b", "ALTER TABLE t ADD c int"]
    original: Callable[..., Any] = schema_reader.read_tables

    async def torn(*arguments: Any) -> Any:
        if moment.startswith("before") and left:
            shop.run(left.pop(0))
        async for read in original(*arguments):
            yield read
        if moment.startswith("after") and left:
            shop.run(left.pop(0))

    monkeypatch.setattr(schema_reader, "read_tables", torn)
    reading = await shop.read(position)
    table, valid_from = reading.tables[shop.name, "t"]
    assert [column.name for column in table.columns] == ["id", "b", "c"]
    assert valid_from is not None


async def test_a_table_that_changes_all_the_time_is_left_unknown(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.mysql.schema import reader as schema_reader

    shop.run("CREATE TABLE t (id int)", "CREATE TABLE still (id int)")
    original: Callable[..., Any] = schema_reader.read_tables
    count = itertools.count()

    async def torn(*arguments: Any) -> Any:
        async for read in original(*arguments):
            yield read
        shop.run(f"ALTER TABLE t ADD c{next(count)} int")

    monkeypatch.setattr(schema_reader, "read_tables", torn)
    reading = await shop.read(shop.here())
    assert "kept changing" in reading.unknown[shop.name, "t"]
    assert (shop.name, "still") in reading.tables


async def test_a_table_that_was_locked_while_it_was_read_waits_for_the_lock(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.mysql.schema import reader as schema_reader

    monkeypatch.setattr(schema_reader, "_LOCK_SECONDS", 1)
    shop.run("CREATE TABLE t (id int)")
    blocker = pymysql.connect(**shop.server.connection("root"), database=shop.name, autocommit=True)
    with blocker, blocker.cursor() as cursor:
        cursor.execute("LOCK TABLES t WRITE")
        reading = await shop.read(shop.here())
    assert "does not let us open it" in reading.unknown[shop.name, "t"]


async def test_ddl_in_a_later_file_of_the_binlog_is_found(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int, a int)", "CREATE TABLE quiet (x int)")
    position = shop.here()
    connection = shop.recorder.session()
    with connection, connection.cursor() as cursor:
        for statement in ("INSERT INTO t VALUES (1, 2)", "FLUSH BINARY LOGS", "ALTER TABLE t RENAME COLUMN a TO b"):
            cursor.execute(statement.replace(" t ", f" {shop.name}.t "))
    reading = await shop.read(position)
    _, place = reading.tables[shop.name, "t"]
    assert place is not None
    assert place[0] > position.file
    assert reading.tables[shop.name, "quiet"][1] is None
    history = shop.history()
    history.adopt(reading)
    query = QueryEvent(shop.name, b"ALTER TABLE t RENAME COLUMN a TO b")
    history.apply(query, file=position.file, end=1 << 40, pos=1)
    assert names(history, shop, "t") is None
    history.apply(query, file=place[0], end=place[1], pos=2)
    assert names(history, shop, "t") == ["id", "b"]


async def test_a_table_whose_rows_did_not_fit_is_read_again(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int)")
    position = shop.here()
    history = shop.history()
    history.adopt(await shop.read(position, history))
    history.mistrust(shop.name, "t", "its rows have two columns")
    assert history.unknown_because(shop.name, "t") == "its rows have two columns"
    history.adopt(await shop.read(position, history))
    assert names(history, shop, "t") == ["id"]


SWAP = "ALTER TABLE t CHANGE a b int, CHANGE b a int"


def unlogged(shop: Shop, *statements: str) -> None:
    with shop.recorder.session() as connection, connection.cursor() as cursor:
        for statement in (f"USE {shop.name}", "SET sql_log_bin = 0", *statements):
            cursor.execute(statement)


async def test_what_the_statements_after_the_position_explain_is_no_difference(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "CREATE TABLE u (x int, y int)")
    position = shop.here()
    comparison, _ = await shop.comparison(position)
    shop.run(SWAP, "ALTER TABLE t ADD c int", "RENAME TABLE u TO v, t TO u, v TO t")
    await comparison.begin(position)
    unlogged(shop, "ALTER TABLE u CHANGE a b int, CHANGE b a int")
    with pytest.raises(SchemaDiffers, match=r"`b` int.* by the schema history and `a` int.* on the server"):
        await comparison.run(position, (shop.name, "u"))


CHANGES = {
    "names": SWAP,
    "sign": "ALTER TABLE t MODIFY a int unsigned",
    "members": "ALTER TABLE t MODIFY e enum('y','x')",
    "character set": "ALTER TABLE t MODIFY v varchar(9) CHARACTER SET latin1",
    "number of columns": "ALTER TABLE t DROP b",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_each_change_of_what_rows_mean_is_a_difference(shop: Shop, change: str) -> None:
    columns = "id int PRIMARY KEY, a int, b int, e enum('x','y'), v varchar(9) CHARACTER SET latin2"
    shop.run(f"CREATE TABLE t ({columns})")
    position = shop.here()
    comparison, _ = await shop.comparison(position)
    await comparison.run(position, (shop.name, "t"))
    unlogged(shop, change)
    with pytest.raises(SchemaDiffers, match=rf"{shop.name}\.t was changed without a statement in the binlog"):
        await comparison.run(position, (shop.name, "t"))


async def test_a_key_that_was_changed_without_a_statement_is_taken_as_the_server_shows_it(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a int NOT NULL)")
    position = shop.here()
    comparison, history = await shop.comparison(position)
    unlogged(shop, "ALTER TABLE t DROP PRIMARY KEY, ADD UNIQUE (a)")
    await comparison.run(position, (shop.name, "t"))
    known = history.table(shop.name, "t")
    assert known is not None
    assert (known.keys, known.promoted) == ((1,), True)


async def test_a_table_that_may_have_changed_and_cannot_be_checked_is_not_skipped(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.mysql.schema import reader as schema_reader

    monkeypatch.setattr(schema_reader, "_LOCK_SECONDS", 1)
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    position = shop.here()
    comparison, _ = await shop.comparison(position)
    unlogged(shop, SWAP)
    blocker = pymysql.connect(**shop.server.connection("root"), database=shop.name, autocommit=True)
    with blocker, blocker.cursor() as cursor:
        cursor.execute("LOCK TABLES t WRITE")
        with pytest.raises(SourceError, match="may have changed, and can't be read"):
            await comparison.run(position, (shop.name, "t"))
        assert not comparison.agreed((shop.name, "t"), (position.file, position.offset))
    with pytest.raises(SchemaDiffers):
        await comparison.run(position, (shop.name, "t"))


@pytest.mark.parametrize("logged", [True, False])
async def test_a_table_that_is_dropped_while_it_is_checked_is_no_difference_when_the_binlog_says_so(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, logged: bool
) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    position = shop.here()
    comparison, _ = await shop.comparison(position)
    shop.run(SWAP)

    async def dropped(*what: Any, **more: Any) -> None:
        await prepare(*what, **more)
        if not more:  # the second time, before it is looked at why the table differs
            (shop.run if logged else partial(unlogged, shop))("DROP TABLE t")

    monkeypatch.setattr("headrace.mysql.schema.comparison.prepare", dropped)
    if logged:
        await comparison.run(position, (shop.name, "t"))
    else:
        with pytest.raises(SourceError, match="may have changed, and can't be read"):
            await comparison.run(position, (shop.name, "t"))


async def test_where_rows_bring_their_names_a_difference_at_the_start_is_no_stop(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    position = shop.here()
    comparison, _ = await shop.comparison(position)
    unlogged(shop, SWAP)
    with structlog.testing.capture_logs() as lines:
        await comparison.begin(position)
    assert ["without a statement in the binlog" in line["event"] for line in lines] == [True]


async def test_what_rows_do_not_show_is_no_difference(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a int)")
    position = shop.here()
    comparison, _ = await shop.comparison(position)
    unlogged(shop, "ALTER TABLE t ADD INDEX (a), ALTER a SET DEFAULT 5, COMMENT 'x', MODIFY id int COMMENT 'y'")
    await comparison.run(position, (shop.name, "t"))


async def test_tables_that_statements_keep_changing_meanwhile_are_no_difference(shop: Shop) -> None:
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    position = shop.here()
    comparison, _ = await shop.comparison(position)
    ended = threading.Event()

    def change() -> None:
        with shop.recorder.session() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE {shop.name}")
            while not ended.is_set():
                cursor.execute(SWAP)
                cursor.execute("ALTER TABLE t ADD c int, DROP a")
                cursor.execute("ALTER TABLE t CHANGE c a int FIRST")

    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(change)
        try:
            for _ in range(8):
                await comparison.run(position, (shop.name, "t"))
        finally:
            ended.set()
        changing.result()


async def test_every_few_minutes_tables_without_names_are_compared_though_no_row_comes(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.mysql.schema.comparison._AT_ONCE", 2)
    shop.run("CREATE TABLE s (id int)", "CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "CREATE TABLE u (id int)")
    position = shop.here()
    comparison, _ = await shop.comparison(position)
    for table in ("s", "u", "t"):
        comparison.compare_often((shop.name, table))
        comparison.examined((shop.name, table), (position.file, position.offset))
    assert not comparison.is_due()
    unlogged(shop, SWAP)
    began = time.monotonic()
    clock = began + 301
    monkeypatch.setattr("headrace.mysql.schema.comparison._now", lambda: clock)
    assert comparison.is_due()
    await comparison.run(position)
    assert not comparison.is_due(), "these were the first two"
    clock = began + 460
    assert comparison.is_due()
    with pytest.raises(SchemaDiffers):
        await comparison.run(position)


async def test_rows_that_ask_too_often_are_compared_a_little_later(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.mysql.schema.comparison._BURST", 0.0)
    shop.run("CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "CREATE TABLE u (id int)")
    position = shop.here()
    comparison, _ = await shop.comparison(position)
    await comparison.run(position, (shop.name, "u"))
    assert not comparison.may_run()
    comparison.due.add((shop.name, "t"))
    assert not comparison.is_due()
    unlogged(shop, SWAP)
    later = time.monotonic() + 60
    monkeypatch.setattr("headrace.mysql.schema.comparison._now", lambda: later)
    assert comparison.is_due()
    with pytest.raises(SchemaDiffers):
        await comparison.run(position)


@pytest.fixture
def mysql_shop(stack: Stack) -> Iterator[Shop]:
    server = stack.mysql(None, "--show-gipk-in-create-table-and-information-schema=OFF", name="hidden-keys")
    recorder = Recorder(server)
    yield Shop(server, recorder)
    recorder.close()
    server.kill()


async def test_a_primary_key_that_mysql_has_made_and_hides_is_seen(mysql_shop: Shop) -> None:
    position = mysql_shop.here()
    with mysql_shop.recorder.session() as connection, connection.cursor() as cursor:
        for sql in ("SET sql_generate_invisible_primary_key = 1", f"CREATE TABLE {mysql_shop.name}.t (a int)"):
            cursor.execute(sql)
    history = mysql_shop.history()
    history.adopt(await mysql_shop.read(mysql_shop.here(), history))
    assert names(history, mysql_shop, "t") == ["my_row_id", "a"]
    await SchemaComparison("shop", mysql_shop.source, history).run(position, (mysql_shop.name, "t"))
