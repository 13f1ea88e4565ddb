"""Reads from a model of MySQL with the daemon's own source, and compares what it gives with what was committed."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pymysql

from headrace.model import Operation, Position, RowsChange, SchemaChange
from headrace.mysql.source import MysqlSource
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.ports.source import ChangeStream, Heartbeat, LogPosition, OpenSource, Receiver
from headrace.settings.daemon import DaemonSettings
from sim.mysql.accounts import Account
from sim.mysql.history import Committed
from sim.mysql.server import Server
from sim.mysql.session import Session
from tests.configured import destination_of

Seen = tuple[str, str, str, tuple[Any, ...] | None, tuple[Any, ...] | None]
"""Table, schema, operation, and the rows before and after."""
CANAL = Account("canal", "canal")


class Clock:
    """A wall clock that a test moves; each reading moves it by a microsecond, so that no two commits have one time."""

    def __init__(self, micros: int = 1_790_000_000_000_000) -> None:
        self.micros = micros

    def __call__(self) -> int:
        self.micros += 1
        return self.micros


_seeds = itertools.count(1)


def model(seed: int = 0, *, clock: Callable[[], int] | None = None, **options: Any) -> Server:
    """A server with the account of the daemon. Without a seed it has a uuid of its own, by which the daemon's process
    remembers servers."""
    return Server(clock or Clock(), random.Random(seed or next(_seeds)), **{"accounts": [CANAL], **options})


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[int]:
    """Yields the port at which the model listens."""
    listener = await asyncio.get_running_loop().create_server(server.protocol, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        for connection in list(server.connections):
            connection.abort()
        await asyncio.sleep(0)


def source_of(port: int, *, name: str = "shop", standby: int = 0, **more: Any) -> MysqlSource:
    """The daemon's source for all tables but its own; `standby` is the port of another address."""
    source = {"host": "127.0.0.1", "port": port, "user": "canal", "password": "canal", "tls": "disabled"}
    source |= {"start": "earliest", "snapshot": "never", **more}
    if standby:
        source["standby"] = [{"host": "127.0.0.1", "port": standby}]
    config = destination_of({"name": name, "source": source, "sink": {"type": "null"}})
    return MysqlSource(config, DaemonSettings(node="test"), lambda schema, table: schema != "headrace")


class Reading:
    """A stream, and what it gave."""

    def __init__(self, opened: OpenSource) -> None:
        self.opened = opened
        self.changes: list[RowsChange] = []
        self.statements: list[SchemaChange] = []
        self.heartbeats: list[Heartbeat] = []
        self.stream: ChangeStream = opened.stream(
            Receiver(self._take, statement=self.statements.append, heartbeat=self.heartbeats.append)
        )

    def _take(self, change: RowsChange) -> None:
        change.settle()
        self.changes.append(change)

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not reached():
                await self.stream.read()

    async def to_end(self, server: Server) -> list[Seen]:
        """Reads all that the server has, and returns every change so far."""
        last = server.engine.binlog.last
        end = LogPosition(last.name, last.size)
        await self.until(lambda: self.stream.has_reached(end) and not self.stream.in_transaction())
        return seen(self.changes)


@asynccontextmanager
async def reading(source: MysqlSource, stored: Position | None = None, **more: Any) -> AsyncIterator[Reading]:
    opened = await source.open(stored, **more)
    made = Reading(opened)
    try:
        yield made
    finally:
        await made.stream.close()


def seen(changes: Iterable[RowsChange]) -> list[Seen]:
    """The changes of rows that the daemon's decoder gave."""
    found: list[Seen] = []
    for one in changes:
        name = one.schema.table, one.schema.schema, str(one.operation.value)
        for at, row in enumerate(one.rows):
            before = one.before[at] if one.before is not None else None
            if one.operation is Operation.DELETE:
                before, after = tuple(row), None
            else:
                before, after = None if before is None else tuple(before), tuple(row)
            found.append((*name, before, after))
    return found


def truth(history: Iterable[Committed]) -> list[Seen]:
    """The changes of rows that were committed, without the daemon's own."""
    return [
        (change.table, change.schema, change.operation, change.before, change.after)
        for one in history
        for change in one.changes
        if change.schema != "headrace"
    ]


async def until(reached: Callable[[], bool], pause: float = 0.002) -> None:
    """Waits until something is true that has no event of its own."""
    async with asyncio.timeout(60):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(pause)


T = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(100), n INT NOT NULL DEFAULT 0)"


def shop(server: Server, *statements: str) -> Session:
    """A client with a database, after some statements."""
    client = server.session()
    client.ddl("CREATE DATABASE shop")
    client.use("shop")
    for statement in statements:
        client.execute(statement)
    return client


async def dump(port: int, file: str = "", offset: int = 4, *, gtids: bytes | None = None, server_id: int = 99) -> bytes:
    """What a dump gives up to its error or its end, without any check by the daemon."""
    connection = await SourceConnection.open(address_of(source_of(port).settings))
    await connection.load_variables()
    await connection.register(server_id, 1.0)
    stream = await connection.dump(server_id, file=file, offset=offset, gtids=gtids, buffer=1 << 20)
    data, at = b"", 0
    try:
        while True:
            data = await stream.read(data, len(data) + 1, 5)
            while len(data) >= at + 4 and len(data) >= at + 4 + int.from_bytes(data[at : at + 3], "little"):
                payload = data[at + 4 : at + 4 + int.from_bytes(data[at : at + 3], "little")]
                if payload[0] == 0xFF:
                    pymysql.err.raise_mysql_exception(payload)
                if payload[0] == 0xFE or payload[5] == 27:
                    return data[:at]
                at += 4 + len(payload)
    finally:
        await stream.close()
        await connection.close()
