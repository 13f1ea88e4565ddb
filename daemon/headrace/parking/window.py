"""What a sink has in flight: the batches that are not confirmed, and which message each of the broker's tags means."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.model import MessageBatch, Unit
from headrace.ports.sink import MessageRefused
from headrace.tasks import settle

UNSENT, SENT, DONE, HELD, PARKED = range(5)
"""What became of a message. HELD: it waits to be sent again, or behind one that does."""
_SLICE = 200
"""Messages handed over without a look at the lease and at what was refused meanwhile."""
_ALL = Unit(())
"""Of messages that nobody told apart: each waits for all before it."""


@dataclass(slots=True, eq=False)
class Entry:
    """A batch between publish() and its confirmation; or, `alone`, one of resend()."""

    batch: MessageBatch
    done: asyncio.Future[None]
    alone: bool = False
    states: bytearray = field(init=False)
    left: int = field(init=False)
    """Messages that are not through: neither confirmed nor parked."""
    tags: dict[int, int] = field(default_factory=dict)
    """By message: the tag whose answer counts, where that is not its first; 0: none."""

    def __post_init__(self) -> None:
        self.left = len(self.batch.values)
        self.states = bytearray(self.left)

    def unit(self, index: int) -> Unit:
        """What one message is about."""
        units = self.batch.units
        return units[index] if units is not None else _ALL

    def name(self, index: int) -> str:
        """One message's id, for people."""
        headers = self.batch.headers[index]
        return headers[0][1].decode("utf-8", "replace") if headers else "without an id"

    def size(self, index: int) -> int:
        """What one message counts in the limit of bytes."""
        return len(self.batch.values[index] or b"")

    def hold(self, index: int) -> None:
        """Whatever is answered to the sendings of a message so far does not count any more."""
        self.left += self.states[index] == DONE
        self.states[index], self.tags[index] = HELD, 0

    def park(self, index: int) -> None:
        """A held message is parked."""
        self.states[index] = PARKED
        self.left -= 1


@dataclass(slots=True, eq=False)
class Run:
    """Messages of one batch that were handed over one after the other, under tags from `first` on."""

    first: int
    indexes: Sequence[int]
    entry: Entry
    sent_at: float
    """On the loop's clock."""
    again: bool
    """Whether they had been sent or held back before."""
    left: int
    open: bytearray
    """A byte a message: 1 until the broker has answered."""


Refusals = dict[tuple[Entry, int], str]
"""Messages that the broker refused, under a tag that counted, and why."""


class Window:
    """Numbers what is handed over with tags, from 1 on, and keeps it until it is answered; batches until all of them
    is through, in order. Nothing in here waits."""

    def __init__(self, limit: int, byte_limit: int) -> None:
        self._limit, self._byte_limit = limit, byte_limit
        self.entries: deque[Entry] = deque()
        """What publish() was given and is not confirmed."""
        self.runs: deque[Run] = deque()
        """What is not answered, in the order of tags."""
        self.next_tag = 1
        self.messages = self.bytes = 0
        """In flight: handed over and not answered."""

    def takes(self, count: int, size: int) -> bool:
        """Whether so many messages and bytes more may be in flight; one message always may alone."""
        if self.messages + count <= self._limit and self.bytes + size <= self._byte_limit:
            return True
        return not self.messages and count == 1

    def fitting(self, batch: MessageBatch, at: int) -> int:
        """Where the messages from `at` on end that may be handed over now; `at` when there is room for none."""
        size, values = self.bytes, batch.values
        end = max(at, min(len(values), at + _SLICE, at + self._limit - self.messages))
        for index in range(at, end):
            size += len(values[index] or b"")
            if size > self._byte_limit and (index > at or self.messages):
                return index
        return end

    def sent(self, entry: Entry, indexes: Sequence[int], now: float, *, again: bool = False) -> int:
        """Messages are about to be handed over, in this order; the tag of the first."""
        first, count = self.next_tag, len(indexes)
        self.next_tag += count
        self.runs.append(Run(first, indexes, entry, now, again, count, bytearray(b"\1") * count))
        self.messages += count
        for tag, index in enumerate(indexes, first):
            entry.states[index] = SENT
            self.bytes += entry.size(index)
            if again:
                entry.tags[index] = tag
        return first

    def settle(self, low: int, high: int, reason: str, refused: Refusals) -> list[Run]:
        """The broker's answer to the tags from `low` to `high`: confirmed or, with a reason, refused. What was refused
        and has to be dealt with is added to `refused`. The runs that were answered, or a part of them."""
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
        for at in range(begin, end):
            if not run.open[at]:
                continue
            run.open[at] = 0
            run.left -= 1
            index = run.indexes[at]
            self.messages -= 1
            self.bytes -= entry.size(index)
            if tags and tags.get(index, run.first + at) != run.first + at:
                continue  # it is sent again, whatever became of this sending
            if entry.alone:
                settle(entry.done, MessageRefused(reason) if reason else None)
            elif reason:
                refused[entry, index] = reason
            else:
                states[index] = DONE
                entry.left -= 1

    def find(self, id_: bytes, after: int) -> int:
        """The first tag beyond `after` that is not answered and stands for the message with this id, or the end of
        one; 0 when there is none."""
        for run in self.runs:
            for tag in range(max(run.first, after + 1), run.first + len(run.indexes)):
                at = tag - run.first
                if run.open[at] and run.entry.batch.headers[run.indexes[at]][0][1].endswith(id_):
                    return tag
        return 0

    def advance(self) -> None:
        """Confirms batches, in order: as long as one is not through, messages behind it may have to be sent again."""
        while self.entries and not self.entries[0].left:
            settle(self.entries.popleft().done)

    def answered(self, tag: int) -> bool:
        """Whether all is answered that was handed over before this tag."""
        return not self.runs or self.runs[0].first >= tag

    def fail(self, error: Exception) -> None:
        """Nothing that is not confirmed will be."""
        for done in self._waiting():
            settle(done, error)

    def cancel(self) -> None:
        """Nobody waits for a confirmation any more."""
        for done in self._waiting():
            done.cancel()

    def _waiting(self) -> list[asyncio.Future[None]]:
        return [entry.done for entry in self.entries] + [run.entry.done for run in self.runs]
