"""What a destination says of itself: written by its actor, read by health, metrics and logs.

`TRANSITIONS` is the table of its states. `DestinationStatus.enter` is the one place that enters a state; what the table
does not allow leaves the state as it is.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from headrace.destination.lag import Lag
from headrace.destination.table_totals import TableTotals
from headrace.errors import HeadraceError, LostKind, PositionLost, guided, named
from headrace.lease import Lease
from headrace.model import Gap, Position, State
from headrace.parking.parking import Waiting
from headrace.pipeline.native_output import NativeUse

_ANY = frozenset(State)
_STAYS = _ANY - {State.STARTING}
"""From what an attempt alone does not lead out of: a monitor does not see the state come and go."""

TRANSITIONS: Final[Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        **dict.fromkeys(State, _ANY),
        State.POSITION_LOST: _STAYS,
        State.SOURCE_CHANGED: _STAYS,
        State.SERVER_ID_TAKEN: _STAYS,
        State.STOPPED: frozenset({State.STARTING}),
    }
)
"""Where each state may lead."""

MOVE_REASONS: Final = (*(kind.value for kind in LostKind), "diverged")
"""Why a policy may move the position."""
TROUBLES: Final = (
    "emptied_topic",
    "foreign_heartbeat",
    "heartbeat",
    "no_checksums",
    "parked_messages",
    "retention",
    "signal",
    "sink",
    "snapshot",
    "two_sources",
    "undecodable_text",
    "unlogged_rows",
    "unreadable_tables",
)
"""The reasons of troubles."""

ROUND_TRIP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
"""Upper bounds in seconds of the heartbeat's round-trip histogram."""


_ENDED_KEPT = 50
"""Snapshots whose end is known: as many as may wait."""


@dataclass(slots=True)
class RoundTrips:
    """How long heartbeats took from their writing to their return in the binlog, as a histogram; in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(ROUND_TRIP_BUCKETS) + 1))
    """One more than there are bounds: the last is beyond them all."""
    total: float = 0.0
    last: float | None = None

    def note(self, seconds: float) -> None:
        """Counts one."""
        self.counts[bisect_left(ROUND_TRIP_BUCKETS, seconds)] += 1
        self.total += seconds
        self.last = seconds


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
    tables: TableTotals = field(default_factory=TableTotals)
    """The rows by table."""
    native: NativeUse = field(default_factory=NativeUse)
    events: int = 0
    bytes_received: int = 0
    bytes_published: int = 0
    queue_bytes: int = 0
    restarts: int = 0
    skipped_events: int = 0
    """Events and tables passed over because an operator said so."""
    undecodable_texts: int = 0
    """Texts in which `?` was published for codes that have no Unicode character."""
    epoch: int = 0
    lag: Lag = field(default_factory=Lag)
    last_event_at: float = 0.0
    oldest_unconfirmed_at: float = 0.0
    """When the oldest message that is not confirmed was read; 0 when there is none."""
    last_checkpoint_at: float = 0.0
    loop_delay: float = 0.0
    source_address: str = ""
    """host:port of the server that is read, or was last."""
    source_uuid: str = ""
    server_id: int = 0
    """Ours, as a replica."""
    reconnects: int = 0
    """Dumps that were begun again in place, without a restart of the destination."""
    role: str = "STANDBY"
    """ACTIVE while we hold the destination's lock."""
    holder: str = ""
    """Who runs the destination while we stand by, as far as it is known."""
    standby_problems: list[str] = field(default_factory=list)
    """Why we could not take over, a sentence each, as of the last look while standing by."""
    lease: Lease | None = None
    """Of the present holding; None while we stand by."""
    takeovers: int = 0
    """How often we got the lock."""
    resumes: int = 0
    """Lapsed leases after which the lock was proved again, and the stream went on in place."""
    fenced: int = 0
    """Runs that ended because somebody with a higher epoch, or a lost lock, said so."""
    troubles: dict[str, str] = field(default_factory=dict)
    """What is not as it should be although changes flow, as a sentence with its remedy, by reason."""
    round_trips: RoundTrips = field(default_factory=RoundTrips)
    heartbeat_seen_at: float = 0.0
    """When our own heartbeat last came back in the binlog."""
    lost_kind: str = ""
    """Why the position is lost (a LostKind's value); "" while it is not."""
    gap: Gap | None = None
    """The last move of the position that gave something up, or published again."""
    gaps: dict[str, int] = field(default_factory=dict)
    """Moves of the position by a policy, counted by reason."""
    retention_seconds: float | None = None
    """Until the source purges the binlog that we need, as far as its settings say; None when not known or never."""
    retention_bytes: int | None = None
    """Binlog between the oldest that the source keeps and our position; None when not known."""
    retention_share: float | None = None
    """The part of the time, or of the bytes, that the source keeps binlogs, which our position has left, 0..1."""
    backlog_bytes: int | None = None
    """Binlog between the stored position and the source's end, as of the last look; None when not known."""
    backlog_rate: float | None = None
    """Bytes of binlog received in a second, between the last looks."""
    backlog_eta: float | None = None
    """Seconds until nothing is left of it at the rate at which it became less; None while it does not."""
    command: Callable[[Mapping[str, Any]], Coroutine[Any, Any, dict[str, Any]]] | None = None
    """Takes what operators ask of the destination (see Control.command); None while this daemon does not run it."""
    operate: Callable[..., Coroutine[Any, Any, dict[str, Any]]] | None = None
    """Does what operators ask between two runs: pause, resume, restart or position, and who asks; None while this
    daemon does not run it."""
    snapshot: dict[str, Any] | None = None
    """How far the reading of tables has come, as SnapshotRate.facts() says; None while none is read."""
    snapshots_ended: list[dict[str, str]] = field(default_factory=list)
    """The last snapshots that ended while this daemon ran the destination: `id`, `kind`, and `outcome`, which is done,
    cancelled, or given up and why."""
    search: dict[str, Any] | None = None
    """How far the search is for a position that an operator asked for; None while there is none."""
    parked: Waiting = field(default_factory=Waiting)
    """Messages that the sink refused and that wait to be sent again, with those behind them."""

    def enter(self, state: State, reason: str = "", message: str = "") -> bool:
        """Takes a state, if the table of transitions allows it; returns whether anything changed. The message of a
        state that is not healthy gets the section of the manual about its reason."""
        if message and not state.healthy:
            message = guided(named(message, self.name), reason)
        if (state, reason, message) == (self.state, self.reason, self.message):
            return False
        if state is not self.state and state not in TRANSITIONS[self.state]:
            return False
        if state is not self.state:
            self.since = time.monotonic()
        if state.healthy:  # at once: whoever sees the one must not see the other still
            self.lost_kind = ""
        self.state, self.reason, self.message = state, reason, message
        return True

    def take_over(self, lease: Lease) -> None:
        """The lock is ours."""
        self.role, self.holder, self.lease = "ACTIVE", "", lease
        self.standby_problems = []
        self.takeovers += 1

    def give_up(self) -> None:
        """The lock is not ours any more, nor do we wait for it."""
        self.role, self.holder, self.lease = "STANDBY", "", None
        self.standby_problems = []

    def stand_by(self) -> None:
        """Somebody else runs the destination: what is known of its stream would only grow old, and raise alarms."""
        self.lag.forget()
        self.queue_bytes = 0
        self.last_event_at = self.last_checkpoint_at = self.heartbeat_seen_at = 0.0
        self.snapshot = None
        self._forget_troubles()

    def _forget_troubles(self) -> None:
        self.oldest_unconfirmed_at = 0.0
        self.retention_seconds = self.retention_bytes = self.retention_share = None
        self.backlog_bytes = self.backlog_rate = self.backlog_eta = None
        self.troubles.clear()

    def note_snapshot_ended(self, id: str, kind: str, outcome: str) -> None:
        """One of the snapshots ended."""
        self.snapshots_ended = [*self.snapshots_ended, {"id": id, "kind": kind, "outcome": outcome}][-_ENDED_KEPT:]

    def note_parked(self, waiting: Waiting) -> None:
        """Takes what waits to be sent again; it is a trouble as long as anything does."""
        self.parked = waiting
        if not waiting.messages:
            self.clear("parked_messages")
            return
        manual = f", {waiting.needs_operator} of them need an operator" if waiting.needs_operator else ""
        text = f"{waiting.messages} messages that the sink refused wait to be sent again{manual}"
        self.trouble("parked_messages", text, remedy="headrace parked list DESTINATION")

    def trouble(self, reason: str, text: str, *, remedy: str = "") -> bool:
        """Notes what is not as it should be although changes flow, which makes STREAMING DEGRADED as long as it lasts;
        returns whether it is new, or another than before. `reason` is one word for a monitor."""
        text = guided(named(f"{text} -> {remedy}" if remedy else text, self.name), reason)
        if self.troubles.get(reason) == text:
            return False
        self.troubles[reason] = text
        return True

    def clear(self, reason: str) -> bool:
        """Takes a trouble back; returns whether there was one."""
        return self.troubles.pop(reason, None) is not None

    def note_error(self, error: HeadraceError) -> None:
        """Notes the last error and its time, and takes no state."""
        self.last_error = error.told(self.name)
        self.last_error_at_us = time.time_ns() // 1000

    def fail(self, error: HeadraceError) -> None:
        """Notes an error and takes its state."""
        self.note_error(error)
        if isinstance(error, PositionLost):
            self.lost_kind = error.kind.value
        self.enter(error.state, error.reason, self.last_error)

    def begin_anew(self) -> None:
        """Forgets what holds only under former settings; counters go on."""
        self.state, self.since = State.STOPPED, time.monotonic()
        self.enter(State.STARTING)
        self.last_error, self.last_error_at_us, self.lost_kind = "", 0, ""
        self._forget_troubles()
