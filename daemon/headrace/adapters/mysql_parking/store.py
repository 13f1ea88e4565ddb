"""Parked messages in a table of any MySQL server, which the daemons of several machines share."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from headrace import runtime
from headrace.adapters.mysql_parking.settings import MySqlParkingSettings
from headrace.errors import Fenced, SourceError, StateStoreError
from headrace.lease import Guard
from headrace.mysql.wire.connection import Address, SourceConnection
from headrace.parking.packing import ENTRY_FIELDS, content_of, content_row, entry_of, entry_row
from headrace.ports.parking import ParkedContent, ParkedEntry, ParkedMessage, ParkingStore

_LIMIT = 10.0
"""Maximum seconds to connect, and for each statement."""
_ANSWER = 2 << 30
"""Bytes: many messages are read at once, and settings limit their number."""
_CREATE = (
    "CREATE DATABASE IF NOT EXISTS `{database}`",
    "CREATE TABLE IF NOT EXISTS `{database}`.headrace_parked_message ("
    " destination VARCHAR(190) NOT NULL, number BIGINT UNSIGNED NOT NULL,"
    " identity BINARY(32) NOT NULL COMMENT 'SHA-256 of id, topic and partition_number',"
    " id VARCHAR(1000) NOT NULL COMMENT 'headrace-id', scope VARCHAR(255) NOT NULL COMMENT 'topic or exchange',"
    " topic VARCHAR(255) NOT NULL COMMENT 'topic or routing key', partition_number INT NOT NULL,"
    " unit LONGTEXT NOT NULL COMMENT 'tables and keys', reason TEXT NOT NULL, attempts INT NOT NULL,"
    " state VARCHAR(16) NOT NULL COMMENT 'PENDING or NEEDS_OPERATOR', created_at DATETIME(6) NOT NULL COMMENT 'UTC',"
    " tried_at DATETIME(6) NULL, due_at DATETIME(6) NOT NULL, size BIGINT NOT NULL, tag VARCHAR(255) NOT NULL,"
    " committed_at DATETIME(6) NOT NULL, headers LONGTEXT NOT NULL, record_key LONGBLOB NULL, body LONGBLOB NULL,"
    " PRIMARY KEY (destination, number), UNIQUE KEY identity (destination, identity)"
    ") ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin",
    "CREATE TABLE IF NOT EXISTS `{database}`.headrace_parking_owner ("
    " destination VARCHAR(190) NOT NULL PRIMARY KEY, epoch BIGINT NOT NULL, changes BIGINT NOT NULL DEFAULT 0"
    ") ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin",
)
_ENTRY = "number, id, scope, topic, partition_number, unit, reason, attempts, state, created_at, tried_at, due_at, size"
_TRIED = ENTRY_FIELDS.index("tried_us")
_CONTENT = "body, record_key, headers, tag, committed_at"
_AT_ONCE = 500
"""Messages of one transaction."""
_TRUSTED = 5.0
"""Seconds that an unused connection is assumed to be alive."""
_Item = TypeVar("_Item")
_EPOCH = datetime(1970, 1, 1)


class MySqlParkingStore(ParkingStore):
    """The parked messages of one destination. It has one connection, which is opened again after a failure; every write
    is a transaction that checks the owner's epoch first."""

    def __init__(self, settings: MySqlParkingSettings, destination: str) -> None:
        self._name, self._destination = settings.database, destination
        self._database = settings.database.replace("`", "``")
        self._messages = f"`{self._database}`.headrace_parked_message"
        self._owners = f"`{self._database}`.headrace_parking_owner"
        self._address = Address(
            host=settings.host,
            port=settings.port,
            user=settings.user,
            password=settings.password.get_secret_value(),
            tls=settings.tls,
            tls_files=settings.tls_files,
            connect_timeout=_LIMIT,
            answer_bytes=_ANSWER,
        )
        self._where = f"the parked messages in MySQL at {settings.host}:{settings.port}"
        self._connection: SourceConnection | None = None
        self._turn = asyncio.Lock()
        self._used_at = 0.0
        self._made = False
        """Whether the tables are known to exist."""

    async def open(self) -> None:
        if await self._missing():
            async with self._connected() as connection:
                # Existing tables are not created again: the statement would be in the binlog.
                rows = await connection.execute(
                    "SELECT 1 FROM information_schema.schemata WHERE schema_name = %s", (self._name,)
                )
                for statement in _CREATE[1:] if rows else _CREATE:
                    await connection.execute(statement.format(database=self._database))
        self._made = True

    async def begin(self, guard: Guard) -> None:
        async with self._transaction(None) as connection:
            await connection.execute(
                f"INSERT INTO {self._owners} (destination, epoch) VALUES (%s, %s)"
                f" ON DUPLICATE KEY UPDATE epoch = GREATEST(epoch, {int(guard.epoch)})",
                (self._destination, guard.epoch),
            )
            await self._check(connection, guard)

    async def entries(self) -> list[ParkedEntry]:
        if not self._made and await self._missing():
            return []
        rows = await self._select(
            f"SELECT {_ENTRY} FROM {self._messages} WHERE destination = %s ORDER BY number", self._destination
        )
        return [entry_of(row, _micros) for row in rows]

    async def contents(self, numbers: Sequence[int]) -> dict[int, ParkedContent]:
        if not numbers:
            return {}
        rows = await self._select(
            f"SELECT number, {_CONTENT} FROM {self._messages} WHERE destination = %s AND number IN ({_marks(numbers)})",
            self._destination,
            *numbers,
        )
        return {row[0]: content_of(row[1:], _micros) for row in rows}

    async def add(self, guard: Guard, messages: Sequence[ParkedMessage]) -> None:
        columns = f"destination, identity, {_ENTRY}, {_CONTENT}"
        insert = f"INSERT INTO {self._messages} ({columns}) VALUES ({_marks(columns.split(','))})"
        async with self._transaction(guard) as connection:
            for some in _chunks([_identity(one.entry) for one in messages]):
                await connection.execute(
                    f"DELETE FROM {self._messages} WHERE destination = %s AND identity IN ({_marks(some)})",
                    (self._destination, *some),
                )
            for one in messages:
                await connection.execute(insert, (self._destination, _identity(one.entry), *_row(one)))

    async def remove(self, guard: Guard | None, numbers: Sequence[int]) -> int:
        count = 0
        for some in _chunks(numbers):
            async with self._transaction(guard, changing=True) as connection:
                count += await connection.change(
                    f"DELETE FROM {self._messages} WHERE destination = %s AND number IN ({_marks(some)})",
                    (self._destination, *some),
                )
        return count

    async def update(self, guard: Guard | None, entries: Sequence[ParkedEntry]) -> int:
        count = 0
        for some in _chunks(entries):
            async with self._transaction(guard, changing=True) as connection:
                for entry in some:
                    key = self._destination, entry.number
                    found = await connection.execute(
                        f"SELECT number FROM {self._messages} WHERE destination = %s AND number = %s FOR UPDATE", key
                    )
                    count += len(found)
                    tried = _time(entry.tried_us) if entry.tried_us else None
                    await connection.execute(
                        f"UPDATE {self._messages} SET reason = %s, attempts = %s, state = %s, tried_at = %s,"
                        " due_at = %s WHERE destination = %s AND number = %s",
                        (entry.reason, entry.attempts, str(entry.state), tried, _time(entry.due_us), *key),
                    )
        return count

    async def changes(self) -> int:
        rows = await self._select(f"SELECT changes FROM {self._owners} WHERE destination = %s", self._destination)
        return int(rows[0][0]) if rows else 0

    async def problems(self) -> list[str]:
        try:
            await self._missing()
        except StateStoreError as error:
            return [str(error)]
        return []

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    # -- how -------------------------------------------------------------------------------------------------------

    async def _missing(self) -> bool:
        """Returns whether the tables must be created: if they exist, an account that may only use them is enough."""
        rows = await self._select(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_name IN"
            " ('headrace_parked_message', 'headrace_parking_owner')",
            self._name,
        )
        return len(rows) < 2

    async def _select(self, statement: str, *parameters: Any) -> Sequence[Any]:
        async with self._connected() as connection:
            return await connection.execute(statement, parameters)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[SourceConnection]:
        """Yields the connection, to one user at a time; raises errors as StateStoreError."""
        async with self._turn:
            try:
                await self._connect()
                assert self._connection is not None
                yield self._connection
                self._used_at = runtime.monotonic()
            except SourceError as error:
                await self.close()
                why = f"{self._where} can't be used: {error.args[0]}"
                raise StateStoreError(why, remedy=error.remedy, retriable=error.retriable) from error
            except BaseException:
                await self.close()  # what is still running on it is unknown
                raise

    async def _connect(self) -> None:
        """Connects again if needed: the server may have closed an idle connection, or have been restarted."""
        if self._connection is not None and runtime.monotonic() - self._used_at > _TRUSTED:
            try:
                await self._connection.execute("SELECT 1")
            except SourceError:
                await self.close()
        if self._connection is None:
            self._connection = await SourceConnection.open(self._address)

    @contextlib.asynccontextmanager
    async def _transaction(self, guard: Guard | None, *, changing: bool = False) -> AsyncIterator[SourceConnection]:
        """`changing`: without a guard, the daemon is notified of the write."""
        async with self._connected() as connection:
            await connection.execute("START TRANSACTION")
            if guard is not None:
                await self._check(connection, guard)
            elif changing:
                await connection.execute(
                    f"UPDATE {self._owners} SET changes = changes + 1 WHERE destination = %s", (self._destination,)
                )
            yield connection
            await connection.execute("COMMIT")

    async def _check(self, connection: SourceConnection, guard: Guard) -> None:
        rows = await connection.execute(
            f"SELECT epoch FROM {self._owners} WHERE destination = %s FOR UPDATE", (self._destination,)
        )
        epoch = int(rows[0][0]) if rows else 0
        if epoch != guard.epoch:
            raise Fenced(
                f"{self._destination} is held under epoch {epoch}, ours is {guard.epoch}, so no parked message was "
                "written"
            )


def _chunks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Yields parts that fit into one statement, and into the time limit of one transaction."""
    for start in range(0, len(items), _AT_ONCE):
        yield items[start : start + _AT_ONCE]


def _marks(items: Sequence[Any]) -> str:
    return ", ".join(["%s"] * len(items))


def _identity(entry: ParkedEntry) -> bytes:
    return hashlib.sha256(f"{entry.id}\0{entry.topic}\0{entry.partition}".encode()).digest()


def _time(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def _micros(time: datetime | None) -> int:
    return (time - _EPOCH) // timedelta(microseconds=1) if time is not None else 0


def _row(message: ParkedMessage) -> list[Any]:
    entry = entry_row(message.entry, _time)
    entry[_TRIED] = entry[_TRIED] if message.entry.tried_us else None
    return [*entry, *content_row(message.content, _time)]
