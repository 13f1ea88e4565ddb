"""What ended a run by not being there, its source, its sink or its state store: the wait for the next attempt ends once
it is back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable

from headrace.destination.outage import SinkOutage
from headrace.destination.parts import Parts
from headrace.errors import HeadraceError, SinkError, SourceEnded, SourceSilent, SourceUnreachable, StateStoreError
from headrace.ports.source import Source
from headrace.ports.state import StateStore, Stored
from headrace.tasks import Work, first

_LOOK = 1.0
"""Seconds between two looks."""
_LIMIT = 5.0
"""Seconds of a look at the state store: one that comes back may keep those waiting who ask first."""
_LASTED = 60.0
"""Seconds after which a run has lasted, and an outage behind it is a new one."""
_BELIEVED = 2
"""So many returns after which no run has lasted are believed at the first look."""
_MOST_LOOKS = 64
"""Looks in a row, at most, at which it has to be there before it is believed."""
_AWAY = (SourceUnreachable, SourceEnded, SourceSilent)
"""The errors that a source leaves which goes away."""


class Absence:
    """Lives as long as its destination, which says how each run ended."""

    def __init__(self, name: str, parts: Parts, source: Source, outage: SinkOutage) -> None:
        self._name, self._parts, self._source, self._outage = name, parts, source, outage
        self._error: HeadraceError | None = None
        """What ended the last run."""
        self._opened_at = 0.0
        """When that run had opened its source; 0 when it had not."""
        self._in_vain = Counter[str]()
        """How many waits have ended because it could be reached, each of them, since a run has lasted."""

    def begin(self) -> None:
        """A run begins."""
        self._error, self._opened_at = None, 0.0

    def opened(self) -> None:
        """It has opened its source."""
        self._opened_at = time.monotonic()

    def failed(self, error: HeadraceError) -> None:
        """It has ended so."""
        self._error = error
        if self._opened_at and time.monotonic() - self._opened_at >= _LASTED:
            self._in_vain.clear()

    async def over(self) -> str:
        """Returns which of them is back; never when the last run ended for another reason."""
        error = self._error
        # A sink that keeps the position is away as a store too.
        if error is not None and error.retriable and (isinstance(error, SinkError) or error.reason == SinkError.reason):
            sink = self._parts.probe_sink()

            async def sink_away() -> bool:
                if problem := await sink.problem():
                    self._outage.goes_on(problem)
                return bool(problem)

            return await self._back("sink", sink_away, seen=False)
        if isinstance(error, StateStoreError) and error.retriable:

            async def store_away() -> bool:
                return await look_at(self._parts.store, self._name) is None

            return await self._back("state store", store_away, seen=True)
        if isinstance(error, _AWAY):
            unreachable = isinstance(error, SourceUnreachable) or isinstance(error.__cause__, SourceUnreachable)

            async def source_away() -> bool:
                began = time.monotonic()
                reachable = await self._source.reachable()
                if not reachable:  # a server that hangs counts logins that came to nothing, and then locks us out
                    await asyncio.sleep(time.monotonic() - began)
                return not reachable

            return await self._back("source", source_away, seen=unreachable)
        await asyncio.Event().wait()
        raise AssertionError

    async def _back(self, what: str, away: Callable[[], Work], *, seen: bool) -> str:
        """Returns once that which was away is not, and says so; `seen`: the failure itself has seen it away, however
        short that was.

        What can be reached and fails again at once is not tried each second: for the next time it counts what the looks
        see. What comes and goes is believed the later the more often that was in vain.
        """
        vain = self._in_vain[what]
        seen = seen and not vain
        needed, there = min(_MOST_LOOKS, 2 ** max(0, vain - _BELIEVED + 1)), 0
        while True:
            if (await first({"look": away()}))["look"]:  # a task of its own, as in look_at()
                seen, there = True, 0
            elif seen:
                there += 1
                if there >= needed:
                    self._in_vain[what] += 1
                    return f"the {what} is back"
            await asyncio.sleep(_LOOK)


async def look_at(store: StateStore, name: str) -> Stored | None:
    """What is stored; None when the store does not say so in time.

    In a task of its own: a client library that swallows its cancellation, as aiokafka does while it closes a consumer,
    would let whoever looks again and again go on for ever.
    """
    with contextlib.suppress(StateStoreError):
        found: Stored | None = (await first({"load": store.load(name)}, limit=_LIMIT)).get("load")
        return found
    return None
