"""A MySQL server: what a caller does with it, and the faults that it injects."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sim.mysql import variables
from sim.mysql.accounts import SHA2, Account
from sim.mysql.binlog import Binlog, BinlogFile
from sim.mysql.connection import Connection
from sim.mysql.dump import Dump
from sim.mysql.engine import Engine
from sim.mysql.errors import ServerDown, SqlError, denied
from sim.mysql.gtids import Gtids, uuid_text
from sim.mysql.history import Committed, Kind
from sim.mysql.replication import Following, rebuilt
from sim.mysql.result import Column
from sim.mysql.schema import Catalog
from sim.mysql.session import Session
from sim.mysql.sql.parser import parse
from sim.mysql.sql.templates import parse_template, split
from sim.mysql.sql.tree import Statement, Update

_CACHED = 4096
"""Statements whose syntax trees are kept."""
_OPERATOR = ("SUPER", "SYSTEM_VARIABLES_ADMIN")


@dataclass(frozen=True, slots=True)
class Backup:
    """The data and binlogs of a server at one moment."""

    catalog: Catalog
    files: tuple[BinlogFile, ...]
    executed: Gtids
    purged: Gtids
    history: tuple[Committed, ...]


class Server:
    """One server. `now` is its wall clock in microseconds since 1970, `rng` all that is random in it.

    `history` is what it has committed, oldest first; `unknown` are the statements that clients sent and the model does
    not know. Faults: `delay` returns the seconds before each answer, `refuse` is an error for new connections,
    `visible_after` (see Engine), and the methods crash, restart, restore, reset, purge_to, kill and Connection.cut."""

    def __init__(
        self,
        now: Callable[[], int],
        rng: random.Random,
        *,
        server_id: int = 1,
        uuid: str = "",
        version: str = "9.7.4",
        prefix: str = "binlog",
        first: int = 1,
        auth_plugin: str = SHA2,
        accounts: Sequence[Account] = (),
        **options: Any,
    ) -> None:
        """`first` is the number of the first binlog, `options` are global variables."""
        self.now, self.rng, self.version, self.auth_plugin = now, rng, version, auth_plugin
        self.accounts = {account.name: account for account in accounts}
        self._globals = dict(variables.DEFAULTS)
        self.connections: list[Connection] = []
        self.sessions: dict[int, Session] = {}
        self.dumps: list[Dump] = []
        self.unknown: list[str] = []
        self.running = True
        self.busy = 1
        """What SHOW GLOBAL STATUS says of Threads_running."""
        self.delay: Callable[[], float] = lambda: 0.0
        self.refuse: SqlError | None = None
        self.following: Following | None = None
        self.generation = 1
        """Changes when the history is not only longer than before."""
        self._followers: list[Following] = []
        self._registered: dict[int, tuple[str, int, str, int]] = {}
        self._threads = 7
        self._parsed: dict[str, Statement | None] = {}
        self._templates: dict[str, Update | None] = {}
        self.columns: dict[Any, list[Column]] = {}
        """Columns of SELECTs without a table, by what makes them."""
        self._floor = 0
        """How many transactions a crash can't lose."""
        number = sum(int(part) * 100 ** (2 - at) for at, part in enumerate(version.split("-")[0].split(".")))
        binlog = Binlog(prefix, version, now)
        self.engine = Engine(uuid or uuid_text(f"{rng.getrandbits(128):032x}"), server_id, binlog, now, number)
        self.engine.full_metadata = lambda: self._globals["binlog_row_metadata"] == "FULL"
        self.engine.committed = self._on_commit
        binlog.changed = self._wake_dumps
        for name, value in options.items():
            self.set_variable(name, value)
        binlog.open_file(self.engine.executed, server_id, started=True, first=first)

    @property
    def history(self) -> list[Committed]:
        return self.engine.history

    @property
    def uuid(self) -> str:
        return self.engine.uuid

    # -- clients ------------------------------------------------------------------------------------------------------

    def protocol(self) -> Connection:
        """Returns the protocol of a new connection, for loop.create_server()."""
        return Connection(self)

    def session(self) -> Session:
        """Returns a client with all privileges that needs no connection. Raises ServerDown."""
        if not self.running:
            raise ServerDown("the server does not run")
        made = Session(self, self.next_thread())
        self.sessions[made.thread] = made
        return made

    def next_thread(self) -> int:
        self._threads += 1
        return self._threads

    def parsed(self, sql: str) -> Statement | None:
        """Returns the syntax tree of a statement; None for one about databases or tables. Raises SqlError."""
        if sql in self._parsed:
            return self._parsed[sql]
        if len(self._parsed) >= _CACHED:
            self._parsed.clear()
            self.columns.clear()
        made = self._parsed[sql] = parse(sql)
        return made

    def template(self, sql: str) -> tuple[Update, list[Any]] | None:
        """Returns an UPDATE without its literals, and these; None for another statement. Raises SqlError."""
        parts = split(sql)
        if parts is None:
            return None
        text, literals = parts
        if text not in self._templates:
            if len(self._templates) >= _CACHED:
                self._templates.clear()
            self._templates[text] = parse_template(text)
        made = self._templates[text]
        return None if made is None else (made, literals)

    def _on_commit(self, one: Committed) -> None:
        for follower in self._followers:
            follower.notice()

    def _wake_dumps(self) -> None:
        for dump in self.dumps:
            dump.wake()

    # -- variables ----------------------------------------------------------------------------------------------------

    def variable(self, name: str) -> Any:
        """Returns a global variable. Raises SqlError 1193."""
        if name in self._globals:
            return self._globals[name]
        known = self._dynamic()
        if name not in known:
            raise variables.unknown_variable(name)
        return known[name]

    def _dynamic(self) -> dict[str, Any]:
        engine = self.engine
        return {
            "gtid_executed": str(engine.visible_gtids),
            "gtid_owned": "",
            "gtid_purged": str(engine.purged),
            "server_id": engine.server_id,
            "server_uuid": engine.uuid,
            "version": self.version,
        }

    def all_variables(self) -> dict[str, Any]:
        return {**self._globals, **self._dynamic()}

    def set_variable(self, name: str, value: Any) -> None:
        """Sets a global variable; open sessions keep theirs only if they have set them. Raises SqlError 1193."""
        if name == "server_id":
            self.engine.server_id = int(value)
            return
        if name not in self._globals:
            raise variables.unknown_variable(name)
        self._globals[name] = value
        if name == "gtid_mode":
            self.engine.gtids = value == "ON"
        if name == "max_binlog_size":
            self.engine.max_binlog_size = int(value)
        if name == "super_read_only" and value:
            self._globals["read_only"] = True

    # -- other readers ------------------------------------------------------------------------------------------------

    def register(self, session: Session, server_id: int, host: str, port: int) -> None:
        """Notes a replica; the last one counts for a server id."""
        names = session.user_variables
        uuid = str(names.get("replica_uuid") or names.get("slave_uuid") or "")
        self._registered[server_id] = host, port, uuid, session.thread

    def unregister(self, thread: int) -> None:
        self._registered = {number: one for number, one in self._registered.items() if one[3] != thread}

    def replica_rows(self) -> list[tuple[Any, ...]]:
        """Returns the rows of SHOW REPLICAS."""
        own = self.engine.server_id
        return [(number, one[0], one[1], own, one[2]) for number, one in sorted(self._registered.items())]

    def end_dumps_of(self, uuid: str, server_id: int) -> None:
        """Ends the dumps of the same reader: by uuid if it sends one, else by server id among those without."""
        for dump in list(self.dumps):
            if (dump.uuid == uuid) if uuid else (not dump.uuid and dump.server_id == server_id):
                dump.replace()

    def processes(self, session: Session) -> list[tuple[Any, ...]]:
        """Returns the sessions that one may see, as SHOW PROCESSLIST has them."""
        found = []
        for one in self.sessions.values():
            name = one.account.name if one.account else "root"
            if session.allows("PROCESS") or name == (session.account.name if session.account else "root"):
                command = "Query" if one is session else one.command
                found.append((one.thread, name, one.host, one.schema or None, command, 0, "", None))
        return found

    # -- statements of operators --------------------------------------------------------------------------------------

    def control(self, session: Session, words: str, name: str) -> None:
        """Runs FLUSH, PURGE, RESET and KILL. Raises SqlError."""
        if words.startswith("KILL"):
            self._kill_for(session, int(name), words)
        elif words.startswith("FLUSH"):
            self._need(session, "RELOAD")
            self.rotate()
        elif words == "PURGE":
            self._need(session, "BINLOG_ADMIN")
            self.purge_to(name)
        else:
            self._need(session, "RELOAD")
            self.reset()

    def _need(self, session: Session, privilege: str) -> None:
        if not any(session.allows(one) for one in (privilege, *_OPERATOR)):
            raise denied(f"{privilege} or SUPER")

    def _kill_for(self, session: Session, thread: int, words: str) -> None:
        victim = self.sessions.get(thread)
        if victim is None:
            raise SqlError(1094, f"Unknown thread id: {thread}")
        same = session.account is None or victim.account is session.account
        if not same and not any(session.allows(one) for one in ("CONNECTION_ADMIN", "SUPER")):
            raise SqlError(1095, f"You are not owner of thread {thread}")
        if words == "KILL":
            self.kill(thread)

    def kill(self, thread: int) -> None:
        """Ends a session, and its connection without a word."""
        victim = self.sessions.get(thread)
        if victim is None:
            return
        victim.close()
        for connection in list(self.connections):
            if connection.session is victim:
                connection.close()

    def rotate(self) -> None:
        """Begins a new binlog (FLUSH BINARY LOGS)."""
        self.engine.binlog.rotate(self.engine.executed, self.engine.server_id)

    def purge_to(self, name: str) -> None:
        """Removes the binlogs before a file, up to one that a dump reads. Raises SqlError 1373 for an unknown file."""
        engine = self.engine
        number = engine.binlog.find(name)
        if number is None:
            raise SqlError(1373, "Target log not found in binlog index")
        used = [dump.file for dump in self.dumps]
        files = engine.binlog.files
        while number and files[0] not in used:
            files.pop(0)
            number -= 1
        engine.purged = engine.purged.plus(files[0].previous)

    def sync(self) -> None:
        """Has a crash lose nothing of what is committed so far."""
        self._floor = len(self.engine.history)

    def reset(self) -> None:
        """Removes all binlogs and GTIDs (RESET BINARY LOGS AND GTIDS)."""
        engine = self.engine
        engine.binlog.files.clear()
        engine.executed, engine.purged = Gtids(), Gtids()
        engine.show_all()
        engine.binlog.open_file(engine.executed, engine.server_id, started=True)
        self.generation += 1
        self.sync()
        self._wake_dumps()

    # -- life ---------------------------------------------------------------------------------------------------------

    def _end_sessions(self, *, in_order: bool) -> None:
        self.running = False
        for dump in list(self.dumps):
            if in_order:
                dump.end()
            else:
                dump.close()
        for session in list(self.sessions.values()):
            session.close()
        for connection in list(self.connections):
            if in_order:
                connection.close()
            else:
                connection.abort()
        self._registered.clear()

    def stop(self) -> None:
        """Shuts down in order."""
        self._end_sessions(in_order=True)
        self.engine.show_all()
        self.engine.binlog.stop(self.engine.server_id)

    def start(self) -> None:
        """Starts after stop() or crash(), with a new binlog."""
        engine = self.engine
        engine.forget_table_ids()
        engine.binlog.open_file(engine.executed, engine.server_id, started=True)
        self.running = True
        for follower in (*self._followers, *((self.following,) if self.following else ())):
            follower.notice()

    def restart(self, *, uuid: str = "") -> None:
        """Shuts down and starts; with another `uuid` if its auto.cnf was removed."""
        self.stop()
        self.engine.uuid = uuid or self.engine.uuid
        self.start()

    def crash(self, lose: int = 0) -> int:
        """Ends at once and loses the last transactions, which were not synced to disk: at most those of the newest
        binlog, as a file is synced when it ends. Returns how many were lost; start() starts it again."""
        self._end_sessions(in_order=False)
        engine, binlog = self.engine, self.engine.binlog
        engine.show_all()
        lost: list[Committed] = []
        while len(lost) < lose and len(engine.history) > self._floor and engine.history[-1].file == binlog.last.name:
            lost.append(self._lose(engine.history.pop()))
        if lost:
            index = binlog.last.index_of(lost[-1].offset)
            assert index is not None
            binlog.last.truncate(index)
            gone = Gtids()
            for one in lost:
                gone.add(one.uuid, one.number)
            engine.executed = engine.executed.minus(gone)
            engine.show_all()
            self.generation += 1
        return len(lost)

    def _lose(self, one: Committed) -> Committed:
        engine = self.engine
        if one.undo is not None:
            one.undo()
        engine.revert(one.changes)
        if one.kind is Kind.XA_PREPARE and one.xid is not None:
            engine.prepared.pop(one.xid).unlock()
        elif one.kind in (Kind.XA_COMMIT, Kind.XA_ROLLBACK):
            self._prepare_again(one)
        return one

    def _prepare_again(self, one: Committed) -> None:
        """Makes an XA transaction undecided again."""
        assert one.xid is not None
        self.engine.prepared[one.xid] = rebuilt(self.engine, one)

    def backup(self) -> Backup:
        """Returns a copy of its data and binlogs."""
        engine = self.engine
        files = tuple(engine.binlog.copy_files())
        return Backup(engine.catalog.copy(), files, engine.executed.copy(), engine.purged.copy(), tuple(engine.history))

    def restore(self, backup: Backup) -> None:
        """Ends at once and takes the data and binlogs of a backup; start() starts it again under the same uuid."""
        self._end_sessions(in_order=False)
        self._take(backup)
        self.generation += 1

    def _take(self, backup: Backup) -> None:
        engine = self.engine
        engine.catalog = backup.catalog.copy()
        engine.binlog.files = [file.copy() for file in backup.files]
        engine.executed, engine.purged = backup.executed.copy(), backup.purged.copy()
        engine.history = list(backup.history)
        engine.number += 1
        engine.show_all()
        self._floor = min(self._floor, len(engine.history))
        engine.prepared.clear()
        undecided: dict[Any, Committed] = {}
        for one in engine.history:
            if one.kind is Kind.XA_PREPARE:
                undecided[one.xid] = one
            elif one.kind in (Kind.XA_COMMIT, Kind.XA_ROLLBACK):
                undecided.pop(one.xid, None)
        for one in undecided.values():
            self._prepare_again(one)

    # -- groups -------------------------------------------------------------------------------------------------------

    def replica(
        self,
        *,
        lag: Callable[[], float | None] = lambda: 0.0,
        server_id: int = 2,
        uuid: str = "",
        prefix: str = "binlog",
        first: int = 1,
        now: Callable[[], int] | None = None,
        **options: Any,
    ) -> Server:
        """Returns a new server with the same data and GTIDs, its own binlogs, and no binlog of what was before; it
        follows this one."""
        options = {"read_only": True, "binlog_row_metadata": self._globals["binlog_row_metadata"], **options}
        made = Server(
            now or self.now,
            self.rng,
            server_id=server_id,
            uuid=uuid,
            version=self.version,
            prefix=prefix,
            first=first,
            auth_plugin=self.auth_plugin,
            accounts=tuple(self.accounts.values()),
            **options,
        )
        backup = self.backup()
        made._take(backup)
        made.engine.purged = backup.executed.copy()
        made.engine.binlog.files.clear()
        made.engine.binlog.open_file(made.engine.executed, server_id, started=True, first=first)
        made._floor = len(made.engine.history)
        made.follow(self, lag)
        return made

    def follow(self, source: Server, lag: Callable[[], float | None] = lambda: 0.0) -> Following:
        """Makes it a replica of another server, from where its GTIDs end."""
        self.promote()
        self.following = Following(self, source, lag)
        source._followers.append(self.following)
        self.following.notice()
        return self.following

    def promote(self) -> None:
        """Ends its replication; it stays read-only as it is."""
        if self.following is not None:
            self.following.stop()
            self.following.source._followers.remove(self.following)
            self.following = None
