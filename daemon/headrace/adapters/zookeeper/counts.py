"""What a process has come to with ZooKeeper since it began, for /metrics."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """Written by the session and by the locks and stores that use it."""

    sessions: int = 0
    """The first, and one for each that was lost."""
    suspensions: int = 0
    """Connections that broke."""
    attempts: int = 0
    """To take a lock that looked free."""
    fenced_writes: dict[str, int] = field(default_factory=dict)
    """By destination: writes of the state store that were refused because the destination is somebody else's."""
