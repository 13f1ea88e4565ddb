"""What the consumer says of itself: its state, why, and counts; in a file, for people and for monitoring."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

log = structlog.get_logger("headrace_consume")

CONNECTING, RUNNING, WAITING, STOPPING, STOPPED = "connecting", "running", "waiting", "stopping", "stopped"
"""waiting: Elasticsearch takes nothing, and the messages stay in the queue."""
STATES = (CONNECTING, RUNNING, WAITING, STOPPING, STOPPED)
COUNTS = (
    *("received", "redelivered", "applied", "rows", "indexed", "deleted", "stale", "ddl_ignored", "duplicates"),
    *("retried", "buried", "resent", "connections"),
)


class Status:
    """State and counts of the process. Without a file it only keeps them, and logs changes of the state."""

    def __init__(self, path: str = "", clock: Callable[[], float] = time.time) -> None:
        self._path = Path(path) if path else None
        self._clock = clock
        self._since = clock()
        self._complained = False
        self.state = CONNECTING
        self.reason = ""
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self.gauges: dict[str, int] = {"in_hand": 0, "held": 0, "dead_letters": 0, "needs_operator": 0}
        self.troubles: dict[str, str] = {}
        """By what: what does not work and does not stop the work."""

    def enter(self, state: str, reason: str = "") -> None:
        """A change of the state, with its reason."""
        if (state, reason) == (self.state, self.reason):
            return
        if state != self.state:
            self._since = self._clock()
            level = log.warning if state == WAITING else log.info
            level("state", state=state, **({"reason": reason} if reason else {}))
        self.state, self.reason = state, reason
        self.write()

    def body(self) -> dict[str, Any]:
        """The content of the file."""
        return {
            "state": self.state,
            "reason": self.reason,
            "since": _iso(self._since),
            "written": _iso(self._clock()),
            "pid": os.getpid(),
            **self.gauges,
            "troubles": {name: text for name, text in self.troubles.items() if text},
            "counts": dict(self.counts),
        }

    def write(self) -> None:
        """Writes the file, whole or not at all. A failure is logged once and stops nothing."""
        if self._path is None:
            return
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            fresh.write_text(json.dumps(self.body(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
            fresh.replace(self._path)
            self._complained = False
        except OSError as error:
            if not self._complained:
                log.warning("the status file can't be written", file=str(self._path), reason=str(error))
            self._complained = True
            with suppress(OSError):
                fresh.unlink()


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
