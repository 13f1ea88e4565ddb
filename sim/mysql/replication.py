"""A server that follows another: it applies the same transactions under the same GTIDs, after a lag."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from sim.mysql import ddl, events
from sim.mysql.engine import Engine
from sim.mysql.errors import no_table
from sim.mysql.history import Change, Committed, Kind
from sim.mysql.schema import Key, Row, Table
from sim.mysql.sql.definitions import parse_ddl
from sim.mysql.transactions import Transaction

if TYPE_CHECKING:
    from sim.mysql.server import Server


class Following:
    """Replication of one server from another. `lag` returns the seconds after which a transaction is applied, or None
    while the caller applies them (apply_next). What a replica has not applied it does not have: what its source loses
    in a crash, it never gets."""

    def __init__(self, server: Server, source: Server, lag: Callable[[], float | None]) -> None:
        self.server, self.source, self.lag = server, source, lag
        self.running = True
        self._at, self._generation = 0, source.generation
        """The number of the next transaction in the source's history."""
        self._due: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """Stops it, as STOP REPLICA does."""
        self.running = False
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def start(self) -> None:
        """Goes on."""
        self.running = True
        self.notice()

    def _next(self) -> Committed | None:
        """Returns the next transaction that the server lacks."""
        if self._generation != self.source.generation:
            self._at, self._generation = 0, self.source.generation
        history, executed = self.source.engine.history, self.server.engine.executed
        while self._at < len(history):
            one = history[self._at]
            if not executed.has(one.uuid, one.number):
                return one
            self._at += 1
        return None

    @property
    def behind(self) -> int:
        """Returns how many transactions of the source the server lacks."""
        if self._next() is None:
            return 0
        executed = self.server.engine.executed
        return sum(not executed.has(one.uuid, one.number) for one in self.source.engine.history[self._at :])

    @property
    def seconds_behind(self) -> int:
        """Returns the age of the next transaction in seconds; 0 if there is none."""
        one = self._next()
        return 0 if one is None else max(0, (self.server.now() - one.commit_us) // 1_000_000)

    def notice(self) -> None:
        """Applies what is due, and schedules what is not."""
        if self._due is not None or not self.running or not self.server.running:
            return
        one, lag = self._next(), self.lag()
        if one is None or lag is None:
            return
        wait = lag - (self.source.now() - one.commit_us) / 1e6
        self._due = asyncio.get_running_loop().call_later(min(max(0.0, wait), lag), self._on_due)

    def _on_due(self) -> None:
        self._due = None
        if self.running and self.server.running and self.source.running:
            self.apply_next()
            self.notice()

    def apply_next(self, count: int = 1) -> int:
        """Applies the next transactions at once; returns how many there were."""
        for done in range(count):
            one = self._next()
            if one is None:
                return done
            apply(self.server.engine, one)
            self._at += 1
        return count

    def catch_up(self) -> int:
        """Applies everything; returns how many transactions that were."""
        return self.apply_next(1 << 60)


def apply(engine: Engine, one: Committed) -> None:
    """Commits a transaction of another server. Raises SqlError if the data differ."""
    if one.kind is Kind.DDL:
        statement = parse_ddl(one.sql)
        logged, undo = ddl.apply(engine, statement, one.schema, one.sql)
        engine.commit_statement(replace(logged, schema=one.schema, sql=one.sql), 1, undo, one)
        return
    if one.kind in (Kind.XA_COMMIT, Kind.XA_ROLLBACK):
        assert one.xid is not None
        engine.decide_xa(one.xid, one.schema, 1, commit=one.kind is Kind.XA_COMMIT, origin=one)
        return
    transaction = rebuilt(engine, one)
    if one.xid is not None:
        engine.prepare_xa(transaction, one_phase=one.kind is Kind.ROWS, origin=one)
    else:
        engine.commit_rows(transaction, one)
    if one.kind is Kind.ROWS:
        transaction.unlock()


def rebuilt(engine: Engine, one: Committed) -> Transaction:
    """Returns the transaction with the same changes on this server's tables, and the same events."""
    transaction = Transaction(lambda definition: engine.describe(definition, full=full), one.schema, 1)
    transaction.xid, transaction.released = one.xid, engine.wake_waiters
    full = engine.full_metadata()
    numbers: dict[bytes, bytes] = {}
    by_name: dict[tuple[str, str], Table] = {}
    for change in one.changes or one.prepared:
        table = engine.catalog.find(change.schema, change.table)
        if table is None:
            raise no_table(change.schema, change.table)
        by_name[change.schema, change.table] = table
        transaction.add(table, *_placed(transaction, table, change))
    for kind, body, flags in one.parts:
        if kind == events.TABLE_MAP:
            schema = body[9 : 9 + body[8]].decode()
            at = 10 + body[8]
            name = body[at + 1 : at + 1 + body[at]].decode()
            made = engine.describe(by_name[schema, name].definition, full=full)[1]
            numbers[body[:6]], body = made[:6], made
        elif kind in (events.WRITE_ROWS, events.UPDATE_ROWS, events.DELETE_ROWS):
            body = numbers[body[:6]] + body[6:]
        transaction.cache.append((kind, body, flags))
    return transaction


def _placed(
    transaction: Transaction, table: Table, change: Change
) -> tuple[tuple[Key, Row] | None, tuple[Key, Row] | None]:
    """Returns a change with the keys that rows have here: without a primary key those of equal rows."""
    before, after = change.before, change.after
    if table.definition.primary:
        key_of = table.definition.key_of
        return (key_of(before), before) if before else None, (key_of(after), after) if after else None
    key: Key | None = None
    if before is not None:
        rows = {**table.rows, **transaction.overlay.get(table, {})}
        key = next(key for key, row in rows.items() if row == before)
    else:
        key = (table.next_row,)
        table.next_row += 1
    return (key, before) if before else None, (key, after) if after else None
