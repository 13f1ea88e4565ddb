"""Reads the topics of both systems over a period of live traffic, in parallel, and compares them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from headrace import runtime
from headrace.errors import NotUnderstood, Refusal
from headrace.moving.shadow.changes import Change, TopicReader
from headrace.moving.shadow.comparison import PENDING, Comparison, TooFarApart
from headrace.ports.replay import Published, Replay

OpenTopic = Callable[[str, int], Replay]
"""Opens a topic, for what was published since a time in milliseconds since 1970; 0: for all of it."""
_PAUSE = 0.5
"""Seconds between two checks for new messages."""
_EARLIER_MS = 60_000
"""The old system's messages are read from this long before headrace's first change: its clock may differ."""


@dataclass(slots=True)
class _Side:
    """One topic of one system."""

    topic: str
    ours: bool
    replay: Replay
    name: str
    """The old system's topic, which identifies both sides of a pair."""
    read: TopicReader
    reached_ms: int = 0
    """Commit time of the last change that was read."""


class Stretch:
    """Compares pairs of topics (the old system's, headrace's) with each other."""

    def __init__(
        self,
        pairs: Sequence[tuple[str, str]],
        open_topic: OpenTopic,
        read: Callable[[Published, bool], Iterable[Change]],
        comparison: Comparison,
    ) -> None:
        self._open, self._read_message, self._comparison = open_topic, read, comparison
        self._ours = [self._side(ours, True, old, 0) for old, ours in pairs]
        self._theirs: list[_Side] = []
        """Empty until headrace has published something: its first change determines from when on they are read."""

    async def follow(self, now_ms: Callable[[], Awaitable[int]], duration: float, settle: float) -> None:
        """Compares all that headrace's topics have, and what is published within `duration` seconds more; `settle`
        seconds are left for both systems to publish what was committed before. `now_ms` is the source's clock. Raises
        Refusal and SinkError."""
        deadline = runtime.monotonic() + duration
        while True:
            await self._catch_up()
            if (left := deadline - runtime.monotonic()) <= 0:
                break
            await asyncio.sleep(min(_PAUSE, left))
        end_ms = await now_ms()
        await asyncio.sleep(settle)
        await self._catch_up()
        self._comparison.finish(end_ms)

    async def close(self) -> None:
        """Closes all topics. Safe to call twice."""
        for side in (*self._ours, *self._theirs):
            await side.replay.close()

    def _side(self, topic: str, ours: bool, name: str, since_ms: int) -> _Side:
        read = TopicReader(lambda message: self._read_message(message, ours), name)
        return _Side(topic, ours, self._open(topic, since_ms), name, read)

    async def _catch_up(self) -> None:
        """Reads up to the present ends of all topics."""
        if not self._theirs:
            if (begin := await self._begin()) is None:
                return
            since = max(1, begin - _EARLIER_MS)
            self._theirs = [self._side(side.name, False, side.name, since) for side in self._ours]
        await self._read([*self._ours, *self._theirs])

    async def _begin(self) -> int | None:
        """Returns when headrace's first change was committed, in milliseconds since 1970. Its topics are read for that
        alone: kept in memory until the old system's are open, they could be too much."""
        for one in self._ours:
            side = self._side(one.topic, True, one.name, 0)
            try:
                async for block in side.replay.read():
                    for message in block:
                        for change in _changes_of(side, message):
                            self._comparison.begin(change)
            finally:
                await side.replay.close()
        return self._comparison.begin_ms

    async def _read(self, sides: Sequence[_Side]) -> None:
        """Reads a block at a time from the topic that is furthest behind, so that few changes wait for their
        partner."""
        blocks: dict[int, AsyncIterator[Sequence[Published]]] = {n: one.replay.read() for n, one in enumerate(sides)}
        while blocks:
            number = min(blocks, key=lambda n: sides[n].reached_ms)
            block = await anext(blocks[number], None)
            if block is None:
                del blocks[number]
                continue
            try:
                for message in block:
                    self._take(sides[number], message)
            except TooFarApart:
                raise Refusal(
                    f"more than {PENDING:,} changes of one system wait for the other's: {sides[number].topic} is far "
                    "ahead",
                    remedy="compare again when both are near the end of the binlog",
                ) from None

    def _take(self, side: _Side, message: Published) -> None:
        for change in _changes_of(side, message):
            side.reached_ms = max(side.reached_ms, change.committed_ms)
            (self._comparison.add_new if side.ours else self._comparison.add_old)(change)


def _changes_of(side: _Side, message: Published) -> Iterator[Change]:
    try:
        for change in side.read(message):
            change.fields["topic"] = side.name  # rows are paired whatever their topic
            yield change
    except NotUnderstood as error:
        raise NotUnderstood(f"the topic {side.topic}: {error.args[0]}", remedy=error.remedy) from error
