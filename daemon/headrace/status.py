"""What a destination says of itself: written by its actor, read by health, metrics and logs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from headrace.model import Position, State


@dataclass(slots=True)
class DestinationStatus:
    """The live facts of one destination. Counters only grow while the daemon lives; times are monotonic seconds,
    except where a name ends in `_us` (microseconds since 1970 UTC)."""

    name: str
    state: State = State.STARTING
    reason: str = ""
    """One word for a monitor, such as `source` or `sink`."""
    message: str = ""
    """A sentence for people."""
    last_error: str = ""
    last_error_at_us: int = 0
    since: float = field(default_factory=time.monotonic)
    position: Position | None = None
    received_file: str = ""
    received_offset: int = 0
    rows: int = 0
    messages: int = 0
    transactions: int = 0
    events: int = 0
    bytes_received: int = 0
    bytes_published: int = 0
    queue_bytes: int = 0
    restarts: int = 0
    skipped_events: int = 0
    """Events and tables passed over because an operator said so."""
    epoch: int = 0
    lag_seconds: float = 0.0
    """Age of the newest change received when it was read: now minus its commit time."""
    last_event_at: float = 0.0
    oldest_unconfirmed_at: float = 0.0
    """When the oldest message that is not confirmed was read; 0 when there is none."""
    last_checkpoint_at: float = 0.0
    loop_delay: float = 0.0

    def enter(self, state: State, reason: str = "", message: str = "") -> bool:
        """Takes a state; returns whether anything changed."""
        if (state, reason, message) == (self.state, self.reason, self.message):
            return False
        if state is not self.state:
            self.since = time.monotonic()
        self.state, self.reason, self.message = state, reason, message
        return True

    def failed(self, error: str) -> None:
        """Notes the last error and its time."""
        self.last_error = error
        self.last_error_at_us = time.time_ns() // 1000
