"""The facts that the daemon gives to the HTTP server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace import runtime
from headrace.cluster.cluster import Cluster
from headrace.destination.handle import DestinationHandle
from headrace.destination.status import DestinationStatus

WINDOW = 60.0


class LoopDelay:
    """How late the event loop is, in seconds: the last time, and the maximum of the last minute. A task sleeps, and
    measures how long it really took."""

    def __init__(self, interval: float = 0.1) -> None:
        self._interval = interval
        self._seen: deque[tuple[float, float]] = deque()
        self.last = 0.0

    @property
    def largest(self) -> float:
        """Returns the largest delay of the last minute."""
        return max((delay for _, delay in self._seen), default=0.0)

    def note(self, delay: float, now: float) -> None:
        """Adds a measurement made at `now` on the monotonic clock."""
        self.last = max(0.0, delay)
        self._seen.append((now, self.last))
        while self._seen[0][0] < now - WINDOW:
            self._seen.popleft()

    async def run(self) -> None:
        """Measures until it is cancelled."""
        while True:
            before = runtime.monotonic()
            await asyncio.sleep(self._interval)
            now = runtime.monotonic()
            self.note(now - before - self._interval, now)


@dataclass(frozen=True, slots=True)
class Facts:
    """The destinations, and other facts of the daemon."""

    handles: Mapping[str, DestinationHandle]
    """By name; live, on the same loop."""
    node: str
    config_errors: Sequence[str] = ()
    """Live: errors of files that changed while running."""
    cluster: Cluster | None = None
    delay: LoopDelay = field(default_factory=LoopDelay)
    """How late the event loop is."""
    native: str = ""
    """Which native code is used, or why none is."""

    @property
    def statuses(self) -> dict[str, DestinationStatus]:
        """Returns the status of each destination."""
        return {name: handle.status for name, handle in self.handles.items()}


@dataclass(frozen=True, slots=True)
class Options:
    """How the server listens, and which requests it accepts."""

    token: str = field(default="", repr=False)
    """The token that commands must send; "" refuses them all."""
    allow_plain: bool = False
    """Whether commands from other machines need no TLS."""
    allowed_hosts: Sequence[str] = ()
    """Names of the daemon besides its address; see Hosts."""
    certificate: Path | None = None
    """PEM file; None: without TLS."""
    key: Path | None = None
