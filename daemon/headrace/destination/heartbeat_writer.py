"""Writes a destination's heartbeat on its source, checks that it returns in the binlog, and reports other writers."""

from __future__ import annotations

import asyncio
from zlib import crc32

from headrace import runtime
from headrace.destination.dependencies import Context
from headrace.errors import Fenced, HeadraceError, SourceMisconfigured
from headrace.ports.source import Heartbeat, SecondConnection

_MOST_EPOCH = 1 << 40
"""A destination that is taken over each millisecond reaches it after 35 years; a store has room for twice the bits."""
_TROUBLE = "heartbeat"
_FOREIGN = "foreign_heartbeat"
_TOGETHER = 0.1
"""Seconds within which all destinations of a process with the same interval write. Each of them reads the heartbeats of
all others on its source, so it wakes up for a few reads per interval, and not for as many as there are destinations."""
_QUIET_SECONDS = 60.0
"""When nobody has written under a lower epoch for this many seconds, that writer is gone."""


class HeartbeatWriter:
    """Writes heartbeats while run() is awaited. An error here does not end the stream: it becomes a trouble in the
    status, which makes the destination DEGRADED."""

    def __init__(self, context: Context, connection: SecondConnection) -> None:
        self._connection, self._settings = connection, context.settings.heartbeat
        self._destination, self._node = context.name, context.daemon.node
        self._status, self._log = context.status, context.log
        self._sequence = 0
        self._began_us = runtime.now_us()
        self._fenced = ""
        """Who runs the destination under a higher epoch, as a sentence."""
        self._own_seen = False
        """Whether our first heartbeat has come back: what follows it in the binlog was written after we took over."""
        self._foreign_at = 0.0
        """When another daemon last wrote under a lower epoch."""
        self.epoch = 0
        """Our epoch; set before run()."""

    async def stored(self, *, required: bool = False) -> Heartbeat | None:
        """Returns the stored row; None if there is none, it can't be read, or heartbeats are off. Raises SourceError if
        it is `required` and the server does not answer."""
        if not self._settings.enabled:
            return None
        return await self._connection.stored_heartbeat(required=required)

    async def stored_epoch(self) -> int:
        """Returns the epoch of that row, 0 without one. Raises SourceMisconfigured for an epoch that no daemon has
        written."""
        heartbeat = await self.stored()
        epoch = heartbeat.epoch if heartbeat is not None else 0
        if epoch > _MOST_EPOCH:
            raise SourceMisconfigured(
                f"the heartbeat row of {self._destination} on the source has the epoch {epoch}, to which no daemon has "
                "come: somebody else has written it",
                remedy=f"DELETE FROM headrace.heartbeat WHERE destination = '{self._destination}'",
            )
        return epoch

    async def run(self) -> None:
        """Writes at every interval until it is cancelled. Never raises for errors of the server."""
        self._status.clear(_FOREIGN)
        if not self._settings.enabled:
            self._status.clear(_TROUBLE)
            return
        while True:
            began = runtime.monotonic()
            if self._foreign_at and began - self._foreign_at > _QUIET_SECONDS:
                self._foreign_at = 0.0
                self._status.clear(_FOREIGN)
            trouble = await self._write()
            if trouble:
                if self._status.trouble(_TROUBLE, trouble):
                    self._log.warning("no heartbeat can be written", error=self._status.troubles[_TROUBLE])
            elif self._status.clear(_TROUBLE):
                self._log.info("heartbeats are written again")
            await asyncio.sleep(until_next(self._destination, self._settings.interval, runtime.monotonic()))

    async def _write(self) -> str:
        """Writes one; returns why it can't be written, or "" (also for a server that rightly gets none)."""
        self._sequence += 1
        heartbeat = Heartbeat(self._destination, self.epoch, self._node, self._sequence, runtime.now_us())
        try:
            newer = await self._connection.write_heartbeat(heartbeat)
        except HeadraceError as error:
            return str(error)
        except Exception as error:  # a bug of ours must not silently end the heartbeats
            return f"an unexpected error, {type(error).__name__}: {error}"
        if newer is not None:
            self._fence(newer)
        return ""

    def seen(self, heartbeat: Heartbeat) -> None:
        """Handles a row of the heartbeat table from the binlog. Raises Fenced if its epoch is above ours."""
        if heartbeat.destination != self._destination:
            return
        if (heartbeat.epoch, heartbeat.node) == (self.epoch, self._node[:190]):
            # Its epoch and node alone are not enough: where the heartbeat table was emptied, older rows may have both.
            self._own_seen = self._own_seen or heartbeat.written_us >= self._began_us
            self._status.heartbeat.note(max(0.0, runtime.now() - heartbeat.written_us / 1e6))
        elif heartbeat.epoch > self.epoch and heartbeat.written_us >= self._began_us:
            # older ones arrive while we catch up
            self._fence(heartbeat)
            self.check()
        elif heartbeat.epoch <= self.epoch and self._own_seen:
            self._note_foreign(heartbeat)

    def check(self) -> None:
        """Raises Fenced once a higher epoch was seen, in the binlog or in the table."""
        if self._fenced:
            raise Fenced(self._fenced)

    def _fence(self, heartbeat: Heartbeat) -> None:
        self._fenced = self._fenced or (
            f"node {heartbeat.node} runs {self._destination} under epoch {heartbeat.epoch}, ours is {self.epoch}: its "
            "heartbeat says so"
        )

    def _note_foreign(self, heartbeat: Heartbeat) -> None:
        """Reports a writer under a lower epoch. Our row is unharmed, but that daemon does not know that it was
        replaced."""
        self._foreign_at = runtime.monotonic()
        text = (
            f"node {heartbeat.node} still writes heartbeats for {self._destination} under epoch "
            f"{heartbeat.epoch}, ours is {self.epoch}: two daemons run it"
        )
        if self._status.trouble(_FOREIGN, text, remedy="stop that one"):
            self._log.warning("another daemon writes heartbeats", error=self._status.troubles[_FOREIGN])


def until_next(destination: str, interval: float, now: float) -> float:
    """Returns the seconds until a destination's next heartbeat: between 0.5 and 1.5 intervals the first time, then
    exactly one interval."""
    own = crc32(destination.encode()) / (1 << 32) * _TOGETHER
    return own + interval * round((now - own) / interval + 1) - now
