"""Clients of the source: transactions on some tables, one after the other, as the seed decides."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import orjson

from sim.mysql.errors import ServerDown, SqlError
from sim.mysql.session import Session

if TYPE_CHECKING:
    from sim.world import World

TABLES = ("t1", "t2", "t3")
COLUMNS = ("id", "name", "n")
"""Columns that each table has all the time."""
_KEYS = 20
"""Keys of a table that clients change, or more if it has more rows at the begin."""
_PART = 10
"""Rows of one statement of a large transaction."""
_FILL = 50
"""Rows of a transaction that fills a table."""


_XA = 0.3
"""The part of transactions that are XA transactions, in worlds that have some."""
_DDL = 0.1
"""The part of transactions before which a table is altered, in worlds where that happens."""
_LARGE = 0.1
"""The part of changes that make a row large, in worlds where messages are parked."""


class Clients:
    """They run until `stop` is set."""

    def __init__(self, world: World, rate: float) -> None:
        self._world, self._rate, self._rng = world, rate, world.rng("clients")
        self.stop = False
        self._altered = self._xids = 0
        self._prepared = list[str]()
        """XA transactions that are not decided, oldest first."""
        self._keys = self._next = max(_KEYS, world.plan.rows)

    def create(self) -> None:
        """Creates the tables and what the daemons need."""
        session = self._world.mysql.session()
        for statement in ("CREATE DATABASE shop", "CREATE DATABASE headrace"):
            session.execute(statement)
        session.use("shop")
        text = "before".ljust(self._world.plan.text, ".")
        for table in TABLES:
            session.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, name VARCHAR(4000), n BIGINT)")
            for first in range(0, self._world.plan.rows, _FILL):
                keys = range(first, min(first + _FILL, self._world.plan.rows))
                session.begin()
                session.insert(table, *({"id": key, "name": text, "n": key} for key in keys))
                session.commit()
        session.close()
        self._world.mysql.sync()  # clients can't go on without the tables

    async def run(self) -> None:
        """Runs transactions."""
        session: Session | None = None
        while not self.stop:
            try:
                if session is None or not session.alive:
                    session = self._world.mysql.session()
                    session.use("shop")
                    if self._world.plan.compressed:
                        session.execute("SET SESSION binlog_transaction_compression = ON")
                # The schemas as of a first start can't be read if a table is altered in that moment.
                begun = all(topic.begins for topic in self._world.checker.topics.values())
                if self._world.plan.ddl and begun and self._rng.random() < _DDL:
                    self._alter(session)
                self._transaction(session)
            except (ServerDown, SqlError):
                if session is not None and session.alive:
                    session.close()  # with its locks
                session = None
            await asyncio.sleep(self._rng.expovariate(self._rate))

    def _transaction(self, session: Session) -> None:
        rng = self._rng
        if self._world.plan.xa and rng.random() < _XA:
            self._xa(session, rng)
            return
        session.begin()
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            self._change(session, rng)
        if rng.random() < 0.1:
            session.savepoint("s")
            self._change(session, rng)
            session.rollback_to("s")
        if rng.random() < 0.05:
            session.rollback()
        else:
            session.commit()

    def _xa(self, session: Session, rng: random.Random) -> None:
        """Runs an XA transaction; if it is prepared first, it, or one before it, is decided then."""
        self._xids += 1
        xid = f"'x{self._xids}'"
        session.execute(f"XA START {xid}")
        for _ in range(rng.choice((1, 2))):
            self._change(session, rng)
        session.execute(f"XA END {xid}")
        if rng.random() < 0.3:
            session.execute(f"XA COMMIT {xid} ONE PHASE")
            return
        session.execute(f"XA PREPARE {xid}")
        self._prepared.append(xid)
        while self._prepared and rng.random() < 0.7:
            decided = self._prepared.pop(0)
            session.execute(f"XA {'COMMIT' if rng.random() < 0.8 else 'ROLLBACK'} {decided}")

    def _alter(self, session: Session) -> None:
        """Adds a column to a table, at any place, or drops one that was added."""
        rng = self._rng
        table, self._altered = rng.choice(TABLES), self._altered + 1
        added = [name for name in session.columns(table) if name not in COLUMNS]
        if added and rng.random() < 0.5:
            session.execute(f"ALTER TABLE {table} DROP COLUMN {rng.choice(added)}")
        else:
            kind, place = rng.choice(("INT", "VARCHAR(20)", "DATETIME")), rng.choice(("", "FIRST", "AFTER id"))
            session.execute(f"ALTER TABLE {table} ADD COLUMN x{self._altered} {kind} {place}")

    def _change(self, session: Session, rng: random.Random) -> None:
        table, key = rng.choice(TABLES), rng.randrange(self._keys)
        values = {"name": f"n{rng.randrange(1000)}", "n": rng.getrandbits(40)}
        if self._world.plan.parks and rng.random() < _LARGE:
            values["name"] = f"{rng.getrandbits(12_000):x}"
        if session.get(table, key) is None:
            session.insert(table, {"id": key, **values})
        elif rng.random() < 0.3:
            session.delete(table, key)
        else:
            session.update(table, key, values)

    def large(self, rows: int) -> None:
        """Runs one transaction of this many rows."""
        if not self._world.mysql.running:
            return
        session = self._world.mysql.session()
        session.use("shop")
        session.begin()
        for first in range(0, rows, _PART):
            keys = range(self._next + first, self._next + min(first + _PART, rows))
            session.insert(self._rng.choice(TABLES), *({"id": key, "name": "large", "n": first} for key in keys))
        self._next += rows
        session.commit()
        session.close()


def without_added(value: bytes) -> bytes:
    """Returns a message without columns that clients add and drop: rows that were published before lack them."""
    message = orjson.loads(value)
    for rows in (message["data"], message["old"]):
        for row in rows or ():
            for name in row.keys() - set(COLUMNS):
                del row[name]
    return orjson.dumps(message)
