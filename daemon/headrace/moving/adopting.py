"""Compares the last messages of another system with the binlog, because its cursor does not say how far it has
published."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from headrace.model import Origin
from headrace.moving.shadow.changes import Change
from headrace.moving.shadow.comparison import Comparison
from headrace.mysql.schema.states import FilePosition, reached

_MARKS = frozenset({"BEGIN", "END", "TRANSACTIONBEGIN", "TRANSACTIONEND"})
"""Not compared: begin and end of a partly published transaction are sent again."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Where publishing continues: the transaction (or statement) at `file`:`offset`, after `events_done` of its rows
    events."""

    file: str
    offset: int
    events_done: int = 0


@dataclass(slots=True)
class Handover:
    """Receives the events of the binlog in order, each with headrace's messages about it, and searches those among what
    the other system has `published`.

    Events before `begin`, where the cursor's transaction starts, only remove their messages. From there on an event is
    published if the cursor covers it, according to `covered`, or if none of its messages is missing; up to the first
    one that is not."""

    published: Iterable[Change]
    begin: FilePosition
    covered: Callable[[Origin], bool]
    comparison: Comparison
    """Compares a change of the other system with one of ours."""
    resume: Resume | None = None
    """The first event that was not published; None while there is none."""
    last: Origin | None = None
    """The last published event from `begin` on."""
    found: int = 0
    """Number of published changes after the cursor."""
    again: int = 0
    """Number of changes after `resume` that are already published, and are sent again."""
    _lanes: dict[tuple[str, str], deque[Change]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for change in self.published:
            if change.kind not in _MARKS:
                self._lanes.setdefault(change.lane, deque()).append(change)

    def take(self, origin: Origin, changes: Sequence[Change] | None, done: int) -> None:
        """Takes one more event, with the changes in its messages: none if it is not published at all, None if messages
        can't be searched for. `done` rows events of its transaction are before it."""
        there = [self._found(one) for one in changes or () if one.kind not in _MARKS]
        if not reached((origin.file, origin.transaction), self.begin):
            return
        if self.resume is not None:
            self.again += sum(there)
        elif self.covered(origin):
            self.last = origin
        elif changes is None or not all(there):
            self.resume = Resume(origin.file, origin.transaction, done)
            self.again += sum(there)
        elif there:
            self.found += len(there)
            self.last = origin

    def _found(self, ours: Change) -> bool:
        """Removes the equal published change, and those of its row before it."""
        lane = self._lanes.get(ours.lane, deque())
        for number, theirs in enumerate(lane):
            if self.comparison.same(theirs, ours):
                for _ in range(number + 1):
                    lane.popleft()
                return True
        return False

    def left_over(self) -> int:
        """Returns the number of published changes that belong to no event, also of those that the cursor covers: the
        other system sent them more than once, so that one may have been taken for a later change, or headrace does not
        publish them."""
        return sum(not self.comparison.is_theirs(one) for lane in self._lanes.values() for one in lane)
