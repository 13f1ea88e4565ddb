"""Parked messages in the embedded state store."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from headrace.adapters.sqlite.state import SqliteStore
from headrace.errors import Fenced
from headrace.lease import Guard
from headrace.parking.packing import ENTRY_FIELDS, content_of, content_row, entry_of, entry_row
from headrace.ports.parking import ParkedContent, ParkedEntry, ParkedMessage, ParkingStore

_ENTRY = ", ".join(ENTRY_FIELDS)
_CONTENT = "body, key, headers, tag, commit_time_us"


class SqliteParkingStore(ParkingStore):
    """The parked messages of one destination, stored with its position. The file is opened and closed with the state
    store."""

    def __init__(self, store: SqliteStore, destination: str) -> None:
        self._store, self._destination = store, destination

    async def open(self) -> None:
        await self._store.open()

    async def begin(self, guard: Guard) -> None:
        """Does nothing: the state store already has the epoch."""

    async def entries(self) -> list[ParkedEntry]:
        query = f"select {_ENTRY} from parked_messages where destination = ? order by number"
        return await self._store.read(lambda db: [entry_of(row) for row in db.execute(query, (self._destination,))])

    async def contents(self, numbers: Sequence[int]) -> dict[int, ParkedContent]:
        marks = ",".join("?" * len(numbers))
        query = f"select number, {_CONTENT} from parked_messages where destination = ? and number in ({marks})"

        def read(db: sqlite3.Connection) -> dict[int, ParkedContent]:
            rows = db.execute(query, (self._destination, *numbers))
            return {number: content_of(content) for number, *content in rows}

        return await self._store.read(read)

    async def add(self, guard: Guard, messages: Sequence[ParkedMessage]) -> None:
        columns = f"destination, {_ENTRY}, {_CONTENT}"
        marks = ",".join("?" * 19)
        replaced = ", ".join(f"{name} = excluded.{name}" for name in columns.split(", ") if name != "destination")

        def write(db: sqlite3.Connection) -> None:
            self._check(db, guard)
            db.executemany(
                f"insert into parked_messages ({columns}) values ({marks})"
                f" on conflict (destination, id, topic, partition) do update set {replaced}",
                [(self._destination, *entry_row(one.entry), *content_row(one.content)) for one in messages],
            )

        await self._store.write(write)

    async def remove(self, guard: Guard | None, numbers: Sequence[int]) -> int:
        def write(db: sqlite3.Connection) -> int:
            self._check(db, guard)
            done = db.executemany(
                "delete from parked_messages where destination = ? and number = ?",
                [(self._destination, number) for number in numbers],
            )
            return done.rowcount

        return await self._store.write(write)

    async def update(self, guard: Guard | None, entries: Sequence[ParkedEntry]) -> int:
        def write(db: sqlite3.Connection) -> int:
            self._check(db, guard)
            done = db.executemany(
                "update parked_messages set reason = ?, attempts = ?, state = ?, tried_us = ?, due_us = ?"
                " where destination = ? and number = ?",
                [
                    (one.reason, one.attempts, str(one.state), one.tried_us, one.due_us, self._destination, one.number)
                    for one in entries
                ],
            )
            return done.rowcount

        return await self._store.write(write)

    async def changes(self) -> int:
        query = "select coalesce(max(changes), 0) from parked_changes where destination = ?"
        return await self._store.read(lambda db: int(db.execute(query, (self._destination,)).fetchone()[0]))

    async def problems(self) -> list[str]:
        """Returns none: those of the state store are reported separately."""
        return []

    def _check(self, db: sqlite3.Connection, guard: Guard | None) -> None:
        """Compares epochs or, without a guard, lets the daemon notice the write."""
        if guard is None:
            db.execute(
                "insert into parked_changes (destination, changes) values (?, 1)"
                " on conflict (destination) do update set changes = changes + 1",
                (self._destination,),
            )
            return
        row = db.execute("select epoch from destinations where name = ?", (self._destination,)).fetchone()
        if row is None or row[0] != guard.epoch:
            raise Fenced(
                f"{self._destination} is held under epoch {row[0] if row else 0}, ours is {guard.epoch}, so no failed "
                "message was written"
            )
