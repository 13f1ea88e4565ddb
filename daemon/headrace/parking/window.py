"""What a sink has in flight: the unconfirmed batches, and the message of each of the broker's tags."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from headrace.model import MessageBatch, Unit
from headrace.ports.sink import MessageRefused
from headrace.tasks import settle

UNSENT, SENT, DONE, HELD, PARKED = range(5)
"""The state of a message. HELD: it waits to be sent again, or for one that does."""
_SENT_BYTE, _DONE_BYTE = bytes((SENT,)), bytes((DONE,))
_SLICE = 200
"""Messages handed over between two checks of the lease and of refused messages."""
_ALL = Unit(())
"""For messages that can't be distinguished: each waits for all before it."""


@dataclass(slots=True, eq=False)
class Entry:
    """A batch between publish() and its confirmation; or, `alone`, one of resend()."""

    batch: MessageBatch
    done: asyncio.Future[None]
    alone: bool = False
    sizes: list[int] = field(init=False)
    """Bytes of each message, as they count in the limit."""
    states: bytearray = field(init=False)
    left: int = field(init=False)
    """Messages that are neither confirmed nor parked."""
    tags: dict[int, int] = field(default_factory=dict)
    """By message: the tag whose answer counts, if that is not its first; 0: none."""

    def __post_init__(self) -> None:
        self.sizes = self.batch.sizes
        self.left = len(self.sizes)
        self.states = bytearray(self.left)

    def unit(self, index: int) -> Unit:
        """Returns what one message is about."""
        units = self.batch.units
        return units[index] if units is not None else _ALL

    def name(self, index: int) -> str:
        """Returns one message's id, for people."""
        headers = self.batch.headers[index]
        return headers[0][1].decode("utf-8", "replace") if headers else "without an id"

    def hold(self, index: int) -> None:
        """Ignores all answers to the sends of a message so far."""
        self.left += self.states[index] == DONE
        self.states[index], self.tags[index] = HELD, 0

    def park(self, index: int) -> None:
        """Marks a held message as parked."""
        self.states[index] = PARKED
        self.left -= 1


@dataclass(slots=True, eq=False)
class Run:
    """Messages of one batch that were handed over consecutively, under tags from `first` on."""

    first: int
    indexes: Sequence[int]
    entry: Entry
    sent_at: float
    """On the monotonic clock."""
    again: bool
    """Whether they had been sent or held back before."""
    left: int
    open: bytearray
    """One byte for each message: 1 until the broker has answered."""


Refusals = dict[tuple[Entry, int], str]
"""Messages that the broker refused, under a valid tag, and why."""


class Window:
    """Numbers what is handed over with tags, from 1 on, and keeps it until it is answered; keeps batches, in order,
    until all of their messages are confirmed or parked. Nothing here waits."""

    def __init__(self, limit: int, byte_limit: int) -> None:
        self._limit, self._byte_limit = limit, byte_limit
        self.entries: deque[Entry] = deque()
        """Batches given to publish() and not confirmed."""
        self.runs: deque[Run] = deque()
        """Unanswered ones, in the order of tags."""
        self.next_tag = 1
        self.messages = self.bytes = 0
        """In flight: handed over and not answered."""

    def takes(self, count: int, size: int) -> bool:
        """Returns whether this many more messages and bytes may be in flight; a single message always may."""
        if self.messages + count <= self._limit and self.bytes + size <= self._byte_limit:
            return True
        return not self.messages and count == 1

    def fitting(self, entry: Entry, at: int) -> int:
        """Returns where the messages from `at` on end that may be handed over now; `at` if none may."""
        sizes = entry.sizes
        end = max(at, min(len(sizes), at + _SLICE, at + self._limit - self.messages))
        for index, size in enumerate(accumulate(sizes[at:end], initial=self.bytes), at - 1):
            if size > self._byte_limit and (index > at or (index == at and self.messages)):
                return index
        return end

    def sent(self, entry: Entry, indexes: Sequence[int], now: float, *, again: bool = False) -> int:
        """Records messages that are about to be handed over, in this order; returns the tag of the first."""
        first, count = self.next_tag, len(indexes)
        self.next_tag += count
        self.runs.append(Run(first, indexes, entry, now, again, count, bytearray(b"\1") * count))
        self.messages += count
        if type(indexes) is range and not again:
            entry.states[indexes.start : indexes.stop] = _SENT_BYTE * count
            self.bytes += sum(entry.sizes[indexes.start : indexes.stop])
            return first
        for tag, index in enumerate(indexes, first):
            entry.states[index] = SENT
            self.bytes += entry.sizes[index]
            if again:
                entry.tags[index] = tag
        return first

    def settle(self, low: int, high: int, reason: str, refused: Refusals) -> list[Run]:
        """Handles the broker's answer to the tags from `low` to `high`: confirmed or, with a reason, refused. Adds
        refused messages that must be handled to `refused`. Returns the runs that were answered, completely or in
        part."""
        touched = []
        at = max(0, bisect_right(self.runs, low, key=lambda run: run.first) - 1)
        while at < len(self.runs) and (run := self.runs[at]).first <= high:
            if run.left and run.first + len(run.indexes) > low:
                self._settle(run, max(low - run.first, 0), min(high - run.first + 1, len(run.indexes)), reason, refused)
                touched.append(run)
            at += 1
        while self.runs and not self.runs[0].left:
            self.runs.popleft()
        return touched

    def _settle(self, run: Run, begin: int, end: int, reason: str, refused: Refusals) -> None:
        entry, states, tags = run.entry, run.entry.states, run.entry.tags
        count = end - begin
        if (
            type(run.indexes) is range
            and not (reason or tags or entry.alone)
            and run.open.count(1, begin, end) == count
        ):
            low, high = run.indexes.start + begin, run.indexes.start + end
            run.open[begin:end] = bytes(count)
            states[low:high] = _DONE_BYTE * count
            self.bytes -= sum(entry.sizes[low:high])
            run.left, self.messages, entry.left = run.left - count, self.messages - count, entry.left - count
            return
        for at in range(begin, end):
            if not run.open[at]:
                continue
            run.open[at] = 0
            run.left -= 1
            index = run.indexes[at]
            self.messages -= 1
            self.bytes -= entry.sizes[index]
            if tags and tags.get(index, run.first + at) != run.first + at:
                continue  # it is sent again, whatever the result of this send is
            if entry.alone:
                settle(entry.done, MessageRefused(reason) if reason else None)
            elif reason:
                refused[entry, index] = reason
            else:
                states[index] = DONE
                entry.left -= 1

    def find(self, id_: bytes, after: int) -> int:
        """Returns the first unanswered tag above `after` for the message with this id, or the end of one; 0 if there is
        none."""
        for run in self.runs:
            for tag in range(max(run.first, after + 1), run.first + len(run.indexes)):
                at = tag - run.first
                if run.open[at] and run.entry.batch.headers[run.indexes[at]][0][1].endswith(id_):
                    return tag
        return 0

    def advance(self) -> None:
        """Confirms batches, in order: while one is incomplete, messages after it may have to be sent again."""
        while self.entries and not self.entries[0].left:
            settle(self.entries.popleft().done)

    def answered(self, tag: int) -> bool:
        """Returns whether all that was handed over before this tag is answered."""
        return not self.runs or self.runs[0].first >= tag

    def fail(self, error: Exception) -> None:
        """Fails all unconfirmed batches."""
        for done in self._waiting():
            settle(done, error)

    def cancel(self) -> None:
        """Cancels all confirmations: nobody waits for them any more."""
        for done in self._waiting():
            done.cancel()

    def _waiting(self) -> list[asyncio.Future[None]]:
        return [entry.done for entry in self.entries] + [run.entry.done for run in self.runs]
