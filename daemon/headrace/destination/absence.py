"""Ends the wait for the next attempt as soon as the source, sink or state store whose absence ended the run is back."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable

from headrace import runtime
from headrace.destination.dependencies import Dependencies
from headrace.destination.outage import SinkOutage
from headrace.errors import HeadraceError, SinkError, SourceEnded, SourceSilent, SourceUnreachable, StateStoreError
from headrace.ports.source import Source
from headrace.ports.state import StateStore, Stored
from headrace.tasks import Work, first

_POLL = 1.0
"""Seconds between two checks."""
_LIMIT = 5.0
"""Maximum seconds for a check of the state store: one that comes back may answer the first requests slowly."""
_LASTED = 60.0
"""Seconds after which a run counts as successful, and a later outage as a new one."""
_BELIEVED = 2
"""The first successful check is believed for this many returns that no successful run has followed."""
_MOST_CHECKS = 64
"""Maximum number of successful checks in a row that are required before a return is believed."""
_AWAY = (SourceUnreachable, SourceEnded, SourceSilent)
"""The errors by which a source becomes unavailable."""


class Absence:
    """The absence of a destination's source, sink or state store. Lives as long as its destination, which reports how
    each run ended."""

    def __init__(self, name: str, dependencies: Dependencies, source: Source, outage: SinkOutage) -> None:
        self._name, self._dependencies, self._source, self._outage = name, dependencies, source, outage
        self._error: HeadraceError | None = None
        """The error that ended the last run."""
        self._opened_at = 0.0
        """When that run had opened its source; 0 if it had not."""
        self._in_vain = Counter[str]()
        """How many waits have ended because it could be reached, by what was absent, since the last successful run."""

    def begin(self) -> None:
        """Records the begin of a run."""
        self._error, self._opened_at = None, 0.0

    def opened(self) -> None:
        """Records that the run has opened its source."""
        self._opened_at = runtime.monotonic()

    def failed(self, error: HeadraceError) -> None:
        """Records the error that ended the run."""
        self._error = error
        if self._opened_at and runtime.monotonic() - self._opened_at >= _LASTED:
            self._in_vain.clear()

    async def over(self) -> str:
        """Waits until the absent one is back, and returns a sentence that names it. Never returns if the last run ended
        for another reason."""
        error = self._error
        # A sink that keeps the position is absent as a store too.
        if error is not None and error.retriable and (isinstance(error, SinkError) or error.reason == SinkError.reason):
            sink = self._dependencies.probe_sink()

            async def sink_away() -> bool:
                if problem := await sink.problem():
                    self._outage.goes_on(problem)
                return bool(problem)

            return await self._back("sink", sink_away, seen=False)
        if isinstance(error, StateStoreError) and error.retriable:

            async def store_away() -> bool:
                return await try_load(self._dependencies.store, self._name) is None

            return await self._back("state store", store_away, seen=True)
        if isinstance(error, _AWAY):
            unreachable = isinstance(error, SourceUnreachable) or isinstance(error.__cause__, SourceUnreachable)

            async def source_away() -> bool:
                began = runtime.monotonic()
                reachable = await self._source.reachable()
                if not reachable:  # a server that hangs counts failed logins, and then locks us out
                    await asyncio.sleep(runtime.monotonic() - began)
                return not reachable

            return await self._back("source", source_away, seen=unreachable)
        await asyncio.Event().wait()
        raise AssertionError

    async def _back(self, what: str, away: Callable[[], Work], *, seen: bool) -> str:
        """Waits until the absent one is back, and returns its name. `seen`: the failure itself has seen it absent, even
        if only for a moment.

        If it can be reached and fails again at once, it is not retried each second: the next time, only the checks
        count. The more often its return did not last, the longer it must be reachable before it is believed."""
        vain = self._in_vain[what]
        seen = seen and not vain
        needed, there = min(_MOST_CHECKS, 2 ** max(0, vain - _BELIEVED + 1)), 0
        while True:
            if (await first({"check": away()}))["check"]:  # a task of its own, as in try_load()
                seen, there = True, 0
            elif seen:
                there += 1
                if there >= needed:
                    self._in_vain[what] += 1
                    return f"the {what} is back"
            await asyncio.sleep(_POLL)


async def try_load(store: StateStore, name: str) -> Stored | None:
    """Returns what is stored; None if the store does not answer in time.

    Runs in a task of its own: a client library that swallows its cancellation, as aiokafka does while it closes a
    consumer, would otherwise never let a repeated check end."""
    with contextlib.suppress(StateStoreError):
        found: Stored | None = (await first({"load": store.load(name)}, limit=_LIMIT)).get("load")
        return found
    return None
