"""The embedded state store of a simulated daemon: its commits are noted, and what the daemon knows to be stored."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from headrace.adapters.sqlite.adapter import SqliteAdapter
from headrace.adapters.sqlite.state import SqliteStore
from headrace.lease import Guard
from headrace.model import Position
from headrace.ports.state import StateChange
from headrace.settings.daemon import StateSettings
from sim.disk import Disk

FILE = "headrace.db"
_QUERY = """
select name, version, epoch, position,
    (select details from history where destination = name order by id desc limit 1)
from destinations order by name
"""


@dataclass(frozen=True, slots=True)
class Row:
    """What is stored of a destination. `details` are those of the last change."""

    destination: str
    version: int
    epoch: int
    position: Position | None
    details: dict[str, Any]


class Machine:
    """A daemon's disk, and what its processes know to be stored there."""

    def __init__(self, disk: Disk, folder: Path, committed: Callable[[list[Row]], None]) -> None:
        self.disk, self.committed, self._folder = disk, committed, folder
        self._known = dict[str, int]()
        """Version by destination."""

    def acknowledge(self, destination: str, version: int) -> None:
        """Notes that a write has returned to the daemon."""
        self._known[destination] = version

    def compare(self) -> list[str]:
        """Reads what the last process has left; returns what is wrong with it, a sentence each."""
        with closing(self._copy()) as db:
            try:
                faults = [row[0] for row in db.execute("pragma integrity_check")]
                found = rows(db) if db.execute("select 1 from sqlite_master").fetchone() else []
            except sqlite3.Error as error:
                return [f"the state store is damaged: {error!r}"]
        wrong = [f"the state store is damaged: {fault}" for fault in faults if fault != "ok"]
        versions = {row.destination: row.version for row in found}
        for name, known in self._known.items():
            if versions.get(name, 0) < known:
                wrong.append(f"version {known} of the position of {name} was stored, now it is {versions.get(name, 0)}")
        self._known = versions
        self.committed(found)
        return wrong

    def _copy(self) -> sqlite3.Connection:
        """Returns a connection to a copy, which is on no simulated disk."""
        copy = self._folder.with_name(f"{self._folder.name}.copy")
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for file in self._folder.glob(f"{FILE}*"):
            shutil.copyfile(file, copy / file.name)
        return sqlite3.connect(copy / FILE)


def rows(db: sqlite3.Connection) -> list[Row]:
    """Returns what is stored of all destinations."""
    return [
        Row(
            name, version, epoch, position and Position.from_dict(orjson.loads(position)), orjson.loads(details or "{}")
        )
        for name, version, epoch, position, details in db.execute(_QUERY)
    ]


MACHINE: ContextVar[Machine] = ContextVar("machine")


class SimSqliteStore(SqliteStore):
    """The product's own store."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._machine = MACHINE.get()

    async def commit(self, destination: str, guard: Guard, change: StateChange) -> Guard:
        made = await super().commit(destination, guard, change)
        self._machine.acknowledge(destination, made.version)
        return made

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with super()._transaction():
            yield
        with self._machine.disk.well():
            found = rows(self._db)
        self._machine.committed(found)


class SimSqliteAdapter(SqliteAdapter):
    """Its adapter."""

    def store(self, settings: StateSettings) -> SimSqliteStore:
        return SimSqliteStore(settings.path)
