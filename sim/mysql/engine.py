"""Tables, commits, and what readers see of them. A commit is in the binlog first, and visible to others at once or,
with `visible_after`, a moment later, as on a real server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from sim.mysql import events
from sim.mysql.binlog import Binlog
from sim.mysql.gtids import Gtids
from sim.mysql.history import Change, Committed, Kind, Xid
from sim.mysql.rows import RowWriter, table_map
from sim.mysql.schema import Catalog, Definition, Key, Row, Table
from sim.mysql.transactions import Transaction

Bodies = Sequence[tuple[int, bytes]]


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
        self._snapshots: dict[int, int] = {}
        """How many readers have a snapshot of a number."""
        self._undo: list[tuple[int, Table, Key, Row | None]] = []
        """What rows were before a commit, as far as a reader may need it."""
        self._unseen: deque[tuple[int, str, int]] = deque()
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
            known = number, table_map(definition, number, full=full), full, RowWriter(definition)
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
        begin = events.QUERY, events.query(transaction.schema, b"BEGIN", transaction.thread)
        bodies = [begin, *transaction.cache, (events.XID, self._xids.to_bytes(8, "little"))]
        self.apply(changes)
        made = self._made(
            Kind.ROWS, origin, changes=changes, bodies=tuple(transaction.cache), schema=transaction.schema
        )
        return self._write(made, bodies, transaction.compressed)

    def prepare_xa(self, transaction: Transaction, *, one_phase: bool, origin: Committed | None = None) -> Committed:
        """Writes a transaction that XA PREPARE keeps, or that XA COMMIT ... ONE PHASE commits."""
        assert transaction.xid is not None
        xid, changes = transaction.xid, tuple(transaction.changes)
        name = events.xid_text(xid)
        bodies = [
            (events.QUERY, events.query(transaction.schema, b"XA START " + name, transaction.thread)),
            *transaction.cache,
            (events.QUERY, events.query(transaction.schema, b"XA END " + name, transaction.thread)),
            (events.XA_PREPARE, events.xa_prepare(xid, one_phase=one_phase)),
        ]
        facts = {"bodies": tuple(transaction.cache), "schema": transaction.schema, "xid": xid}
        if one_phase:
            self.apply(changes)
            made = self._made(Kind.ROWS, origin, changes=changes, **facts)
        else:
            self.number += 1
            self.prepared[xid] = transaction
            made = self._made(Kind.XA_PREPARE, origin, prepared=changes, **facts)
        return self._write(made, bodies, compressed=False)

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
        made = self._made(kind, origin, changes=changes, xid=xid, schema=schema, prepared=tuple(transaction.changes))
        return self._write(made, [(events.QUERY, events.query(schema, text, thread))], compressed=False, alone=True)

    def commit_statement(
        self,
        schema: str,
        sql: str,
        updated: str,
        thread: int,
        undo: Callable[[], None],
        origin: Committed | None = None,
    ) -> Committed:
        """Writes a statement about tables, which has taken effect. `updated` is the schema that it changes."""
        self.number += 1
        self._xids += 1
        body = events.query(schema, sql.encode(), thread, updated=updated, xid=self._xids)
        made = self._made(Kind.DDL, origin, schema=schema, sql=sql, undo=undo)
        return self._write(made, [(events.QUERY, body)], compressed=False, alone=True)

    def _made(self, kind: Kind, origin: Committed | None, **facts: object) -> Committed:
        now = self.now()
        facts |= {"file": self.binlog.last.name, "offset": self.binlog.last.size}
        if origin is not None:
            return Committed(origin.uuid, origin.number, kind, origin.original_us, now, **facts)  # type: ignore[arg-type]
        number = self.executed.next_number(self.uuid)
        return Committed(self.uuid, number, kind, now, now, **facts)  # type: ignore[arg-type]

    def _write(self, made: Committed, bodies: Bodies, compressed: bool, alone: bool = False) -> Committed:
        binlog, when = self.binlog, made.commit_us // 1_000_000
        if compressed:
            inner = [events.bare(kind, body, when, self.server_id) for kind, body in bodies]
            bodies = [(events.PAYLOAD, events.payload(inner))]
        rest = sum(len(body) for _, body in bodies) + len(bodies) * (events.HEADER_BYTES + events.CRC_BYTES)
        sid = bytes.fromhex(made.uuid.replace("-", ""))
        gtid = events.gtid(
            sid, made.number, binlog.sequence, made.original_us, made.commit_us, rest, self.version, alone=alone
        )
        self.executed.add(made.uuid, made.number)
        self.history.append(made)
        binlog.write([(events.GTID, gtid), *bodies], when, self.server_id)
        delay = self.visible_after()
        if delay > 0 or self._unseen:
            self._unseen.append((self.number, made.uuid, made.number))
            asyncio.get_running_loop().call_later(delay, self._show, self.number)
        else:
            self.visible = self.number
            self.visible_gtids.add(made.uuid, made.number)
            self._trim()
        if binlog.last.size >= self.max_binlog_size:
            binlog.rotate(self.executed, self.server_id)
        self.committed(made)
        return made

    def _show(self, upto: int) -> None:
        """Makes commits visible, in the order of the binlog."""
        while self._unseen and self._unseen[0][0] <= upto:
            self.visible, uuid, number = self._unseen.popleft()
            self.visible_gtids.add(uuid, number)
        self._trim()

    def show_all(self) -> None:
        """Makes everything visible and forgets snapshots, as after a restart."""
        self._unseen.clear()
        self._snapshots.clear()
        self.visible, self.visible_gtids = self.number, self.executed.copy()
        self._undo.clear()
