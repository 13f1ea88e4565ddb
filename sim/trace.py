"""The record of a simulation: what happened, in virtual time, and a hash of all of it."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog

from sim.loop import LANE


class Trace:
    """Lines of text, in which `folder` has no name. `show` gets each at once."""

    def __init__(self, now: Callable[[], float], folder: str, show: Callable[[str], None] | None = None) -> None:
        self._now, self._folder, self._show = now, folder, show
        self._hash = hashlib.blake2b(digest_size=8)
        self.lines = 0
        self.on_log: Callable[[str, dict[str, Any]], None] = lambda event, facts: None

    def __call__(self, event: str, **facts: Any) -> None:
        """Records an event."""
        line = f"{self._now():12.6f} {event} " + " ".join(f"{key}={value!r}" for key, value in facts.items())
        line = line.replace(self._folder, "")
        self._hash.update(line.encode())
        self.lines += 1
        if self._show is not None:
            self._show(line)

    @property
    def digest(self) -> str:
        """Returns the hash of all lines."""
        return self._hash.hexdigest()

    def take_logs(self) -> None:
        """Records what daemons log."""

        def process(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> Any:
            lane = LANE.get(None)
            name = lane.process.name if lane is not None else "?"
            if event.pop("exc_info", None):
                event["error"] = traceback.format_exc()
            text = event.pop("event")
            self(f"{name}: {text}", **event)
            self.on_log(text, dict(event))
            raise structlog.DropEvent

        structlog.configure(processors=[process], cache_logger_on_first_use=False)
