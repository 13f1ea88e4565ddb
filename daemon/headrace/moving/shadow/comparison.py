"""Pairs the changes of two systems, row by row and in order, and counts the differences."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any

import orjson

from headrace.moving.shadow.changes import ABSENT, Change

Explain = Callable[[str, Any, Any, Change, Change], str | None]
"""Returns the rule of the page on differences by which a field of the old system's change (its value, the third
argument is ours) differs; None: no rule."""
Alone = Callable[[Change, bool], str | None]
"""Returns the same for a change that only one side has; the flag says whether that is headrace."""

_WINDOW = 16
"""Changes of one row in which a partner is searched for, on either side."""
_RECENT = 200_000
"""Number of the old system's changes that are remembered, so that repeated ones are recognized."""
PENDING = 1_000_000
"""Maximum number of changes that wait for the other side."""
_EXAMPLE = 300
"""Characters of a value in an example."""
MISSING, SURPLUS = "missing in headrace's topics", "missing in the old system's topics"


class TooFarApart(Exception):
    """One system is so far ahead that its changes can't be kept until the other one's arrive."""


@dataclass(slots=True)
class Finding:
    """Differences of one kind."""

    rule: str | None
    """The rule that explains them; None: unexplained."""
    what: str
    """The field, or that a change is missing."""
    table: str
    count: int = 0
    example: str = ""


@dataclass(slots=True)
class _Lane:
    """The changes of one row that have no partner yet, in order."""

    old: deque[Change] = field(default_factory=deque)
    new: deque[Change] = field(default_factory=deque)


class _Recent:
    """Checksums of the last changes that had a partner."""

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._counts: Counter[int] = Counter()

    def __contains__(self, change: Change) -> bool:
        return _checksum(change) in self._counts

    def add(self, change: Change) -> int:
        """Adds a change; returns its checksum."""
        number = _checksum(change)
        self._order.append(number)
        self._counts[number] += 1
        if len(self._order) > _RECENT:
            first = self._order.popleft()
            self._counts[first] -= 1
            if not self._counts[first]:
                del self._counts[first]
        return number


class Comparison:
    """Takes changes of both sides in the order of their topics; see the module."""

    def __init__(self, explain: Explain, alone: Alone) -> None:
        self._explain, self._alone = explain, alone
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._versions: dict[tuple[str, str], int] = {}
        """headrace's number of the last change of each row."""
        self._last: dict[tuple[str, str], int] = {}
        """The checksum of the old system's last change that had a partner, of each row: before the first one the old
        system has changes from before headrace began."""
        self._again: dict[tuple[str, str], list[Change]] = {}
        """Changes that were taken for repeated ones since the row's last pair."""
        self._of_old, self._of_new = _Recent(), _Recent()
        self._findings: dict[tuple[str | None, str, str], Finding] = {}
        self.begin_ms: int | None = None
        """When headrace's first change was committed."""
        self.counts: Counter[str] = Counter()
        """By kind: old, new (changes read), pairs, equal, before, after, again."""
        self.pending = 0
        """Changes that wait for the other side."""
        self.latencies: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
        """How many pairs took this many milliseconds from commit to publication, in the old system and in headrace."""

    @property
    def findings(self) -> list[Finding]:
        """Returns all differences, unexplained ones first."""
        return sorted(self._findings.values(), key=lambda one: (one.rule is not None, -one.count, one.what))

    @property
    def unexplained(self) -> int:
        return sum(one.count for one in self._findings.values() if one.rule is None)

    # -- input ----------------------------------------------------------------------------------------------------

    def begin(self, change: Change) -> None:
        """Records that headrace published this change: the old system's changes before headrace's first one are not
        compared."""
        if change.committed_ms and (self.begin_ms is None or change.committed_ms < self.begin_ms):
            self.begin_ms = change.committed_ms

    def add_old(self, change: Change) -> None:
        """Takes one more change of the old system. Raises TooFarApart."""
        self.counts["old"] += 1
        self._lanes.setdefault(change.lane, _Lane()).old.append(change)
        self._added(change.lane)

    def add_new(self, change: Change) -> None:
        """Takes one more change of headrace. Raises TooFarApart."""
        self.counts["new"] += 1
        if change.version is not None:
            if change.version <= self._versions.get(change.lane, -1):  # after a takeover: its numbers are the same
                self.counts["again"] += 1
                return
            self._versions[change.lane] = change.version
        self.begin(change)
        self._lanes.setdefault(change.lane, _Lane()).new.append(change)
        self._added(change.lane)

    def _added(self, name: tuple[str, str]) -> None:
        self.pending += 1
        if self.pending > PENDING:
            raise TooFarApart
        lane = self._lanes[name]
        self._match(lane, ended=False)
        if not lane.old and not lane.new:
            del self._lanes[name]

    def finish(self, end_ms: int) -> None:
        """Ends the input; changes committed at `end_ms` or later (milliseconds since 1970) without a partner are not
        compared."""
        for lane in self._lanes.values():
            self._match(lane, ended=True)
            while lane.old:
                self._only_old(lane.old.popleft(), end_ms)
            while lane.new:
                self._only_new(lane.new.popleft(), end_ms)
        for name in list(self._again):
            self._check_again(name)

    # -- pairs ----------------------------------------------------------------------------------------------------

    def _match(self, lane: _Lane, *, ended: bool) -> None:
        while lane.old and lane.new:
            if self._is_before(lane.old[0]):
                if not ended and _second(lane.old[-1]) <= _second(lane.new[0]):
                    return  # contents repeat: headrace's first one is known only when all of them are there
                for _ in range(self._begin(lane)):
                    self._only_old(lane.old.popleft(), None)
            # One second apart is normal: Canal uses the time of the statement, and headrace that of the commit.
            if lane.old[0] in self._of_old and _second(lane.old[0]) + 1 < _second(lane.new[0]):
                self._only_old(lane.old.popleft(), None)
                continue
            if (found := self._differences(lane.old[0], lane.new[0])) is not None:
                self._pair(lane, found)
                continue
            of_old = self._partner(lane.old[0], lane.new, old=True)
            of_new = self._partner(lane.new[0], lane.old, old=False)
            if of_new is not None and (of_old is None or of_new <= of_old):
                for _ in range(of_new):
                    self._only_old(lane.old.popleft(), None)
            elif of_old is not None:
                for _ in range(of_old):
                    self._only_new(lane.new.popleft(), None)
            elif lane.old[0] in self._of_old:
                self._only_old(lane.old.popleft(), None)
            elif not ended and min(len(lane.old), len(lane.new)) < _WINDOW:
                return
            elif self._is_before(lane.old[0]) and (
                not ended or len(lane.old) > len(lane.new) or _second(lane.old[0]) != _second(lane.new[0])
            ):
                self._only_old(lane.old.popleft(), None)
            else:
                self._pair(lane, self._differences(lane.old[0], lane.new[0], anyway=True) or [])

    def _begin(self, lane: _Lane) -> int:
        """Returns how many changes of a row are from before headrace began: what follows them is equal to
        headrace's."""
        reached = _second(lane.old[-1])
        wanted = len(lane.old) - sum(_second(one) <= reached for one in lane.new)
        before = sum(1 for _ in takewhile(self._is_before, lane.old))
        found = [n for n in range(min(before + 1, len(lane.old))) if self._goes_on(lane, n)]
        return min(found, key=lambda number: abs(number - wanted), default=0)

    def _goes_on(self, lane: _Lane, begin: int) -> bool:
        pairs = zip(islice(lane.old, begin, begin + _WINDOW), lane.new, strict=False)
        return all(self.same(old, new) for old, new in pairs)

    def _partner(self, one: Change, others: deque[Change], *, old: bool) -> int | None:
        for number, other in enumerate(others):
            if number >= _WINDOW:
                break
            if self._differences(*((one, other) if old else (other, one))) is not None:
                return number
        return None

    def is_theirs(self, old: Change) -> bool:
        """Returns whether a rule says that headrace does not publish such a change."""
        return self._alone(old, False) is not None

    def same(self, old: Change, new: Change) -> bool:
        """Returns whether two changes are equal except for what rules explain."""
        return self._differences(old, new) is not None

    def _differences(
        self, old: Change, new: Change, *, anyway: bool = False
    ) -> list[tuple[str, Any, Any, str | None]] | None:
        """Returns the fields that differ, with both values and the rule. None if some have no rule, unless `anyway`."""
        if old.fields == new.fields and old.kind == new.kind:
            return []
        found = list[tuple[str, Any, Any, str | None]]()
        pairs = [("type", old.kind, new.kind)]
        pairs += [(name, old.fields.get(name, ABSENT), new.fields.get(name, ABSENT)) for name in old.fields]
        pairs += [(name, ABSENT, value) for name, value in new.fields.items() if name not in old.fields]
        for name, theirs, ours in pairs:
            if theirs == ours:
                continue
            rule = self._explain(name, theirs, ours, old, new)
            if rule is None and not anyway:
                return None
            found.append((name, theirs, ours, rule))
        return found

    def _pair(self, lane: _Lane, differences: list[tuple[str, Any, Any, str | None]]) -> None:
        old, new = lane.old.popleft(), lane.new.popleft()
        self.pending -= 2
        self.counts["pairs"] += 1
        self.counts["equal"] += not differences
        if old.lane in self._again:
            self._check_again(old.lane)
        self._last[old.lane] = self._of_old.add(old)
        for name, theirs, ours, rule in differences:
            self._note(rule, name, old, f"{old.key}: {_short(theirs)} by the old system, {_short(ours)} by headrace")
        committed = max(old.committed_ms, new.committed_ms)  # one of them may be in whole seconds
        if committed and old.stored_ms and new.stored_ms:
            for values, stored in zip(self.latencies, (old.stored_ms, new.stored_ms), strict=True):
                values[stored - committed] += 1
        if new.version is None:
            self._of_new.add(new)

    # -- changes of one side --------------------------------------------------------------------------------------

    def _is_before(self, old: Change) -> bool:
        """Returns whether headrace may have begun after it: times of the old system may be in whole seconds."""
        begin = self.begin_ms
        return old.lane not in self._last and (begin is None or _second(old) <= begin // 1000)

    def _only_old(self, old: Change, end_ms: int | None) -> None:
        self.pending -= 1
        if old in self._of_old:
            self._again.setdefault(old.lane, []).append(old)
            self.counts["again"] += 1
        elif self._is_before(old):
            self.counts["before"] += 1
        elif end_ms is not None and old.committed_ms >= end_ms:
            self.counts["after"] += 1
        else:
            self._note(self._alone(old, False), MISSING, old, f"{old.kind} {old.key} {_short(old.fields)}")

    def _check_again(self, name: tuple[str, str]) -> None:
        """Checks repeated changes: a system that goes back sends everything again up to its last change. If that does
        not come, the changes are new ones with contents that the row had before."""
        changes = self._again.pop(name)
        if _checksum(changes[-1]) == self._last.get(name):
            return
        self.counts["again"] -= len(changes)
        for one in changes:
            self._note(self._alone(one, False), MISSING, one, f"{one.kind} {one.key} {_short(one.fields)}")

    def _only_new(self, new: Change, end_ms: int | None) -> None:
        self.pending -= 1
        if new.version is None and new in self._of_new:
            self.counts["again"] += 1
        elif end_ms is not None and new.committed_ms >= end_ms:
            self.counts["after"] += 1
        else:
            self._note(self._alone(new, True), SURPLUS, new, f"{new.kind} {new.key} {_short(new.fields)}")

    def _note(self, rule: str | None, what: str, change: Change, example: str) -> None:
        key = rule, what, change.table
        found = self._findings.get(key)
        if found is None:
            found = self._findings[key] = Finding(rule, what, change.table, example=example)
        found.count += 1


def _second(change: Change) -> int:
    return change.committed_ms // 1000


def _checksum(change: Change) -> int:
    of = [change.table, change.key, change.kind, change.fields, change.committed_ms]  # a tombstone has only these
    return hash(orjson.dumps(of))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= _EXAMPLE else f"{text[:_EXAMPLE]}..."
