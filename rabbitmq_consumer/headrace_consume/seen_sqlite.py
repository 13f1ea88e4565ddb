"""Message ids in an SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from headrace_consume.seen import DuplicatesError, SeenStore
from headrace_consume.settings import DuplicatesSettings
from headrace_consume.threads import in_thread

T = TypeVar("T")

_CHUNK = 500  # below every limit of variables of any SQLite build
_PRUNE_EVERY = 60.0


class SqliteSeen(SeenStore):
    """A table of names and times. A crash of the machine may lose the last ones, which costs a repeated write."""

    def __init__(self, settings: DuplicatesSettings, scope: str, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._scope = scope
        self._clock = clock
        self._connection: sqlite3.Connection | None = None
        self._mutex = threading.Lock()
        self._pruned = 0.0

    async def open(self) -> None:
        await self._call(lambda: self._open())

    async def seen(self, names: Sequence[str]) -> set[str]:
        return await self._call(lambda: self._seen(names))

    async def note(self, names: Sequence[str]) -> None:
        await self._call(lambda: self._note(names))

    async def close(self) -> None:
        with suppress(DuplicatesError):
            await self._call(self._close)

    async def _call(self, function: Callable[[], T]) -> T:
        def guarded() -> T:
            # A call that exceeded its time limit may still run in its thread.
            with self._mutex:
                return function()

        try:
            async with asyncio.timeout(self._settings.timeout):
                return await in_thread(guarded)
        except TimeoutError:
            raise DuplicatesError(f"{self._settings.path} did not answer in {self._settings.timeout:g} s") from None
        except (sqlite3.Error, OSError) as error:
            raise DuplicatesError(f"{self._settings.path} can't be used: {error}") from None

    def _open(self) -> None:
        if self._connection is not None:
            return
        Path(self._settings.path).absolute().parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._settings.path, timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            # The file may be a moment behind, but it stays intact.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS seen (name TEXT PRIMARY KEY, until REAL NOT NULL) WITHOUT ROWID"
            )
            connection.execute("CREATE INDEX IF NOT EXISTS seen_until ON seen (until)")
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _seen(self, names: Sequence[str]) -> set[str]:
        connection, found = self._opened(), set[str]()
        prefix = f"{self._scope}|"
        for at in range(0, len(names), _CHUNK):
            keys = [prefix + name for name in names[at : at + _CHUNK]]
            marks = ",".join("?" * len(keys))
            query = f"SELECT name FROM seen WHERE until > ? AND name IN ({marks})"
            found.update(name[len(prefix) :] for (name,) in connection.execute(query, [self._clock(), *keys]))
        return found

    def _note(self, names: Sequence[str]) -> None:
        connection, now = self._opened(), self._clock()
        until = now + self._settings.ttl
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany(
                "INSERT OR REPLACE INTO seen VALUES (?, ?)", [(f"{self._scope}|{name}", until) for name in names]
            )
            if now - self._pruned > _PRUNE_EVERY:
                connection.execute("DELETE FROM seen WHERE until <= ?", [now])
                self._pruned = now
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise DuplicatesError(f"{self._settings.path} is closed")
        return self._connection
