"""A daemon that waits for a destination's lock: warm, so that it takes over within a second, and seen to be fit."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.adapters.registry import make_sink
from headrace.cli.wiring import plan_of
from headrace.destination.status import DestinationStatus
from headrace.errors import HeadraceError
from headrace.lease import Floor, Lease
from headrace.model import State
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.ports.lock import Lock
from headrace.ports.state import StateStore
from headrace.settings.destination import DestinationSettings, SourceSettings

_LOOK = 30.0
"""Seconds between two looks at source, sink and store."""
_LIMIT = 20.0
"""Seconds that one look may take."""


class Standby:
    """One wait for the lock."""

    def __init__(
        self,
        settings: DestinationSettings,
        source: SourceSettings,
        store: StateStore,
        lock: Lock,
        status: DestinationStatus,
        log: Any,
    ) -> None:
        self._settings, self._source, self._store = settings, source, store
        self._lock, self._status, self._log = lock, status, log

    async def wait(self, floor: Floor, stop: asyncio.Event) -> bool:
        """Until the lock is ours; False when told to stop before. Raises LockServiceError or StateStoreError."""
        name = self._settings.name
        self._log.info("standing by", holder=self._lock.holder)
        acquiring = asyncio.create_task(self._lock.acquire(floor), name=f"{name}: lock")
        stopping = asyncio.create_task(stop.wait(), name=f"{name}: stop")
        looking = asyncio.create_task(self._look(), name=f"{name}: standby")
        telling = asyncio.create_task(self._tell(), name=f"{name}: holder")
        tasks = (acquiring, stopping, looking, telling)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if looking.done():
                looking.result()
            if telling.done():
                telling.result()
            if acquiring.done():
                acquiring.result()
                return not stop.is_set()
            return False
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _tell(self) -> None:
        """Keeps who runs the destination up to date."""
        while True:
            self._status.holder = self._lock.holder
            problems = self._status.standby_problems
            message = f"run by {self._lock.holder or 'nobody'}"
            if declined := self._lock.declined:
                message += f"; {declined}"
            if problems:
                message += f"; we could not take over: {'; '.join(problems)}"
            self._status.enter(State.STANDBY, "lock", message)
            await asyncio.sleep(0.5)

    async def _look(self) -> None:
        """Tells the others, and the health page, whether we could take over."""
        while True:
            try:
                async with asyncio.timeout(_LIMIT):
                    problems = await self._problems()
            except TimeoutError:
                problems = [f"source, sink and state store were not looked through within {_LIMIT:g} s"]
            except Exception as error:  # a look that fails must not end the wait
                self._log.exception("unexpected error while standing by")
                problems = [f"an unexpected error, {type(error).__name__}: {error}"]
            if problems and problems != self._status.standby_problems:
                self._log.warning("standing by, and could not take over", problems=problems)
            self._status.standby_problems = problems
            await self._lock.set_ready(not problems)
            await asyncio.sleep(_LOOK)

    async def _problems(self) -> list[str]:
        problems: list[str] = []
        try:
            connection = await SourceConnection.open(address_of(self._source))
            await connection.close()
        except HeadraceError as error:
            problems.append(str(error))
        # A plain sink also where transactions are used: a transactional producer would fence the active one.
        problems += await make_sink(self._settings.sink, Lease(), plan=plan_of(self._settings)).check()
        try:
            await self._store.load(self._settings.name)
        except HeadraceError as error:
            problems.append(str(error))
        return problems
