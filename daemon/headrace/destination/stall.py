"""Distinguishes a stall from lag: STREAMING, DEGRADED or STALLED by the sink, and a source that is silent."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace import runtime
from headrace.destination.dependencies import Context
from headrace.errors import HeadraceError, SourceSilent
from headrace.model import State
from headrace.ports.source import ChangeStream, SecondConnection

_FLOWING = frozenset({State.STREAMING, State.DEGRADED, State.SNAPSHOTTING, State.PAUSED})


class StallDetector:
    """Watches one run, from the clock's task."""

    def __init__(self, context: Context, connection: SecondConnection) -> None:
        self._source, self._status, self._log = context.settings.source, context.status, context.log
        self._connection = connection
        self._asked_at = 0.0

    def judge(self, oldest: float, confirmed_at: float) -> None:
        """Enters STALLED once the oldest unconfirmed message (read at `oldest`, 0 for none) is too old and nothing
        before it was confirmed meanwhile (`confirmed_at`): with a sink that is only slow, messages get old too while
        there is much to catch up on. A new connection alone does not end a stall, and a dump command alone is no
        stream: this is called once the source has sent something."""
        stall_after = self._source.stall_after
        if oldest and runtime.monotonic() - max(oldest, confirmed_at) > stall_after:
            text = f"nothing was confirmed for more than {stall_after:g} s; reading waits, nothing is lost"
            if cause := self._status.troubles.get("sink"):
                text = f"nothing was confirmed for more than {stall_after:g} s: {cause}"
            if self._status.enter(State.STALLED, "sink", text):
                self._log.warning("stalled", reason="sink")
            return
        troubles, before = self._status.troubles, self._status.state
        if troubles:
            entered = self._status.enter(State.DEGRADED, ",".join(sorted(troubles)), "; ".join(troubles.values()))
        else:
            entered = self._status.enter(*_flowing(self._status.snapshots.now))
        if entered and self._status.restarts and before not in _FLOWING:
            self._log.info("streaming again")

    async def check(self, source: ChangeStream) -> None:
        """Raises SourceSilent if the source has more than it sends: a read that waits for it alone would wait forever.

        Silence counts only while we read: catching up, a huge transaction and back-pressure are no stall."""
        limit, now = self._source.stall_after, runtime.monotonic()
        since = source.silent_since()
        if not since or now - since <= limit or now - self._asked_at <= limit / 2:
            return
        self._asked_at = now
        silent = f"no byte came from the source at {self._status.source.address} for {limit:g} s"
        try:
            async with asyncio.timeout(self._source.connect_timeout):
                end = await self._connection.end()
        except (HeadraceError, TimeoutError):
            if source.silent_since() == since:
                raise SourceSilent(f"{silent}, and it does not answer on another connection either") from None
            return
        if source.silent_since() == since and not source.has_reached(end):
            progress = source.progress()
            raise SourceSilent(
                f"{silent}, but its binlog goes on to {end}; we are at {progress.file}:{progress.offset}"
            )


def _flowing(snapshot: dict[str, Any] | None) -> tuple[State, str, str]:
    """Returns the state of a stream that flows, with a snapshot if one is running."""
    if snapshot is None:
        return State.STREAMING, "", ""
    paused = snapshot["state"] == "paused"
    if snapshot["kind"] != "initial":
        return State.STREAMING, "", "a resync is paused" if paused else "a resync runs while changes flow"
    if paused:
        return State.PAUSED, "snapshot", "the first rows of the tables wait: the snapshot is paused; changes flow"
    return State.SNAPSHOTTING, "snapshot", "existing rows are published while changes flow"
