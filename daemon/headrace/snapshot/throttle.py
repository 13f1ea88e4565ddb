"""Delays the reading of tables while the server that is read is busy."""

from __future__ import annotations

import asyncio
import math

from headrace import runtime
from headrace.ports.tables import TableReader
from headrace.settings.snapshot import SnapshotSettings

_POLL = 1.0
"""Seconds between two checks of a server that is busy, or may be."""


class Throttle:
    """The throttle for all tables of a run. `reason` says why reading waits; "" while it does not."""

    def __init__(self, settings: SnapshotSettings) -> None:
        self._settings = settings
        self._checked_at = self._free_at = 0.0
        self.reason = ""

    async def wait(self, reader: TableReader) -> None:
        """Waits until the next chunk may be read. Raises SourceError."""
        while runtime.monotonic() < self._free_at:
            self.reason = "rows a second"
            await asyncio.sleep(min(_POLL, self._free_at - runtime.monotonic()))
        limits = self._settings.snapshot_max_replica_lag, self._settings.snapshot_max_threads_running
        while any(limits) and runtime.monotonic() - self._checked_at >= _POLL:
            lag, threads = await reader.load()
            self.reason = _excess(lag, threads, *limits)
            if not self.reason:
                self._checked_at = runtime.monotonic()
            else:
                await asyncio.sleep(_POLL)  # the server has no event to wait for
        self.reason = ""

    @property
    def largest(self) -> float:
        """Returns the maximum rows of a chunk, so that the limit is kept in each second."""
        return self._settings.snapshot_max_rows_per_second or math.inf

    def note(self, rows: int) -> None:
        """Records rows that were read."""
        most = self._settings.snapshot_max_rows_per_second
        if most:
            self._free_at = max(self._free_at, runtime.monotonic()) + rows / most


def _excess(lag: float, threads: int, most_lag: float, most_threads: int) -> str:
    if most_lag and lag > most_lag:
        return f"the replica is {lag:.0f} s behind"
    if most_threads and threads > most_threads:
        return f"{threads} threads run"
    return ""
