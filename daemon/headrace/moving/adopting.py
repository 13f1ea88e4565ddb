"""Compares the last messages of another system with the binlog: its cursor does not say how far it has published."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from headrace.model import Origin
from headrace.moving.shadow.changes import Change
from headrace.moving.shadow.comparison import Comparison
from headrace.mysql.schema.states import FilePosition, reached

_MARKS = frozenset({"BEGIN", "END", "TRANSACTIONBEGIN", "TRANSACTIONEND"})
"""What is not compared: begin and end of a transaction of which a part was published come again."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Where publishing goes on: the transaction (or statement) at `file`:`offset`, after `events_done` of its rows
    events."""

    file: str
    offset: int
    events_done: int = 0


@dataclass(slots=True)
class Handover:
    """Is given the events of the binlog in order, each with the messages that headrace makes of it, and looks for those
    among what the other system has `published`.

    Events before `begin`, where the cursor's transaction starts, only take their messages away. From there on an event
    is published if the cursor covers it, as `covered` says, or if none of its messages is missing; up to the first one
    that is not.
    """

    published: Iterable[Change]
    begin: FilePosition
    covered: Callable[[Origin], bool]
    comparison: Comparison
    """Says whether a change of the other system and one of ours are the same."""
    resume: Resume | None = None
    """Where the first event is that was not published; None as long as there is none."""
    last: Origin | None = None
    """Of the last published event from `begin` on."""
    found: int = 0
    """Changes after the cursor that are published."""
    again: int = 0
    """Changes after `resume` that are published already, and come again."""
    _lanes: dict[tuple[str, str], deque[Change]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for change in self.published:
            if change.kind not in _MARKS:
                self._lanes.setdefault(change.lane, deque()).append(change)

    def take(self, origin: Origin, changes: Sequence[Change] | None, done: int) -> None:
        """One more event, with the changes in its messages: none when it is not published at all, None when messages
        can't be looked up. `done` rows events of its transaction are before it."""
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
        """Takes the published change away that is the same, and those of its row before it."""
        lane = self._lanes.get(ours.lane, deque())
        for number, theirs in enumerate(lane):
            if self.comparison.same(theirs, ours):
                for _ in range(number + 1):
                    lane.popleft()
                return True
        return False

    def left_over(self) -> int:
        """Published changes that belong to no event, also of those that the cursor covers: the other system sent them
        more than once, so that one may have been taken for a later change, or headrace does not publish them."""
        return sum(not self.comparison.is_theirs(one) for lane in self._lanes.values() for one in lane)
