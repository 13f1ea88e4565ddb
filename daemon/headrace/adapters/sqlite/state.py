"""The embedded state store: one SQLite file that survives power loss, written by a thread of its own, never by the
loop's."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import orjson

from headrace import runtime
from headrace.errors import Fenced, StateStoreError
from headrace.lease import Term
from headrace.model import Position
from headrace.ports.state import NO_TERM, Guard, HistoryEntry, StateChange, StateStore, Stored
from headrace.ports.state_records import encoded
from headrace_common.folders import first_folder, try_folder

APPLICATION_ID = 0x68647263
"""Marks the file as headrace's own (SQLite's application_id)."""
LAYOUT = 1
"""The version of the tables below (SQLite's user_version)."""
HISTORY_LENGTH = 1000
"""Position changes that are kept for each destination and actor, so that checkpoints don't displace an operator's. The
very first is kept too, because the schema history is known from there on."""

_TABLES = """
create table destinations (
    name text primary key, epoch integer not null, version integer not null, position blob, changed_us integer not null,
    last_pos integer not null default 0
) without rowid;
create table history (
    id integer primary key, destination text not null, actor text not null, epoch integer not null,
    version integer not null, position blob not null, details blob not null, changed_us integer not null
);
create index history_of on history (destination, actor, id);
create table schema_entries (
    id integer primary key, destination text not null, entry blob not null, changed_us integer not null
);
create index schema_entries_of on schema_entries (destination, id);
create table parked_messages (
    destination text not null, number integer not null, id text not null, scope text not null, topic text not null,
    partition integer not null, unit text not null, reason text not null, attempts integer not null,
    state text not null, created_us integer not null, tried_us integer not null, due_us integer not null,
    size integer not null, tag text not null, commit_time_us integer not null, headers text not null, key blob,
    body blob, primary key (destination, number), unique (destination, id, topic, partition)
);
create table parked_changes (destination text primary key, changes integer not null) without rowid;
"""

_NOT_READ = re.compile(r"unable to get the page\. error code=(\d+)")
"""What quick_check reports, as if it were damage, for a page that it can't read."""
_TAKEN_AWAY = b"null"
"""In the history: no position."""
_T = TypeVar("_T")


class StoreDamagedError(StateStoreError):
    """The file is not a valid store of ours; a retry can't help, and headrace leaves it unchanged."""

    retriable = False


class SqliteStore(StateStore):
    """Positions, their history, schema history and parked messages in one file.

    `timeout` is the limit of each call in seconds. If a call exceeds it, it is unknown whether it took effect: the
    guard is void then, and the destination loads again."""

    def __init__(self, path: Path, *, timeout: float = 10.0) -> None:
        self._path = path
        self._timeout = timeout
        self._executor: Executor | None = None
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Opens the file; does nothing if it is open. Also raises StoreDamagedError."""
        if self._executor is None:
            self._executor = runtime.worker("headrace-state")
            try:
                await self._call("open", self._open)
            except BaseException:
                await self.close()
                raise

    async def load(self, destination: str) -> Stored:
        return await self.read(lambda db: self._load(db, destination))

    async def begin_epoch(self, destination: str, *, above: int = 0, term: Term = NO_TERM) -> Guard:
        """Begins an epoch, which is counted here: this store is never used with a lock that has one."""
        row = await self.write(
            lambda db: db.execute(
                "insert into destinations (name, epoch, version, changed_us) values (?, ? + 1, 0, ?)"
                " on conflict (name) do update set epoch = max(epoch + 1, excluded.epoch) returning epoch, version",
                (destination, max(0, above), _now_us()),
            ).fetchone()
        )
        return Guard(*row)

    async def commit(self, destination: str, guard: Guard, change: StateChange) -> Guard:
        """Writes a change; it is on disk when this returns."""
        await self.write(lambda db: self._commit(db, destination, guard, change))
        return Guard(guard.epoch, guard.version + 1)

    async def history(self, destination: str, limit: int = 100) -> list[HistoryEntry]:
        return await self.read(lambda db: self._history(db, destination, limit))

    async def schema_entries(self, destination: str) -> list[dict[str, Any]]:
        query = "select entry from schema_entries where destination = ? order by id"
        return await self.read(lambda db: [orjson.loads(row[0]) for row in db.execute(query, (destination,))])

    async def read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Runs statements in the store's thread. Raises StateStoreError, and what `work` raises."""
        return await self._call("read", lambda: work(self._db))

    async def write(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Does the same in a transaction."""

        def call() -> _T:
            with self._transaction():
                return work(self._db)

        return await self._call("write", call)

    async def problems(self, destination: str, *, must_exist: bool = False) -> list[str]:
        if must_exist and not os.path.lexists(self._path):  # noqa: ASYNC240 - Path.exists() raises for some names
            return [
                f"there is no state store {self._path.absolute()}: no daemon has run with this configuration -> run "
                "the command in the daemon's working directory: a relative [state] path counts from there"
            ]
        return inspect(self._path)

    def describe(self) -> str:
        return str(self._path.absolute())

    async def close(self) -> None:
        executor, self._executor = self._executor, None
        if executor is None:
            return
        # Waited for only up to the limit: a disk that hangs must not block the stop.
        closing = executor.submit(self._close)
        executor.shutdown(wait=False)
        await asyncio.wait([asyncio.wrap_future(closing)], timeout=self._timeout)

    async def _call(self, verb: str, function: Callable[[], _T]) -> _T:
        if self._executor is None:
            raise StateStoreError(f"the state store {self._path} is not open")
        work = asyncio.get_running_loop().run_in_executor(self._executor, self._guarded, verb, function)
        try:
            async with asyncio.timeout(self._timeout):  # wait_for() loses a cancellation that comes with the result
                return await work
        except TimeoutError:
            raise StateStoreError(
                f"the state store {self._path} did not {verb} within {self._timeout:g} s",
                remedy="check whether its disk is slow or another process holds the file",
            ) from None

    def _guarded(self, verb: str, function: Callable[[], _T]) -> _T:
        try:
            return function()
        except sqlite3.Error as error:
            if type(error) is sqlite3.DatabaseError:  # "not a database", "malformed"; the rest are subclasses
                raise _damaged(self._path, str(error)) from error
            raise StateStoreError(
                f"the state store {self._path} can't {verb}: {error}",
                remedy="check the disk's space, the file's owner and rights, and other processes that use it",
            ) from error
        except OSError as error:
            raise StateStoreError(
                f"the state store {self._path} can't {verb}: {error.strerror}",
                remedy="check the folder's owner and rights, and [state] path",
            ) from error

    # From here on everything runs in the store's own thread.

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Parked messages are the users' rows: no other account may read them.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._connection = connection = sqlite3.connect(self._path, timeout=self._timeout / 2, isolation_level=None)
        # Examined before the first statement that writes, so that a damaged file stays unchanged.
        empty = _examine(connection, self._path)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        if empty:
            with self._transaction():
                if _examine(connection, self._path):  # another daemon may have been faster
                    for statement in _TABLES.split(";"):
                        connection.execute(statement)
                    connection.execute(f"pragma application_id = {APPLICATION_ID}")
                    connection.execute(f"pragma user_version = {LAYOUT}")

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # immediate: another process can't change what is compared below before it is set
        self._db.execute("begin immediate")
        try:
            yield
            self._db.execute("commit")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("rollback")
            raise

    @property
    def _db(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection

    def _load(self, db: sqlite3.Connection, destination: str) -> Stored:
        query = "select position, epoch, version, last_pos from destinations where name = ?"
        row = db.execute(query, (destination,)).fetchone()
        if row is None:
            return Stored(None, 0, 0)
        return Stored(None if row[0] is None else self._position(row[0], destination), *row[1:])

    def _position(self, stored: bytes, destination: str) -> Position:
        try:
            return Position.from_dict(orjson.loads(stored))
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(self._path, f"the position of {destination} can't be read ({error!r})") from error

    def _commit(self, db: sqlite3.Connection, destination: str, guard: Guard, change: StateChange) -> None:
        now, version, moved = _now_us(), guard.version + 1, change.position
        position, last_pos = (None, None) if moved is None else (encoded(moved.to_dict()), moved.last_pos)
        done = db.execute(
            "update destinations set version = ?, position = ?, last_pos = coalesce(?, last_pos), changed_us = ?"
            " where name = ? and epoch = ? and version = ?",
            (version, position, last_pos, now, destination, guard.epoch, guard.version),
        )
        if done.rowcount != 1:
            stored = self._load(db, destination)
            raise Fenced(
                f"{destination} is held under epoch {stored.epoch}, version {stored.version} in {self._path}; ours is "
                f"epoch {guard.epoch}, version {guard.version}, so nothing was written"
            )
        details = encoded(change.details)
        db.execute(
            "insert into history (destination, actor, epoch, version, position, details, changed_us)"
            " values (?, ?, ?, ?, ?, ?, ?)",
            (destination, change.actor, guard.epoch, version, position or _TAKEN_AWAY, details, now),
        )
        db.execute(
            "delete from history where destination = ?1 and actor = ?2 and id <= (select id from history"
            " where destination = ?1 and actor = ?2 order by id desc limit 1 offset ?3)"
            " and id > (select min(id) from history where destination = ?1 and actor = ?2)",
            (destination, change.actor, HISTORY_LENGTH),
        )
        void, entries = change.in_force()
        if void:
            db.execute("delete from schema_entries where destination = ?", (destination,))
        db.executemany(
            "insert into schema_entries (destination, entry, changed_us) values (?, ?, ?)",
            [(destination, encoded(entry), now) for entry in entries],
        )

    def _history(self, db: sqlite3.Connection, destination: str, limit: int) -> list[HistoryEntry]:
        rows = db.execute(
            "select actor, epoch, version, position, details, changed_us from history where destination = ?"
            " order by id desc limit ?",
            (destination, limit),
        )
        return [
            HistoryEntry(
                actor,
                epoch,
                version,
                None if stored == _TAKEN_AWAY else self._position(stored, destination),
                orjson.loads(details),
                changed_us,
            )
            for actor, epoch, version, stored, details, changed_us in rows
        ]


def inspect(path: Path) -> list[str]:
    """Returns what is wrong with the store at `path`, a sentence each. Changes and creates nothing."""
    there, tried = True, path
    try:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except FileNotFoundError:
            if path.is_symlink():  # to a missing target
                raise
            there = False
        tried = first_folder(path.parent)
        try_folder(tried)  # SQLite creates further files next to it
    except OSError as error:
        verb = "used" if there else "made"
        fixes = "check owner and rights, and [state] path"
        return [f"the state store {path} can't be {verb} ({tried}: {error.strerror}) -> {fixes}"]
    if not there:
        return []
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)
        try:
            _examine(connection, path)
        finally:
            connection.close()
    except StateStoreError as error:
        return [str(error)]
    except sqlite3.Error as error:
        return [f"the state store {path} can't be read: {error}"]
    return []


def _examine(connection: sqlite3.Connection, path: Path) -> bool:
    """Returns whether the file is still empty. Raises StoreDamagedError if it is not a valid store of this version."""
    try:
        faults = [str(row[0]) for row in connection.execute("pragma quick_check(3)")]
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        raise _damaged(path, str(error)) from error
    codes = (int(found[1]) for found in map(_NOT_READ.search, faults) if found is not None)
    if any(code & 0xFF == sqlite3.SQLITE_IOERR for code in codes):
        raise sqlite3.OperationalError("disk I/O error")  # of the disk; the file may be whole
    if faults != ["ok"]:
        raise _damaged(path, "; ".join(faults))
    tables: int = connection.execute("select count(*) from sqlite_master").fetchone()[0]
    application: int = connection.execute("pragma application_id").fetchone()[0]
    layout: int = connection.execute("pragma user_version").fetchone()[0]
    if tables == 0 and application == 0:
        return True
    if application != APPLICATION_ID:
        raise StoreDamagedError(
            f"{path} is the database of another program", remedy="give [state] path a file of its own"
        )
    if layout != LAYOUT:
        raise StoreDamagedError(
            f"the state store {path} has layout {layout}, this headrace knows {LAYOUT}",
            remedy="run the version of headrace that wrote it, or a later one",
        )
    return False


def _damaged(path: Path, what: str) -> StoreDamagedError:
    return StoreDamagedError(
        f"the state store {path} is damaged: {what}",
        remedy=f"headrace has left the file as it is; put a backup in its place, or move {path} and its -wal and -shm "
        "files away and give [source] start the position from the log, and start again",
    )


def _now_us() -> int:
    return runtime.now_us()
