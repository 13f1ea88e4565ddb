"""A destination's second connection to its source: writes heartbeats, and asks where the source's binlog ends."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from headrace.destination.states import Trouble
from headrace.destination.status import DestinationStatus
from headrace.errors import Fenced, GrantMissing, HeadraceError, SourceError
from headrace.mysql.heartbeat import CREATE_SQL, GRANT_SQL, read_beat, write_beat
from headrace.mysql.role import Role, server_role
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.ports.source import Heartbeat
from headrace.settings.destination import HeartbeatSettings, SourceSettings

_TROUBLE = "heartbeat"
_FOREIGN = "foreign_heartbeat"
_ROLE_SECONDS = 4.0
"""How long an answer about the server's role is taken for true: a switch of servers takes longer."""
_QUIET_SECONDS = 60.0
"""When nobody has written under a lower epoch for so long, whoever did is gone."""
_NO_DATABASE, _NO_TABLE = 1049, 1146
_LOCK_WAIT = 3
"""Seconds that a beat waits for a lock on the server, well below our own limit."""


class Companion:
    """Beats as long as run() is awaited. Nothing that goes wrong here ends the stream: it becomes a trouble in the
    status, which makes the destination DEGRADED."""

    def __init__(
        self,
        source: SourceSettings,
        settings: HeartbeatSettings,
        destination: str,
        node: str,
        status: DestinationStatus,
    ) -> None:
        self._source, self._settings = source, settings
        self._destination, self._node, self._status = destination, node, status
        self._connection: SourceConnection | None = None
        self._role: Role | None = None
        self._role_at = 0.0
        self._sequence = 0
        self._began_us = time.time_ns() // 1000
        self._fenced = ""
        """Who runs the destination under a higher epoch, as a sentence."""
        self._own_seen = False
        """Whether our first beat has come back: what stands behind it in the binlog was written after we took over."""
        self._foreign_at = 0.0
        """When somebody last wrote under a lower epoch."""
        self.epoch = 0
        """Ours; set before run()."""

    async def stored_epoch(self) -> int:
        """The epoch of the row that stands there, 0 when there is none or it can't be read."""
        beat = await self.stored_beat()
        return beat.epoch if beat is not None else 0

    async def stored_beat(self) -> Heartbeat | None:
        """The row that stands there; None when there is none or it can't be read."""
        if not self._settings.enabled:
            return None
        try:
            return await read_beat(await self._connect(), self._destination)
        except HeadraceError:
            await self.close()  # what is really wrong, opening the stream will say
            return None

    async def run(self, log: Any) -> None:
        """Beats every interval until it is cancelled. Never raises for what the server does."""
        self._status.clear(_FOREIGN)
        if not self._settings.enabled:
            self._status.clear(_TROUBLE)
            return
        while True:
            began = time.monotonic()
            self._forget_quiet()
            trouble = await self._try()
            if trouble:
                if self._status.trouble(Trouble(_TROUBLE, trouble)):
                    log.warning("no heartbeat can be written", error=trouble)
            elif self._status.clear(_TROUBLE):
                log.info("heartbeats are written again")
            await asyncio.sleep(max(0.0, self._settings.interval - (time.monotonic() - began)))

    async def _try(self) -> str:
        """One beat; why it can't be written, or "" (also for a server that rightly gets none)."""
        try:
            connection = await self._connect()
            role = await self._role_of(connection)
            if role.replicates:
                return ""  # what is written on a replica its source never gets
            if role.replicates is None:
                return f"none is written while it can't be seen whether the server is a replica ({role.why_unknown})"
            if not role.takes_beats:
                return "the server is read-only, so none is written, even where our account might"
            await self._beat(connection)
        except HeadraceError as error:
            await self.close()
            self._role = None
            return str(error)
        except Exception as error:  # a fault of ours must not end the beats in silence
            await self.close()
            return f"an unexpected error, {type(error).__name__}: {error}"
        return ""

    async def _role_of(self, connection: SourceConnection) -> Role:
        if self._role is None or time.monotonic() - self._role_at > _ROLE_SECONDS:
            self._role, self._role_at = await server_role(connection), time.monotonic()
        return self._role

    async def _beat(self, connection: SourceConnection) -> None:
        self._sequence += 1
        beat = Heartbeat(self._destination, self.epoch, self._node, self._sequence, time.time_ns() // 1000)
        try:
            newer = await write_beat(connection, beat)
        except GrantMissing as error:
            raise self._not_allowed(error) from error
        except SourceError as error:
            if getattr(error, "errno", 0) not in (_NO_DATABASE, _NO_TABLE):
                raise
            await self._create(connection)
            newer = await write_beat(connection, beat)
        if newer is not None:
            self._fence(newer)

    async def _create(self, connection: SourceConnection) -> None:
        try:
            for statement in CREATE_SQL:
                await connection.query(statement)
        except GrantMissing as error:
            raise self._not_allowed(error) from error

    def _not_allowed(self, error: GrantMissing) -> SourceError:
        grant = GRANT_SQL.format(account=f"'{self._source.user}'@'%'")
        return SourceError(
            f"the account may not write headrace.heartbeat ({error.args[0]})",
            remedy=f"{' '.join(f'{statement};' for statement in CREATE_SQL)} {grant}",
        )

    def seen(self, beat: Heartbeat) -> None:
        """A row of the heartbeat table came by in the binlog. Raises Fenced when its epoch is above ours."""
        if beat.destination != self._destination:
            return
        if (beat.epoch, beat.node) == (self.epoch, self._node[:190]):
            self._own_seen = True
            self._status.beat_seen_at = time.monotonic()
            self._status.round_trips.note(max(0.0, time.time() - beat.beat_us / 1e6))
        elif beat.epoch > self.epoch and beat.beat_us >= self._began_us:  # older ones come by when we catch up
            self._fence(beat)
            self.check()
        elif beat.epoch <= self.epoch and self._own_seen:
            self._note_foreign(beat)

    def check(self) -> None:
        """Raises Fenced once somebody with a higher epoch was seen, in the binlog or in the table."""
        if self._fenced:
            raise Fenced(self._fenced)

    def _fence(self, beat: Heartbeat) -> None:
        self._fenced = self._fenced or (
            f"node {beat.node} runs {self._destination} under epoch {beat.epoch}, ours is {self.epoch}: its heartbeat "
            "says so"
        )

    def _note_foreign(self, beat: Heartbeat) -> None:
        """It does no harm to our row, and yet somebody does not know that he was replaced."""
        self._foreign_at = time.monotonic()
        text = (
            f"node {beat.node} still writes heartbeats for {self._destination} under epoch {beat.epoch}, ours is "
            f"{self.epoch}: two daemons run it"
        )
        self._status.trouble(Trouble(_FOREIGN, text, "stop that one"))

    def _forget_quiet(self) -> None:
        if self._foreign_at and time.monotonic() - self._foreign_at > _QUIET_SECONDS:
            self._foreign_at = 0.0
            self._status.clear(_FOREIGN)

    async def binlog_end(self) -> tuple[str, int]:
        """File and offset where the source's binlog ends, asked on a connection of its own, because beats may hang.
        Raises SourceError when it does not answer."""
        connection = await SourceConnection.open(address_of(self._source))
        try:
            file, offset, _ = await connection.binlog_end()
            return file, offset
        finally:
            await connection.close()

    async def _connect(self) -> SourceConnection:
        if self._connection is None:
            connection = await SourceConnection.open(address_of(self._source))
            try:
                await connection.load_variables()
                waits = f"innodb_lock_wait_timeout = {_LOCK_WAIT}, lock_wait_timeout = {_LOCK_WAIT}"
                await connection.query(f"SET SESSION {waits}, sql_notes = 0")
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
        return self._connection

    async def close(self) -> None:
        """Gives the connection back; it is made anew when needed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
