"""Server ids on real servers: a clash is named before the dump, a newcomer that disconnects us starts no war."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from headrace import runtime
from headrace.errors import HeadraceError, ServerIdTaken, SourceMisconfigured
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.splitter import EventSplitter
from headrace.mysql.replicas import Reader, choose_server_id, dump_connections, replica_name, replicas
from headrace.mysql.wire.connection import ReplicaName, SourceConnection, address_of
from headrace.settings.destination import SourceSettings
from headrace.settings.load import derive_server_id
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl
from tests.versions import long

pytestmark = pytest.mark.server

NODE, DESTINATION = "node-1", "shop"
DERIVED = derive_server_id(NODE, DESTINATION)
FROM = re.compile(r"connected from (one of )?127\.0\.0\.1:\d+ \('canal', connection \d+\)")
"""One of several for as long as the source still lists the connection that it has just ended."""


@pytest.fixture(params=["mysql", *long("mariadb")])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
async def connection(server: Any) -> AsyncIterator[SourceConnection]:
    made = await connect(server)
    for reader in await dump_connections(made):  # of earlier tests; one without heartbeats stays until a change
        with contextlib.suppress(HeadraceError):
            await made.change(f"KILL {reader.number}")
    await nobody_reads(made)
    yield made
    await made.close()


def settings(server: Any, server_id: int = 0, user: str = "canal") -> SourceSettings:
    return SourceSettings(host=server.host, port=server.port, user=user, password="canal", server_id=server_id)


async def connect(server: Any, user: str = "canal") -> SourceConnection:
    made = await SourceConnection.open(address_of(settings(server, user=user)))
    await made.load_variables()
    return made


async def nobody_reads(connection: SourceConnection) -> None:
    """Readers that have ended stay on the list of the server until it next writes to them."""
    async with asyncio.timeout(30):
        while await replicas(connection):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.1)


async def choose(connection: SourceConnection, server: Any, configured: int = 0, taken: int = 0) -> int:
    reader = Reader(NODE, DESTINATION, not configured, taken)
    return await choose_server_id(connection, settings(server, configured), reader)


class Foreign(threading.Thread):
    """A reader that is not headrace: by hand, over a client that blocks."""

    def __init__(self, server: Any, server_id: int, *, host: str = "", uuid: str = "", registers: bool = True) -> None:
        super().__init__(daemon=True)
        self.error: Exception | None = None
        self._reads = threading.Event()
        self._connection: Any = pymysql.connect(**server.connection("canal"))
        with self._connection.cursor() as cursor:
            cursor.execute("SET @master_binlog_checksum='CRC32', @source_binlog_checksum='CRC32'")
            cursor.execute("SET @master_heartbeat_period=500000000, @source_heartbeat_period=500000000")
            if uuid:
                cursor.execute(f"SET @slave_uuid='{uuid}'")
            # At the end: what earlier tests have written is not for every client.
            cursor.execute("SHOW BINARY LOGS")
            file, end = cursor.fetchall()[-1][:2]
        if registers:
            name = host.encode()
            body = struct.pack("<IB", server_id, len(name)) + name + b"\0\0" + struct.pack("<HII", 33, 0, 0)
            self._connection._execute_command(0x15, body)
            self._connection._read_ok_packet()
        self._connection._execute_command(0x12, struct.pack("<IHI", end, 0, server_id) + file.encode())
        self.start()
        assert self._reads.wait(10), self.error  # before that the server does not show it as a reader

    def run(self) -> None:
        try:
            while True:
                self._connection._read_packet()
                self._reads.set()
        except Exception as error:
            self.error = error

    def end(self) -> None:
        self._connection._force_close()
        self.join(5)


@pytest.fixture
def foreign(server: Any) -> Iterator[Callable[..., Foreign]]:
    made: list[Foreign] = []

    def make(*arguments: Any, **options: Any) -> Foreign:
        made.append(Foreign(server, *arguments, **options))
        return made[-1]

    yield make
    for reader in made:
        reader.end()


class Dump:
    """A dump of ours whose events are thrown away."""

    def __init__(self, connection: SourceConnection, file: str) -> None:
        cursor = EventCursor(file, 4, checksums=connection.writes_checksums)
        self._splitter = EventSplitter(cursor, {}, other=lambda data, at, stop: None)
        self._data = b""

    @classmethod
    @contextlib.asynccontextmanager
    async def begun(cls, server: Any, server_id: int, name: ReplicaName | None = None) -> AsyncIterator[Dump]:
        connection = await connect(server)
        file = (await connection.query("SHOW BINARY LOGS"))[-1]["Log_name"]
        made = cls(connection, file)
        await connection.register(server_id, 0.5, name or replica_name(NODE, DESTINATION))
        made.stream = await connection.dump(server_id, file=file, offset=4, gtids=None, buffer=1 << 20)
        try:
            yield made
        finally:
            await made.stream.close()
            await connection.close()

    async def end_within(self, seconds: float) -> HeadraceError | None:
        """The error with which it ends, or None when it still goes on."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    self._data = await self.stream.read(self._data, self._splitter.need, 10)
                    at, more = 0, True
                    while more:
                        at, more = self._splitter.feed(self._data, at, lambda: False)
                    self._data = self._data[at:]
        except HeadraceError as error:
            return error
        except TimeoutError:
            return None


async def test_a_configured_id_that_somebody_has_is_named_before_the_dump(
    server: Any, connection: SourceConnection, foreign: Callable[..., Foreign]
) -> None:
    foreign(7001, host="reports.example", uuid="11111111-2222-3333-4444-555555555555")
    with pytest.raises(ServerIdTaken) as caught:
        await choose(connection, server, 7001)
    text = str(caught.value)
    assert "our server id 7001 is in use by replica 'reports.example' (port 33" in text
    assert "connected from 127.0.0.1:" in text
    assert "'canal', connection" in text
    assert "server_id" in caught.value.remedy
    if not connection.is_mariadb:
        assert "uuid 11111111-2222-3333-4444-555555555555" in text
    assert await choose(connection, server, 7002) == 7002


async def test_the_source_s_own_id_is_refused(server: Any, connection: SourceConnection) -> None:
    with pytest.raises(SourceMisconfigured, match=r"our server id \d+ is the source's own"):
        await choose(connection, server, int(connection.variables["server_id"]))


async def test_a_derived_id_moves_on_to_the_next_that_is_free_always_in_the_same_order(
    server: Any, connection: SourceConnection, foreign: Callable[..., Foreign]
) -> None:
    assert await choose(connection, server) == DERIVED
    foreign(DERIVED, host="somebody")
    second = derive_server_id(NODE, f"{DESTINATION}#1")
    assert await choose(connection, server) == second
    foreign(second, host="somebody.else")
    assert await choose(connection, server) == derive_server_id(NODE, f"{DESTINATION}#2")


async def test_a_derived_id_that_is_the_source_s_own_moves_on(
    server: Any, connection: SourceConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.variables, "server_id", str(DERIVED))
    assert await choose(connection, server) == derive_server_id(NODE, f"{DESTINATION}#1")


async def test_an_earlier_connection_of_ours_is_no_clash(
    server: Any, connection: SourceConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Dump.begun(server, 7003, replica_name(NODE, DESTINATION, 7003)):
        assert await choose(connection, server, 7003) == 7003
        monkeypatch.setattr(runtime.current(), "number", 7)  # as after a restart
        assert await choose(connection, server, 7003) == 7003


async def test_a_long_name_is_cut_and_still_ours(server: Any, connection: SourceConnection) -> None:
    name = replica_name("ein-langer-knotenname-" + "ß" * 40, DESTINATION)
    assert len(name.host.encode()) <= 60
    async with Dump.begun(server, 7004, name) as dump:
        assert [replica.host for replica in await replicas(connection) or []] == [name.host]
        assert await dump.end_within(0.2) is None


async def test_our_dump_survives_a_reader_with_our_id_and_no_uuid_where_uuids_count(
    server: Any, connection: SourceConnection, foreign: Callable[..., Foreign]
) -> None:
    async with Dump.begun(server, 7005) as dump:
        assert await dump.end_within(0.2) is None
        foreign(7005, registers=False)
        ended = await dump.end_within(2)
        if connection.is_mariadb:
            assert isinstance(ended, ServerIdTaken)
            assert "errno 4052" in str(ended)
        else:
            assert ended is None


async def test_of_two_with_our_name_the_server_ends_the_older_which_then_stays_away(
    server: Any, connection: SourceConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for configured in (7006, 0):
        ours = replica_name(NODE, DESTINATION, configured)
        async with Dump.begun(server, 7006, ours) as older:
            assert await older.end_within(0.2) is None
            twin = ReplicaName(ours.host, ours.port % 60000 + 1, ours.uuid)
            async with Dump.begun(server, 7006, twin) as newer:
                ended = await older.end_within(5)
                assert isinstance(ended, ServerIdTaken)
                assert "another replica connected with our server id" in str(ended)
                with pytest.raises(ServerIdTaken) as caught:
                    await choose(connection, server, configured, taken=7006)
                assert f"another daemon runs destination '{DESTINATION}' as node '{NODE}'" in str(caught.value)
                assert FROM.search(str(caught.value))
                assert await newer.end_within(1) is None
            await nobody_reads(connection)
            assert await choose(connection, server, 7006, taken=7006) == 7006


async def test_two_of_one_name_with_ids_that_somebody_chose_both_read_on(
    server: Any, connection: SourceConnection
) -> None:
    """MySQL goes by the uuid, which was the same for both: each ended the other's dump, for ever."""
    names = {chosen: replica_name(NODE, DESTINATION, chosen) for chosen in (7011, 7012)}
    async with Dump.begun(server, 7011, names[7011]) as one, Dump.begun(server, 7012, names[7012]) as other:
        assert await one.end_within(1) is None
        assert await other.end_within(0.2) is None
        for chosen in names:
            assert await choose(connection, server, chosen) == chosen


async def test_a_new_replica_that_has_not_registered_is_searched_among_the_connections(
    mariadb: Any, foreign: Callable[..., Foreign]
) -> None:
    connection = await connect(mariadb)
    try:
        await nobody_reads(connection)
        newcomer = Foreign(mariadb, 7007, registers=False)
        with pytest.raises(ServerIdTaken, match=r"reader that has not registered: .*127\.0\.0\.1:\d+ \('canal'"):
            await choose(connection, mariadb, 7007, taken=7007)
        assert await choose(connection, mariadb, taken=DERIVED) == derive_server_id(NODE, f"{DESTINATION}#1")
        newcomer.end()
    finally:
        await connection.close()


async def test_a_server_that_does_not_show_its_readers_is_taken_as_it_is(server: Any) -> None:
    root = pymysql.connect(**server.connection("root"), autocommit=True)
    with root, root.cursor() as cursor:
        cursor.execute("CREATE USER blind@'%' IDENTIFIED BY 'canal'")
        connection = await connect(server, "blind")
        try:
            assert await replicas(connection) is None
            assert await choose(connection, server, 7008) == 7008
            assert await choose(connection, server, 7008, taken=7008) == 7008
            assert await choose(connection, server) == DERIVED
        finally:
            await connection.close()
            cursor.execute("DROP USER blind@'%'")


# -- the daemon -------------------------------------------------------------------------------------------------------


def jsonl(path: Path, source: str, server: Any, more: str = "") -> str:
    return destination_toml(server, "twins", f'type = "jsonl"\npath = "{path}"', source=source, more=more)


def test_a_daemon_names_who_has_its_id_and_streams_once_that_is_gone(
    server: Any, foreign: Callable[..., Foreign], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    reader = foreign(7009, host="reports.example")
    process = daemon(shop=jsonl(tmp_path / "out", "server_id = 7009", server)).start()
    status = process.wait_state("shop", "SERVER_ID_TAKEN")
    assert "our server id 7009 is in use by replica 'reports.example'" in status["last_error"]
    assert process.health()[0] == 503
    assert reader.error is None, "its dump was not ended"
    reader.end()

    def again() -> bool:
        os.kill(process.pid, signal.SIGHUP)  # "it is mended": try now
        return bool(process.health()[1]["destinations"]["shop"]["state"] == "STREAMING")

    eventually(again, 30)
    assert process.terminate() == 0


def test_a_copied_configuration_throws_the_first_daemon_out_and_starts_no_war(
    mysql: Any, mariadb: Any, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    servers = {"mysql": mysql, "mariadb": mariadb}
    for server in servers.values():
        server.sql("CREATE DATABASE IF NOT EXISTS twins; CREATE OR REPLACE VIEW twins.v AS SELECT 1")

    def one(letter: str) -> DaemonProcess:
        texts = {name: jsonl(tmp_path / f"{letter}-{name}", "", server) for name, server in servers.items()}
        return daemon(**texts).start()

    older = one("a")
    for name in servers:
        older.wait_state(name, "STREAMING")
    newer = one("b")
    for name in servers:
        newer.wait_state(name, "STREAMING")
        older.wait_state(name, "SERVER_ID_TAKEN")
    for _ in range(3):
        before = {name: older.health()[1]["destinations"][name]["restarts"] for name in servers}
        os.kill(older.pid, signal.SIGHUP)
        for name in servers:
            status = older.wait(name, lambda s, n=before[name]: s["restarts"] > n and s["state"] == "SERVER_ID_TAKEN")
            assert f"another daemon runs destination '{name}' as node 'test'" in status["last_error"]
            assert FROM.search(status["last_error"])
    for name in servers:
        status = newer.health()[1]["destinations"][name]
        assert (status["state"], status["restarts"], status["reconnects"]) == ("STREAMING", 0, 0), "never disconnected"
    for name, server in servers.items():
        server.sql("CREATE TABLE twins.t (id INT PRIMARY KEY); INSERT INTO twins.t VALUES (1)")
        eventually(lambda name=name: len(read_jsonl(tmp_path / f"b-{name}")) == 1)  # type: ignore[misc]
        server.sql("DROP DATABASE twins")
    assert newer.terminate() == 0
    assert older.terminate() == 0


def test_two_daemons_of_one_name_end_each_other_s_dump_on_mysql_5_6_and_both_say_so(
    mysql56: Any, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    mysql56.sql("CREATE DATABASE IF NOT EXISTS twins; CREATE OR REPLACE VIEW twins.v AS SELECT 1")
    # A daemon that reads the other's heartbeat before its own dump ends waits for more than a minute.
    silent = "[heartbeat]\nenabled = false"
    both = {letter: daemon(shop=jsonl(tmp_path / letter, "", mysql56, silent)).start() for letter in "ab"}
    for one in both.values():
        status = one.wait("shop", lambda status: status["restarts"] > 1)
        assert "ended the binlog dump" in status["last_error"]
    mysql56.sql("CREATE TABLE twins.t (id INT PRIMARY KEY); INSERT INTO twins.t VALUES (1)")
    for letter, one in both.items():
        one.wait("shop", lambda status: status["rows"] > 0)
        assert {message["data"][0]["id"] for message in read_jsonl(tmp_path / letter)} == {"1"}
    mysql56.sql("DROP DATABASE twins")
    for one in both.values():
        assert one.terminate() == 0
