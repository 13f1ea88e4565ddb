"""Warns if two addresses of a source accept writes independently: only the changes of one are published."""

from __future__ import annotations

import asyncio

from headrace import runtime
from headrace.destination.dependencies import Context
from headrace.model import State
from headrace.ports.source import Source

_TROUBLE = "two_sources"
_EACH = 15.0
"""Seconds between two checks; each run also begins with one."""


class SeveralSources:
    """Checks also while nothing streams: an old primary that starts again would otherwise be read without notice."""

    def __init__(self, context: Context, source: Source) -> None:
        self._status, self._log, self._source = context.status, context.log, source

    async def run(self) -> None:
        """Checks until it is cancelled."""
        checked, epoch = 0.0, 0
        while True:
            await asyncio.sleep(1.0)
            status, now = self._status, runtime.monotonic()
            if status.stored.position is None or status.state is State.STANDBY:
                continue
            if now - checked > _EACH or status.holding.epoch != epoch:
                checked, epoch = now, status.holding.epoch
                self._report(await self._source.several(lambda: self._status.stored.position))

    def _report(self, found: str) -> None:
        if not found:
            if self._status.clear(_TROUBLE):
                self._log.info("the addresses of the source do not contradict each other any more")
            return
        before = _TROUBLE in self._status.troubles
        self._status.trouble(
            _TROUBLE,
            f"{found}; headrace publishes the changes of one of them, last of {self._source.address}",
            remedy="find out which of them is the primary, have the other refuse writes (SET GLOBAL super_read_only = "
            "ON) and replicate from it, or take it out of [source]",
        )
        if not before:
            self._log.warning("two addresses of the source are writable", warning=self._status.troubles[_TROUBLE])
