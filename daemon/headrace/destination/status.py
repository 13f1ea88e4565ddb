"""The status of a destination, for health, metrics and logs.

`TRANSITIONS` is the table of its states. Only `DestinationStatus.enter` enters a state; a transition that the table
does not allow leaves the state unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headrace import runtime
from headrace.destination import facts
from headrace.destination.facts import TableTotals
from headrace.destination.lag import Lag
from headrace.errors import HeadraceError, LostKind, PositionLost, guided, named
from headrace.model import State
from headrace.parking.parking import Waiting
from headrace.pipeline.native_output import NativeUse

_ANY = frozenset(State)
_STAYS = _ANY - {State.STARTING}
"""States that an attempt alone does not leave, so that monitoring does not see them flap."""

TRANSITIONS: Final[Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        **dict.fromkeys(State, _ANY),
        State.POSITION_LOST: _STAYS,
        State.SOURCE_CHANGED: _STAYS,
        State.SERVER_ID_TAKEN: _STAYS,
        State.STOPPED: frozenset({State.STARTING}),
    }
)
"""The states that each state may change to."""

MOVE_REASONS: Final = (*(kind.value for kind in LostKind), "diverged")
"""Why a policy may move the position."""
TROUBLES: Final = (
    "archive",
    "emptied_topic",
    "foreign_heartbeat",
    "heartbeat",
    "no_checksums",
    "parked_messages",
    "retention",
    "semi_sync",
    "signal",
    "sink",
    "snapshot",
    "two_sources",
    "undecodable_text",
    "unlogged_rows",
    "unreadable_tables",
)
"""The reasons of troubles."""


class DestinationStatus:
    """The state and troubles of one destination, and groups of facts. Nobody assigns to an attribute of it, or of a
    group: methods write, and those of a group are called by one part of the destination."""

    def __init__(self, name: str, tables: TableTotals | None = None) -> None:
        self.name = name
        self.state, self.since = State.STARTING, runtime.monotonic()
        self.reason = ""
        """One word for monitoring, such as `source` or `sink`."""
        self.message = ""
        """A sentence for people."""
        self.last_error, self.last_error_at_us = "", 0
        self.lost_kind = ""
        """Why the position was lost (a LostKind's value), until the destination is healthy again."""
        self.restarts = 0
        self.troubles: dict[str, str] = {}
        """Problems although changes flow, by reason: a sentence with its remedy."""
        self.lag = Lag()
        self.holding = facts.Holding()
        self.source = facts.ReadServer()
        self.received = facts.Received()
        self.published = facts.Published(tables or TableTotals())
        self.stored = facts.StoredPosition()
        self.heartbeat = facts.RoundTrips()
        self.retention = facts.Retained()
        self.archive = facts.Archived()
        self.backlog = facts.Remaining()
        self.moves = facts.Moves()
        self.snapshots = facts.SnapshotFacts()
        self.search = facts.Search()
        self.parked = Waiting()
        """Messages that the sink refused and that wait to be sent again, with those that wait for them."""
        self.native = NativeUse()

    def enter(self, state: State, reason: str = "", message: str = "") -> bool:
        """Enters a state, if the table of transitions allows it; returns whether anything changed. The message of a
        state that is not healthy gets the section of the manual about its reason."""
        if message and not state.healthy:
            message = guided(named(message, self.name), reason)
        if (state, reason, message) == (self.state, self.reason, self.message):
            return False
        if state is not self.state and state not in TRANSITIONS[self.state]:
            return False
        if state is not self.state:
            self.since = runtime.monotonic()
        if state.healthy:  # in one step: no reader may see the one with the other
            self.lost_kind = ""
        self.state, self.reason, self.message = state, reason, message
        return True

    def stand_by(self) -> None:
        """Records that another daemon runs the destination: facts of our stream would only get old, and raise
        alarms."""
        self.lag.forget()
        self.received.forget()
        self.stored.forget()
        self.heartbeat.forget()
        self.snapshots.forget()
        self.parked = Waiting()
        self._forget_troubles()

    def _forget_troubles(self) -> None:
        self.published.forget()
        self.retention.forget()
        self.backlog.forget()
        self.troubles.clear()

    def note_rows_by(self, native: NativeUse) -> None:
        """Records whether native code or Python makes the rows."""
        self.native = native

    def note_parked(self, waiting: Waiting) -> None:
        """Records the messages that wait to be sent again; a trouble while there are any."""
        self.parked = waiting
        if not waiting.messages:
            self.clear("parked_messages")
            return
        manual = f", {waiting.needs_operator} of them need an operator" if waiting.needs_operator else ""
        text = f"{waiting.messages} messages that the sink refused wait to be sent again{manual}"
        self.trouble("parked_messages", text, remedy="headrace parked list DESTINATION")

    def trouble(self, reason: str, text: str, *, remedy: str = "") -> bool:
        """Records a problem although changes flow, which makes STREAMING DEGRADED while it lasts. Returns whether it is
        new, or differs from the one before. `reason` is one word for monitoring."""
        text = guided(named(f"{text} -> {remedy}" if remedy else text, self.name), reason)
        if self.troubles.get(reason) == text:
            return False
        self.troubles[reason] = text
        return True

    def clear(self, reason: str) -> bool:
        """Clears a trouble; returns whether there was one."""
        return self.troubles.pop(reason, None) is not None

    def note_error(self, error: HeadraceError) -> None:
        """Records the last error and its time, without a change of state."""
        self.last_error = error.operator_text(self.name)
        self.last_error_at_us = runtime.now_us()

    def fail(self, error: HeadraceError, *, restarts: bool = False) -> None:
        """Records an error and enters its state. `restarts`: the destination has ended with it, and begins again."""
        self.restarts += restarts
        self.note_error(error)
        if isinstance(error, PositionLost):
            self.lost_kind = error.kind.value
        self.enter(error.state, error.reason, self.last_error)

    def begin_again(self) -> None:
        """Forgets what is valid only under former settings; counters continue."""
        self.state, self.since = State.STOPPED, runtime.monotonic()
        self.enter(State.STARTING)
        self.last_error, self.last_error_at_us, self.lost_kind = "", 0, ""
        self._forget_troubles()
