"""A destination's second connection to its source: reads and writes its heartbeat row, and queries the end of the
binlog."""

from __future__ import annotations

import contextlib

from headrace import runtime
from headrace.errors import GrantMissing, HeadraceError, SourceError, SourceUnreachable
from headrace.mysql.heartbeat import (
    CREATE_SIGNAL_SQL,
    CREATE_SQL,
    NO_DATABASE,
    NO_TABLE,
    SCHEMA,
    SIGNAL_TABLE,
    read_heartbeat,
    setup_sql,
    write_heartbeat,
)
from headrace.mysql.role import Role, server_role
from headrace.mysql.wire.connection import QueryFailed, SourceConnection, address_of
from headrace.ports.source import Heartbeat, LogPosition, SecondConnection
from headrace.settings.destination import SourceSettings

_ROLE_SECONDS = 4.0
"""Seconds for which a result about the server's role is valid: a switch of servers takes longer."""
_LOCK_WAIT = 3
"""Seconds that a heartbeat waits for a lock on the server, well below our own limit."""


class KnownRoles:
    """A cache of servers' roles for all destinations of the process: the answer is a table of 60 columns, and many
    destinations may have one server. By server_uuid, because a name may lead to another server meanwhile; and by
    account, because it may not see all."""

    def __init__(self) -> None:
        self._roles: dict[tuple[str, str], tuple[Role, float]] = {}

    async def of(self, connection: SourceConnection, user: str) -> Role:
        """Returns the role of the connection's server. Raises as server_role()."""
        key = connection.variables.get("server_uuid", ""), user
        role, at = self._roles.get(key, (None, 0.0))
        if role is None or runtime.monotonic() - at > _ROLE_SECONDS:
            role = await server_role(connection)
            if key[0]:  # MariaDB has none
                self._roles[key] = role, runtime.monotonic()
        return role


class MysqlSecondConnection(SecondConnection):
    def __init__(self, source: SourceSettings, destination: str) -> None:
        self._source, self._destination = source, destination
        self._connection: SourceConnection | None = None
        self._role: Role | None = None
        self._role_at = 0.0
        self._has_signals = False

    async def stored_heartbeat(self, *, required: bool = False) -> Heartbeat | None:
        try:
            return await read_heartbeat(await self._connect(), self._destination)
        except HeadraceError as error:
            await self.close()  # opening the stream will report the cause
            failed = isinstance(error, QueryFailed) and error.errno not in (NO_DATABASE, NO_TABLE)
            if required and (failed or isinstance(error, SourceUnreachable)):
                raise
            return None

    async def write_heartbeat(self, heartbeat: Heartbeat) -> Heartbeat | None:
        try:
            return await self._write(heartbeat)
        except BaseException:
            await self.close()
            raise

    async def _write(self, heartbeat: Heartbeat) -> Heartbeat | None:
        connection = await self._connect()
        if self._role is None or runtime.monotonic() - self._role_at > _ROLE_SECONDS:
            self._role = await runtime.only(KnownRoles).of(connection, self._source.user)
            self._role_at = runtime.monotonic()
        role = self._role
        if role.replicates:
            return None
        if role.replicates is None:
            raise SourceError(
                f"none is written while it can't be seen whether the server is a replica ({role.why_unknown})"
            )
        if not role.takes_heartbeats:
            raise SourceError("the server is read-only, so none is written, even where our account might")
        try:
            try:
                newer = await write_heartbeat(connection, heartbeat)
            except QueryFailed as error:
                if error.errno not in (NO_DATABASE, NO_TABLE):
                    raise
                for statement in CREATE_SQL:
                    await connection.query(statement)
                newer = await write_heartbeat(connection, heartbeat)
        except GrantMissing as error:
            raise SourceError(
                f"the account may not write headrace.heartbeat ({error.args[0]})",
                remedy=setup_sql(f"'{self._source.user}'@'%'"),
            ) from error
        await self._make_signals(connection)
        return newer

    async def _make_signals(self, connection: SourceConnection) -> None:
        """Creates the table for operators' commands if the account may; heartbeats do not need it."""
        if self._has_signals:
            return
        try:
            await connection.query(f"SELECT 1 FROM {SCHEMA}.{SIGNAL_TABLE} LIMIT 0")
        except QueryFailed as error:
            if error.errno == NO_TABLE:
                with contextlib.suppress(GrantMissing, QueryFailed):
                    await connection.query(CREATE_SIGNAL_SQL)
        except GrantMissing:
            pass
        self._has_signals = True

    async def end(self) -> LogPosition:
        async with await SourceConnection.open(address_of(self._source)) as connection:
            return LogPosition(*(await connection.binlog_end())[:2])

    async def _connect(self) -> SourceConnection:
        if self._connection is None:
            connection = await SourceConnection.open(address_of(self._source))
            try:
                await connection.load_variables()
                await connection.limit_waits(_LOCK_WAIT)
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
        return self._connection

    async def close(self) -> None:
        connection, self._connection, self._role = self._connection, None, None
        if connection is not None:
            await connection.close()
