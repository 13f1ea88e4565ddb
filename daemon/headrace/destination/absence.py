"""What ended a run by not being there, its source, its sink or its state store: the wait for the next attempt ends once
it is back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from headrace.destination.outage import SinkOutage
from headrace.destination.parts import Parts
from headrace.errors import HeadraceError, SinkError, SourceEnded, SourceSilent, SourceUnreachable, StateStoreError
from headrace.ports.source import Source

_LOOK = 1.0
"""Seconds between two looks; a look that takes longer is followed by a pause as long as itself."""
_AWAY = (SourceUnreachable, SourceEnded, SourceSilent)
"""The errors that a source leaves which goes away."""


class Absence:
    """Lives as long as its destination, which says how each run ended."""

    def __init__(self, name: str, parts: Parts, source: Source, outage: SinkOutage) -> None:
        self._name, self._parts, self._source, self._outage = name, parts, source, outage
        self.error: HeadraceError | None = None
        """What ended the last run."""
        self._in_vain = False
        """Whether a wait has ended because the source could be reached, and it has not been opened since."""

    def opened(self) -> None:
        """The source could be opened."""
        self._in_vain = False

    async def over(self) -> str:
        """Returns which of them is back; never when the last run ended for another reason."""
        error = self.error
        if isinstance(error, SinkError) and error.retriable:
            sink = self._parts.probe_sink()

            async def sink_away() -> bool:
                if problem := await sink.problem():
                    self._outage.goes_on(problem)
                return bool(problem)

            await _back(sink_away, seen=False)
            return "the sink is back"
        if isinstance(error, StateStoreError) and error.retriable:

            async def store_away() -> bool:
                try:
                    await self._parts.store.load(self._name)
                except StateStoreError:
                    return True
                return False

            await _back(store_away, seen=False)
            return "the state store is back"
        if isinstance(error, _AWAY):
            # The failure itself has seen it away, however short that was. A server that can be reached and not be
            # opened is not tried each second: for the next time it counts what the looks see.
            unreachable = isinstance(error, SourceUnreachable) or isinstance(error.__cause__, SourceUnreachable)

            async def source_away() -> bool:
                return not await self._source.reachable()

            await _back(source_away, seen=unreachable and not self._in_vain)
            self._in_vain = True
            return "the source is back"
        await asyncio.Event().wait()
        raise AssertionError


async def _back(away: Callable[[], Awaitable[bool]], *, seen: bool) -> None:
    """Returns once that which was away is not; `seen`: it was so before the first look."""
    while True:
        began = time.monotonic()
        if await away():
            seen = True
        elif seen:
            return
        await asyncio.sleep(max(_LOOK, time.monotonic() - began))
