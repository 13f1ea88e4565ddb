"""The second connection: what of it becomes a trouble, and what never does."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from devstack.ports import free_port
from headrace.destination import heartbeat_writer as writing
from headrace.destination.dependencies import Context
from headrace.destination.facts import ROUND_TRIP_BUCKETS, RoundTrips
from headrace.destination.heartbeat_writer import HeartbeatWriter, until_next
from headrace.destination.status import DestinationStatus
from headrace.errors import Fenced, GrantMissing, SourceUnreachable
from headrace.mysql import second_connection as module
from headrace.mysql.role import Role
from headrace.mysql.second_connection import MysqlSecondConnection
from headrace.mysql.wire.connection import QueryFailed
from headrace.ports.source import Heartbeat
from headrace.settings.destination import HeartbeatSettings, SourceSettings
from tests.streams import daemon_settings, settings, until


class Server:
    """A server's answers to a second connection: rows, or the errors that are set. It counts what was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.role = Role(read_only=False, replicates=False)
        self.row: Heartbeat | None = None
        self.away: Exception | None = None
        self.refuses: Exception | None = None
        """What writing and reading the row gives."""
        self.made: Exception | None = None
        """What CREATE TABLE gives."""
        self.opened = self.closed = self.roles = 0
        self.statements, self.variables = list[str](), dict[str, str]()
        monkeypatch.setattr(module, "SourceConnection", SimpleNamespace(open=self._open))
        monkeypatch.setattr(module, "server_role", self._role)
        monkeypatch.setattr(module, "write_heartbeat", self._write)
        monkeypatch.setattr(module, "read_heartbeat", self._read)

    async def _open(self, address: object) -> Any:
        if self.away is not None:
            raise self.away
        self.opened += 1
        return self

    async def load_variables(self) -> None:
        pass

    async def limit_waits(self, seconds: int) -> None:
        pass

    async def query(self, sql: str) -> list[Any]:
        self.statements.append(sql)
        if sql.startswith("CREATE"):
            if self.made is not None:
                raise self.made
            self.refuses = None
        return []

    async def close(self) -> None:
        self.closed += 1

    async def binlog_end(self) -> tuple[str, int, str]:
        return "b.000001", 4, ""

    async def _role(self, connection: object) -> Role:
        self.roles += 1
        return self.role

    async def _write(self, connection: object, heartbeat: Heartbeat) -> Heartbeat | None:
        if self.refuses is not None:
            raise self.refuses
        if self.row is not None and self.row.epoch > heartbeat.epoch:
            return self.row
        self.row = heartbeat
        return None

    async def _read(self, connection: object, destination: str) -> Heartbeat | None:
        if self.refuses is not None:
            raise self.refuses
        return self.row


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


def made(enabled: bool = True, node: str = "node") -> tuple[HeartbeatWriter, DestinationStatus]:
    status = DestinationStatus("shop")
    config = settings(heartbeat={"enabled": enabled, "interval": 0.01})
    connection = module.MysqlSecondConnection(config.source, "shop")
    writer = HeartbeatWriter(Context(config, daemon_settings(node=node), status), connection)
    writer.epoch = 5
    return writer, status


class Beating:
    """A writer that writes within the block."""

    def __init__(self, writer: HeartbeatWriter) -> None:
        self._writer = writer

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._writer.run())

    async def __aexit__(self, *_: object) -> None:
        assert not self._task.done()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._writer._connection.close()


def failed(errno: int) -> QueryFailed:
    error = QueryFailed("no")
    error.errno = errno
    return error


async def test_heartbeats_are_numbered_under_our_epoch(server: Server) -> None:
    writer, status = made()
    async with Beating(writer):
        await until(lambda: server.row is not None and server.row.sequence >= 3)
    assert server.row is not None
    assert (server.row.destination, server.row.epoch, server.row.node) == ("shop", 5, "node")
    assert abs(server.row.written_us / 1e6 - time.time()) < 5
    assert status.troubles == {}
    assert (server.opened, server.closed) == (1, 1)


@pytest.mark.parametrize("interval", [0.5, 5.0, 60.0])
def test_destinations_that_began_at_any_times_write_together(interval: float) -> None:
    places = []
    for number in range(50):
        now = 1000 + 7.3 * number
        for _ in range(3):
            waited = until_next(f"shop-{number}", interval, now)
            assert 0.5 * interval - 1e-6 <= waited <= 1.5 * interval + 1e-6
            now += waited
            places.append(now % interval)
            now += 0.001 * number % (interval / 3)  # what the writing takes
        assert abs(until_next(f"shop-{number}", interval, now - 0.0005) - interval) < interval / 2  # a clock of ms
    assert max(places) - min(places) <= 0.1
    assert max(places) - min(places) > 0.05, "all at the same instant"


@pytest.mark.parametrize(
    ("role", "trouble"),
    [
        (Role(read_only=False, replicates=True), ""),
        (Role(read_only=True, replicates=True), ""),
        (Role(read_only=True, replicates=False), "read-only"),
        (Role(read_only=False, replicates=None, why_unknown="no right"), "no right"),
    ],
)
async def test_a_server_that_may_not_have_heartbeats_gets_none(role: Role, trouble: str, server: Server) -> None:
    server.role = role
    writer, status = made()
    status.troubles["heartbeat"] = "of before"
    async with Beating(writer):
        await until(lambda: status.troubles.get("heartbeat", "") != "of before")
    assert server.row is None
    assert trouble in status.troubles.get("heartbeat", "")
    assert bool(trouble) == ("heartbeat" in status.troubles)


async def test_a_role_is_asked_for_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROLE_SECONDS", 0.05)
    writer, _ = made()
    async with Beating(writer):
        await until(lambda: server.row is not None)
        server.role = Role(read_only=False, replicates=True)
        roles = server.roles
        await until(lambda: server.roles > roles)
        server.row = None
        await asyncio.sleep(0.05)
        assert server.row is None
    assert module._ROLE_SECONDS == 0.05


def test_a_role_is_believed_for_less_than_a_heartbeat() -> None:
    assert HeartbeatSettings().interval >= 4.0 >= module._ROLE_SECONDS


@pytest.mark.parametrize("errno", [1049, 1146])
async def test_the_table_is_made_when_it_is_missing(errno: int, server: Server) -> None:
    server.refuses = failed(errno)
    writer, status = made()
    async with Beating(writer):
        await until(lambda: server.row is not None)
    assert sum(sql.startswith("CREATE") for sql in server.statements) == 2
    assert status.troubles == {}


async def test_another_failure_makes_no_table(server: Server) -> None:
    server.refuses = failed(1205)
    writer, status = made()
    async with Beating(writer):
        await until(lambda: "heartbeat" in status.troubles)
        server.refuses = None
        await until(lambda: status.troubles == {})
    assert not any(sql.startswith("CREATE") for sql in server.statements)
    assert server.opened >= 2, "after a failure the connection is made anew"
    assert server.opened == server.closed


@pytest.mark.parametrize("where", ["refuses", "made"])
async def test_a_missing_grant_is_reported_with_the_sql(where: str, server: Server) -> None:
    server.refuses = failed(1146)
    setattr(server, where, GrantMissing("denied"))
    writer, status = made()
    async with Beating(writer):
        await until(lambda: "heartbeat" in status.troubles)
    assert "GRANT SELECT, INSERT, UPDATE, CREATE ON headrace.* TO 'u'" in status.troubles["heartbeat"]
    assert "CREATE TABLE IF NOT EXISTS" in status.troubles["heartbeat"]


@pytest.mark.parametrize("error", [SourceUnreachable("away"), RuntimeError("a fault of ours")])
async def test_nothing_ends_the_heartbeats(error: Exception, server: Server) -> None:
    server.away = error
    writer, status = made()
    async with Beating(writer):
        await until(lambda: str(error) in status.troubles.get("heartbeat", ""))
        server.away = None
        await until(lambda: status.troubles == {})


async def test_without_heartbeats_nothing_is_asked_and_an_old_trouble_ends(server: Server) -> None:
    writer, status = made(enabled=False)
    status.troubles["heartbeat"] = "of before"
    assert await writer.stored_epoch() == 0
    await writer.run()
    assert (status.troubles, server.opened) == ({}, 0)


async def test_the_epoch_of_the_row_is_found_in_spite_of_errors(server: Server) -> None:
    writer, _ = made()
    assert await writer.stored_epoch() == 0
    server.row = Heartbeat("shop", 9, "n", 1, 1)
    assert await writer.stored_epoch() == 9
    server.refuses = failed(1146)
    assert await writer.stored_epoch() == 0
    server.away = SourceUnreachable("away")
    assert await writer.stored_epoch() == 0
    await writer._connection.close()
    assert server.opened == server.closed


# -- somebody else ------------------------------------------------------------------------------------------------


def foreign(**more: Any) -> Heartbeat:
    raw = {"destination": "shop", "epoch": 9, "node": "elsewhere", "sequence": 1, "written_us": time.time_ns() // 1000}
    return Heartbeat(**{**raw, **more})


async def test_a_row_with_a_higher_epoch_stays_and_ends_the_run(server: Server) -> None:
    server.row = foreign()
    writer, _ = made()
    writer.check()
    async with Beating(writer):
        await until(lambda: writer._fenced)
    with pytest.raises(Fenced, match="node elsewhere runs shop under epoch 9, ours is 5"):
        writer.check()
    assert server.row.node == "elsewhere"


def test_a_higher_epoch_in_the_binlog_ends_the_run_at_that_event(server: Server) -> None:
    writer, _ = made()
    with pytest.raises(Fenced, match="node elsewhere runs shop under epoch 9, ours is 5"):
        writer.seen(foreign())
    with pytest.raises(Fenced):
        writer.check()


def test_a_lower_epoch_is_reported_only_after_our_own_first_heartbeat(server: Server) -> None:
    writer, status = made()
    old = foreign(epoch=4)
    writer.seen(old)
    assert status.troubles == {}, "the backlog after a take-over is full of them"
    writer.seen(Heartbeat("shop", 5, "node", 1, time.time_ns() // 1000))
    writer.seen(old)
    assert "node elsewhere still writes heartbeats for shop under epoch 4" in status.troubles["foreign_heartbeat"]
    writer.check()


def test_rows_of_former_daemons_are_no_second_one_if_one_of_them_had_our_epoch(server: Server) -> None:
    """As in a binlog from before the heartbeat table was emptied, and the epochs began again."""
    writer, status = made()
    for epoch in (5, 1, 2):
        writer.seen(Heartbeat("shop", epoch, "node", 1, 1_600_000_000_000_000))
    assert status.troubles == {}


async def test_a_daemon_that_wrote_under_a_lower_epoch_is_forgotten_when_it_is_quiet(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_QUIET_SECONDS", 0.2)
    writer, status = made()
    async with Beating(writer):
        writer.seen(Heartbeat("shop", 5, "node", 1, time.time_ns() // 1000))
        writer.seen(foreign(epoch=4))
        assert status.troubles
        await until(lambda: not status.troubles)


@pytest.mark.parametrize("other", [{"destination": "other"}, {"written_us": 1}, {"epoch": 4}, {"epoch": 5}])
def test_what_is_not_of_a_second_daemon_is_not(other: dict[str, Any], server: Server) -> None:
    writer, status = made()
    writer.seen(foreign(**other))
    assert status.troubles == {}
    assert status.heartbeat.last is None


async def test_a_new_run_begins_without_the_trouble(server: Server) -> None:
    server.role = Role(read_only=True, replicates=True)
    writer, status = made()
    status.troubles["foreign_heartbeat"] = "of before"
    async with Beating(writer):
        await until(lambda: status.troubles == {})


# -- round trips --------------------------------------------------------------------------------------------------


def test_our_own_heartbeat_that_comes_back_is_a_round_trip(server: Server) -> None:
    writer, status = made(node="n" * 300)
    heartbeat = Heartbeat("shop", 5, "n" * 190, 1, time.time_ns() // 1000 - 2_000_000)
    writer.seen(heartbeat)
    assert status.heartbeat.last is not None
    assert 2.0 <= status.heartbeat.last < 3.0
    assert status.heartbeat.seen_at > 0
    writer.seen(foreign(epoch=5, node="n" * 190, written_us=(time.time_ns() // 1000) + 60_000_000))
    assert status.heartbeat.last == 0.0, "a clock that was set back is no negative time"


def test_round_trips_are_counted_up_to_each_bound() -> None:
    trips = RoundTrips()
    for seconds in (0.0, ROUND_TRIP_BUCKETS[0], ROUND_TRIP_BUCKETS[0] + 1e-9, ROUND_TRIP_BUCKETS[-1], 1e9):
        trips.note(seconds)
    assert (trips.counts[0], trips.counts[1], trips.counts[-2], trips.counts[-1]) == (2, 1, 1, 1)
    assert sum(trips.counts) == 5
    assert trips.total == pytest.approx(1e9 + ROUND_TRIP_BUCKETS[-1] + 0.01)
    assert trips.last == 1e9


async def test_a_source_that_does_not_answer_is_no_source_without_our_row() -> None:
    """A first start asks for it: 'there is none' would begin at the end of the binlog."""
    nobody = SourceSettings.model_validate({"host": "127.0.0.1", "port": free_port(), "user": "u", "password": "p"})
    second = MysqlSecondConnection(nobody, "shop")
    assert await second.stored_heartbeat() is None
    with pytest.raises(SourceUnreachable):
        await second.stored_heartbeat(required=True)
    await second.close()


async def test_destinations_of_one_server_ask_for_its_role_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, now = module.KnownRoles(), 100.0
    monkeypatch.setattr(module.runtime, "monotonic", lambda: now)
    connection: Any = server
    server.variables = {"server_uuid": "a"}
    for _ in range(50):
        assert (await known.of(connection, "canal")).takes_heartbeats
    assert server.roles == 1
    # Another account may not see what this one sees, another server under the same name is another server.
    await known.of(connection, "other")
    server.variables = {"server_uuid": "b"}
    server.role = Role(read_only=True, replicates=True)
    assert (await known.of(connection, "canal")).replicates
    assert server.roles == 3
    server.variables = {"server_uuid": "a"}
    assert (await known.of(connection, "canal")).replicates is False
    now += module._ROLE_SECONDS + 0.1
    assert (await known.of(connection, "canal")).replicates
    # MariaDB has no server_uuid.
    server.variables = {}
    asked = server.roles
    for _ in range(2):
        await known.of(connection, "canal")
    assert server.roles == asked + 2
