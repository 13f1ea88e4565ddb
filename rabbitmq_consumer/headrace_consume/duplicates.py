"""Stores of message ids: a repeated message is dropped before Elasticsearch is used.

They only save work. Without one, or while it is unavailable, versions in Elasticsearch make a repeated message
harmless."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog

from headrace_consume.seen import DuplicatesError, SeenStore
from headrace_consume.settings import Settings

log = structlog.get_logger(__name__)

PAUSE = 5.0
"""Seconds for which a store that failed is not used."""


class Duplicates:
    """The store as the consumer sees it: while it fails nothing counts as seen, and it is not used for a moment."""

    def __init__(self, store: SeenStore | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._opened = False
        self._until = 0.0
        self.trouble = ""
        """Why it can't be used now; empty if it can."""

    async def seen(self, names: Sequence[str]) -> set[str]:
        """Returns those of the identities that were recorded; the empty one never is."""
        wanted = [name for name in names if name]
        if self._store is None or not wanted or self._clock() < self._until:
            return set()
        try:
            if not self._opened:
                await self._store.open()
                self._opened = True
            found = await self._store.seen(wanted)
        except DuplicatesError as error:
            self._failed(error)
            return set()
        if self.trouble:
            log.info("the store of message ids works again")
            self.trouble = ""
        return found

    async def note(self, names: Sequence[str]) -> None:
        """Records what Elasticsearch has confirmed."""
        wanted = [name for name in names if name]
        if self._store is None or not wanted or not self._opened or self._clock() < self._until:
            return
        try:
            await self._store.note(wanted)
        except DuplicatesError as error:
            self._failed(error)

    async def close(self) -> None:
        """Closes the store."""
        if self._store is not None:
            await self._store.close()

    def _failed(self, error: DuplicatesError) -> None:
        if not self.trouble:
            log.warning("no message ids: repeated messages are written again, which does no harm", reason=str(error))
        self.trouble = str(error)
        self._until = self._clock() + PAUSE


def make_duplicates(settings: Settings) -> Duplicates:
    """Returns the configured store. Raises DuplicatesError if its package is not installed."""
    own = settings.duplicates
    scope = settings.rabbitmq.queue
    if own.store == "sqlite":
        from headrace_consume.seen_sqlite import SqliteSeen

        return Duplicates(SqliteSeen(own, scope))
    if own.store == "redis":
        try:
            from headrace_consume.seen_redis import RedisSeen
        except ImportError:
            raise DuplicatesError(
                "store = 'redis' in [duplicates] needs the Python package redis: pip install 'headrace[redis]'"
            ) from None
        return Duplicates(RedisSeen(own, scope))
    return Duplicates(None)
