"""Ranges of keys: which rows of the source belong together, and the result for each."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

from headrace.ports.tables import Key
from headrace.verify.hashes import GONE, INCOMPLETE
from headrace.verify.pending import Pending
from headrace.verify.result import SHOWN, RangeFound


class Ranges:
    """The rows of a table in the order of its key, `size` in a range. The bounds of each range are kept, and nothing of
    a row."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._bounds: list[tuple[bytes, bytes]] = []
        """Keys of the first and the last row of each range."""
        self._raw_bounds: list[tuple[Key | None, Key | None]] = []
        self._counts = array("Q")

    def note(self, key: bytes, raw: Key | None) -> int:
        """Takes the next row; returns the number of its range."""
        if not self._counts or self._counts[-1] >= self._size:
            self.note_alone(key, raw)
            return len(self._counts) - 1
        self._counts[-1] += 1
        self._bounds[-1] = self._bounds[-1][0], key
        self._raw_bounds[-1] = self._raw_bounds[-1][0], raw
        return len(self._counts) - 1

    def note_alone(self, key: bytes, raw: Key | None) -> None:
        """Adds a range of one row."""
        self._counts.append(1)
        self._bounds.append((key, key))
        self._raw_bounds.append((raw, raw))

    def found(
        self, lost: Iterable[tuple[bytes, Pending]], between: Callable[[Key, Key], str] | None
    ) -> list[RangeFound]:
        """Returns the ranges of these rows. `between` writes a condition; None: none may be shown."""
        by_range: dict[int, list[tuple[bytes, Pending]]] = {}
        for key, one in lost:
            if one.range < 0:  # it was inserted after the first pass, where it has no index yet
                one.range = len(self._counts)
                self.note_alone(key, one.raw)
            by_range.setdefault(one.range, []).append((key, one))
        return [self._found(number, by_range[number], between) for number in sorted(by_range)]

    def _found(
        self, number: int, lost: list[tuple[bytes, Pending]], between: Callable[[Key, Key], str] | None
    ) -> RangeFound:
        first, last = self._bounds[number]
        lost.sort(key=lambda pair: pair[1].number)
        made = RangeFound(text(first), text(last), self._counts[number], keys=[text(key) for key, _ in lost[:SHOWN]])
        for _, one in lost:
            if one.held == GONE:
                made.missing += 1
            elif one.held == INCOMPLETE:
                made.incomplete += 1
            else:
                made.different += 1
        low, high = lost[0][1].raw, lost[-1][1].raw
        if low is None or high is None:
            low, high = self._raw_bounds[number]
        if between is not None and low is not None and high is not None:
            made.where = between(low, high)
        return made


def text(key: bytes) -> str:
    """Returns a key for people and JSON."""
    return key.decode("utf-8", "replace")
