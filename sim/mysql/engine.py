"""Tables, commits, and what readers see of them. A commit is in the binlog first, and visible to others at once or,
with `visible_after`, a moment later, as on a real server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sim.mysql import events
from sim.mysql.binlog import Binlog
from sim.mysql.gtids import Gtids
from sim.mysql.history import Change, Committed, Kind, Xid
from sim.mysql.rows import RowWriter, table_map
from sim.mysql.schema import Catalog, Definition, Key, Row, Table
from sim.mysql.transactions import Transaction

Parts = Sequence[events.Part]
_KEYS_BY_SQL, _SINCE_KEYS_BY_SQL = 0x10, 90600
"""The flag of rows events that says that foreign keys are handled as statements, and the version that has it."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A statement about tables as it is logged; see events.query()."""

    schema: str
    sql: str
    updated: str
    flags: int = 0
    timestamps: bool = False
    last: bytes = b""
    effect: bool = True
    """Whether the data dictionary has changed: else the statement has no transaction in it."""


class View:
    """The rows of a table as one reader sees them: the committed rows with some replaced."""

    def __init__(self, table: Table, replaced: dict[Key, Row | None]) -> None:
        self.table, self._replaced = table, replaced
        self._keys: list[Key] | None = None

    def get(self, key: Key) -> Row | None:
        if key in self._replaced:
            return self._replaced[key]
        return self.table.rows.get(key)

    @property
    def keys(self) -> list[Key]:
        """Returns the keys in order; some may have no row."""
        if not self._replaced:
            return self.table.sorted
        if self._keys is None:
            self._keys = sorted({**self.table.rows, **self._replaced})
        return self._keys

    def __iter__(self) -> Iterator[tuple[Key, Row]]:
        """Yields the rows in the order of the key."""
        for key in list(self.keys):
            row = self.get(key)
            if row is not None:
                yield key, row


class Engine:
    """The data of one server. `now` is the wall clock in microseconds since 1970."""

    def __init__(self, uuid: str, server_id: int, binlog: Binlog, now: Callable[[], int], version: int) -> None:
        self.uuid, self.server_id, self.binlog, self.now, self.version = uuid, server_id, binlog, now, version
        self.catalog = Catalog()
        self.executed, self.purged = Gtids(), Gtids()
        self.visible_gtids = Gtids()
        """What of `executed` is visible."""
        self.history: list[Committed] = []
        self.prepared: dict[Xid, Transaction] = {}
        self.number = self.visible = 0
        """The number of the last commit, and of the last one that is visible."""
        self.visible_after: Callable[[], float] = lambda: 0.0
        """Returns the seconds from a commit's write to the binlog until it is visible."""
        self.full_metadata: Callable[[], bool] = lambda: False
        """Returns whether replicated rows are written with column names."""
        self.max_binlog_size = 1 << 30
        self.committed: Callable[[Committed], None] = lambda one: None
        """Called after each commit."""
        self.waiters: list[Callable[[], None]] = []
        """Called, once each, when a transaction has released locks."""
        self._snapshots: dict[int, int] = {}
        """How many readers have a snapshot of a number."""
        self._undo: list[tuple[int, Table, Key, Row | None]] = []
        """What rows were before a commit, as far as a reader may need it."""
        self._unseen: deque[tuple[int, str, int]] = deque()
        self.gtids = True
        """Whether transactions get GTIDs (gtid_mode). Without, they are numbered for `history` alone."""
        self._anonymous = 0
        self._xids = 10
        self._table_ids: dict[Definition, tuple[int, bytes, bool, RowWriter]] = {}
        self._next_table_id = 100

    # -- reading ------------------------------------------------------------------------------------------------------

    def take_snapshot(self) -> int:
        """Returns the number of the last visible commit, and keeps what it sees until release()."""
        self._snapshots[self.visible] = self._snapshots.get(self.visible, 0) + 1
        return self.visible

    def release(self, snapshot: int) -> None:
        self._snapshots[snapshot] -= 1
        if not self._snapshots[snapshot]:
            del self._snapshots[snapshot]
        self._trim()

    def view(self, table: Table, snapshot: int | None, transaction: Transaction | None = None) -> View:
        """Returns the rows as of a snapshot, None for what is visible now, with the transaction's own changes."""
        number = self.visible if snapshot is None else snapshot
        replaced: dict[Key, Row | None] = {}
        if table.changed > number:
            for at, one, key, before in reversed(self._undo):
                if at <= number:
                    break
                if one is table:
                    replaced[key] = before
        if transaction is not None and (own := transaction.overlay.get(table)):
            replaced = {**replaced, **own}
        return View(table, replaced)

    def _trim(self) -> None:
        if self._undo and not self._snapshots and self.visible == self.number:
            self._undo.clear()

    # -- writing ------------------------------------------------------------------------------------------------------

    def describe(self, definition: Definition, *, full: bool) -> tuple[int, bytes, RowWriter]:
        """Returns the number of a table, the body of its TABLE_MAP, and the writer of its rows."""
        known = self._table_ids.get(definition)
        if known is None or known[2] != full:
            number = known[0] if known else self._next_table_id
            self._next_table_id += not known
            flags = _KEYS_BY_SQL if self.version >= _SINCE_KEYS_BY_SQL else 0
            known = number, table_map(definition, number, full=full), full, RowWriter(definition, flags)
            self._table_ids[definition] = known
        return known[0], known[1], known[3]

    def forget_table_ids(self) -> None:
        """Gives tables new numbers when they are next written, as after a restart."""
        self._table_ids.clear()
        self._next_table_id = 100

    def forget_table(self, definition: Definition) -> None:
        """Gives a table a new number, as after a statement that changes it."""
        self._table_ids.pop(definition, None)

    def apply(self, changes: Sequence[Change]) -> None:
        """Makes changes the committed state."""
        self.number += 1
        keep = bool(self._snapshots) or self.visible < self.number - 1 or self.visible_after() > 0
        for change in changes:
            table = self.catalog.find(change.schema, change.table)
            assert table is not None
            table.changed = self.number
            if keep:
                if change.key_before is not None:
                    self._undo.append((self.number, table, change.key_before, change.before))
                if change.key_after is not None and change.key_after != change.key_before:
                    self._undo.append((self.number, table, change.key_after, None))
            if change.key_before is not None and change.key_before != change.key_after:
                table.set(change.key_before, None)
            if change.key_after is not None:
                table.set(change.key_after, change.after)

    def revert(self, changes: Sequence[Change]) -> None:
        """Undoes committed changes that were lost."""
        for change in reversed(changes):
            table = self.catalog.find(change.schema, change.table)
            assert table is not None
            if change.key_after is not None and change.key_after != change.key_before:
                table.set(change.key_after, None)
            if change.key_before is not None:
                table.set(change.key_before, change.before)

    def commit_rows(self, transaction: Transaction, origin: Committed | None = None) -> Committed:
        """Commits the changes of a transaction. `origin`: it comes from another server."""
        changes = tuple(transaction.changes)
        self._xids += 1
        parts = [transaction.begin(b"BEGIN"), *transaction.cache, (events.XID, self._xids.to_bytes(8, "little"), 0)]
        self.apply(changes)
        made = self._made(Kind.ROWS, origin, changes=changes, parts=tuple(transaction.cache), schema=transaction.schema)
        return self._write(made, parts, transaction.compressed)

    def prepare_xa(self, transaction: Transaction, *, one_phase: bool, origin: Committed | None = None) -> Committed:
        """Writes a transaction that XA PREPARE keeps, or that XA COMMIT ... ONE PHASE commits."""
        assert transaction.xid is not None
        xid, changes = transaction.xid, tuple(transaction.changes)
        name = events.xid_text(xid)
        parts = [
            transaction.begin(b"XA START " + name),
            *transaction.cache,
            events.query(transaction.schema, b"XA END " + name, transaction.thread),
            (events.XA_PREPARE, events.xa_prepare(xid, one_phase=one_phase), 0),
        ]
        facts = {"parts": tuple(transaction.cache), "schema": transaction.schema, "xid": xid}
        if one_phase:
            self.apply(changes)
            made = self._made(Kind.ROWS, origin, changes=changes, **facts)
        else:
            self.number += 1
            self.prepared[xid] = transaction
            made = self._made(Kind.XA_PREPARE, origin, prepared=changes, **facts)
        return self._write(made, parts, compressed=False)

    def decide_xa(
        self, xid: Xid, schema: str, thread: int, *, commit: bool, origin: Committed | None = None
    ) -> Committed:
        """Commits or rolls back a prepared transaction."""
        transaction = self.prepared.pop(xid)
        changes = tuple(transaction.changes) if commit else ()
        text = (b"XA COMMIT " if commit else b"XA ROLLBACK ") + events.xid_text(xid)
        self.apply(changes)
        transaction.unlock()
        kind = Kind.XA_COMMIT if commit else Kind.XA_ROLLBACK
        facts = {"prepared": tuple(transaction.changes), "parts": tuple(transaction.cache) if commit else ()}
        made = self._made(kind, origin, changes=changes, xid=xid, schema=schema, **facts)
        return self._write(made, [events.query(schema, text, thread)], compressed=False, alone=True)

    def commit_statement(
        self, statement: Logged, thread: int, undo: Callable[[], None], origin: Committed | None = None
    ) -> Committed:
        """Writes a statement about tables, which has taken effect."""
        self.number += 1
        self._xids += statement.effect
        schema, sql = statement.schema, statement.sql
        part = events.query(
            schema,
            sql.encode(),
            thread,
            flags=statement.flags,
            updated=statement.updated,
            timestamps=statement.timestamps,
            xid=self._xids if statement.effect else None,
            last=statement.last,
        )
        made = self._made(Kind.DDL, origin, schema=schema, sql=sql, undo=undo)
        return self._write(made, [part], compressed=False, alone=True)

    def _made(self, kind: Kind, origin: Committed | None, **facts: object) -> Committed:
        now = self.now()
        facts |= {"file": self.binlog.last.name, "offset": self.binlog.last.size}
        if origin is not None:
            facts["server_id"] = origin.server_id
            return Committed(origin.uuid, origin.number, kind, origin.original_us, now, **facts)  # type: ignore[arg-type]
        facts["server_id"] = self.server_id
        self._anonymous += not self.gtids
        number = self.executed.next_number(self.uuid) if self.gtids else self._anonymous
        return Committed(self.uuid, number, kind, now, now, **facts)  # type: ignore[arg-type]

    def _write(self, made: Committed, parts: Parts, compressed: bool, alone: bool = False) -> Committed:
        binlog, when, server_id = self.binlog, made.commit_us // 1_000_000, made.server_id
        if compressed:
            inner = [events.bare(kind, body, when, server_id, flags) for kind, body, flags in parts]
            parts = [(events.PAYLOAD, events.payload(inner), 0)]
        rest = sum(len(body) for _, body, _ in parts) + len(parts) * (events.HEADER_BYTES + events.CRC_BYTES)
        kind, sid, number = events.ANONYMOUS_GTID, bytes(16), 0
        if self.gtids:
            kind, sid, number = events.GTID, bytes.fromhex(made.uuid.replace("-", "")), made.number
            self.executed.add(made.uuid, number)
        gtid = events.gtid(
            sid, number, binlog.sequence, made.original_us, made.commit_us, rest, self.version, alone=alone
        )
        self.history.append(made)
        binlog.write([(kind, gtid, 0), *parts], when, server_id)
        delay = self.visible_after()
        if delay > 0 or self._unseen:
            self._unseen.append((self.number, made.uuid, made.number))
            asyncio.get_running_loop().call_later(delay, self._show, self.number)
        else:
            self.visible = self.number
            self._see(made.uuid, made.number)
            self._trim()
        if binlog.last.size >= self.max_binlog_size:
            binlog.rotate(self.executed, self.server_id)
        self.committed(made)
        return made

    def _show(self, upto: int) -> None:
        """Makes commits visible, in the order of the binlog."""
        while self._unseen and self._unseen[0][0] <= upto:
            self.visible, uuid, number = self._unseen.popleft()
            self._see(uuid, number)
        self._trim()

    def _see(self, uuid: str, number: int) -> None:
        if self.gtids:
            self.visible_gtids.add(uuid, number)

    def show_all(self) -> None:
        """Makes everything visible, as when no client is left."""
        self._unseen.clear()
        self.visible, self.visible_gtids = self.number, self.executed.copy()
        self._trim()

    def wake_waiters(self) -> None:
        """Has those that wait for locks try again, in the loop's next turn."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            asyncio.get_running_loop().call_soon(waiter)
