"""Waits for a destination's lock: warm, so that it takes over within a second, and checked for readiness."""

from __future__ import annotations

import asyncio

from headrace.destination.dependencies import Context, Dependencies
from headrace.errors import HeadraceError, SinkError, guided, named
from headrace.lease import KnownEpoch
from headrace.model import State
from headrace.ports.finding import Level
from headrace.ports.source import Source
from headrace.tasks import first

_POLL = 30.0
"""Seconds between two checks of source, sink and store."""
_LIMIT = 20.0
"""Maximum seconds of one check."""


class Standby:
    """One wait for the lock."""

    def __init__(self, context: Context, dependencies: Dependencies, source: Source) -> None:
        self._name, self._status, self._log = context.name, context.status, context.log
        self._dependencies, self._source, self._lock = dependencies, source, dependencies.lock

    async def wait(self, known_epoch: KnownEpoch, stop: asyncio.Event) -> bool:
        """Waits until the lock is ours; returns False if `stop` came first. Raises LockServiceError or
        StateStoreError."""
        self._log.info("standing by", holder=self._lock.holder)
        ended = await first(
            {
                "standby": self._check(),
                "holder": self._report(),
                "lock": self._lock.acquire(known_epoch),
                "stop": stop.wait(),
            }
        )
        return "lock" in ended and not stop.is_set()

    async def _report(self) -> None:
        """Keeps the name of the holder up to date."""
        while True:
            self._status.holding.wait(self._lock.holder)
            problems = self._status.holding.problems
            message = f"run by {self._lock.holder or 'nobody'}"
            if declined := self._lock.declined:
                message += f"; {declined}"
            if problems:
                message += f"; we could not take over: {'; '.join(problems)}"
            self._status.enter(State.STANDBY, "lock", message)
            await asyncio.sleep(0.5)

    async def _check(self) -> None:
        """Reports to the other daemons, and on the health page, whether we could take over."""
        while True:
            try:
                async with asyncio.timeout(_LIMIT):
                    problems = await self._problems()
            except TimeoutError:
                problems = [f"source, sink and state store were not checked within {_LIMIT:g} s"]
            except Exception as error:  # a check that fails must not end the wait
                self._log.exception("unexpected error while standing by")
                problems = [f"an unexpected error, {type(error).__name__}: {error}"]
            if problems and problems != self._status.holding.problems:
                self._log.warning("standing by, and could not take over", problems=problems)
            self._status.holding.find(problems)
            await self._lock.set_ready(not problems)
            await asyncio.sleep(_POLL)

    async def _problems(self) -> list[str]:
        problems: list[str] = []
        try:
            await self._source.check()
        except HeadraceError as error:
            problems.append(error.operator_text(self._name))
        found = await self._dependencies.probe_sink().check()
        problems += [guided(named(str(one), self._name), SinkError.reason) for one in found if one.level is Level.WRONG]
        try:
            await self._dependencies.store.load(self._name)
        except HeadraceError as error:
            problems.append(error.operator_text(self._name))
        return problems
