"""Random statements of several clients on the model of MySQL, read by the daemon's source through restarts, rotations
and connections that break: every change that was committed is read once, in order."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

from headrace.errors import SourceError
from headrace.model import Position
from sim.mysql.errors import ServerDown, SqlError
from sim.mysql.server import Server
from sim.mysql.session import Session
from tests.sim.reading import Reading, model, seen, serving, source_of, truth, until

TABLES = ("a", "b", "c")


class Client:
    """A client that does something at random."""

    def __init__(self, server: Server, rng: random.Random) -> None:
        self.server, self.rng = server, rng
        self.session: Session = server.session()
        self.xid = ""

    def step(self) -> None:
        """Does the next thing. What the server refuses is left undone."""
        rng = self.rng
        if not self.session.alive:
            self.session, self.xid = self.server.session(), ""
        self.session.schema = "shop"
        do = rng.choices(
            (self.change, self.begin, self.commit, self.savepoint, self.rollback, self.xa, self.alter, self.rotate),
            (60, 8, 14, 4, 3, 5, 3, 2),
        )[0]
        with suppress(SqlError):
            do()

    def change(self) -> None:
        rng, table = self.rng, self.rng.choice(TABLES)
        key, text = rng.randrange(40), "".join(rng.choices("aé字\0 '", k=rng.choice((0, 3, 300))))
        kind = rng.randrange(6)
        if kind < 2:
            values = {"id": key, "v": rng.choice((None, text)), "n": rng.randrange(-9, 9)}
            self.session.insert(table, values, *({"id": key + n, "v": text} for n in range(1, rng.choice((1, 2, 60)))))
        elif kind == 2:
            self.session.update(table, {"n": rng.randrange(-9, 9)}, {"v": text})
        elif kind == 3:
            self.session.execute(f"UPDATE {table} SET id = {rng.randrange(80)}, n = n + 1 WHERE id = {key}")
        elif kind == 4:
            self.session.execute(f"DELETE FROM {table} WHERE id BETWEEN {key} AND {key + rng.randrange(9)}")
        else:
            on = f"ON DUPLICATE KEY UPDATE n = VALUES(n) + {key}"
            self.session.execute(f"INSERT INTO {table} (id, n) VALUES ({key}, 1), ({key + 1}, 2) {on}")

    def begin(self) -> None:
        self.session.begin()
        self.session.settings["binlog_transaction_compression"] = self.rng.random() < 0.3

    def commit(self) -> None:
        self.session.commit()

    def rollback(self) -> None:
        self.session.rollback()

    def savepoint(self) -> None:
        name = self.rng.choice("xyz")
        if self.rng.random() < 0.6:
            self.session.savepoint(name)
        else:
            self.session.rollback_to(name)

    def xa(self) -> None:
        if self.xid:
            done, self.xid = self.xid, ""
            self.rng.choice((self.session.xa_commit, self.session.xa_rollback))(done)
            return
        name = f"xa{self.rng.getrandbits(40)}"
        self.session.xa_start(name)
        with suppress(SqlError):
            self.change()
        self.session.xa_end(name)
        if self.rng.random() < 0.3:
            self.session.xa_commit(name, one_phase=True)
        else:
            self.session.xa_prepare(name)
            self.xid = name

    def alter(self) -> None:
        table, name = self.rng.choice(TABLES), f"c{self.rng.randrange(4)}"
        kind = self.rng.choice(("INT", "VARCHAR(9) NOT NULL DEFAULT 'x'", "DECIMAL(6,2)", "DATETIME(3)", "BLOB"))
        place = self.rng.choice(("", " FIRST", " AFTER v"))
        self.session.ddl(
            self.rng.choice(
                (
                    f"ALTER TABLE {table} ADD COLUMN {name} {kind}{place}",
                    f"ALTER TABLE {table} DROP COLUMN {name}",
                    f"ALTER TABLE {table} CHANGE {name} {name}x {kind}",
                    f"ALTER TABLE {table} MODIFY v LONGTEXT",
                    f"TRUNCATE TABLE {table}",
                )
            )
        )

    def rotate(self) -> None:
        self.server.rotate()


@pytest.mark.parametrize("seed", range(6))
async def test_every_change_of_random_clients_is_read_once_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    options: dict[str, Any] = {"binlog_row_metadata": rng.choice(("MINIMAL", "FULL")), "max_binlog_size": 20_000}
    server = model(1_000 + seed, **options)
    first = server.session()
    first.ddl("CREATE DATABASE shop")
    first.ddl("CREATE TABLE shop.a (id INT PRIMARY KEY, v TEXT, n BIGINT NOT NULL DEFAULT 0)")
    first.ddl("CREATE TABLE shop.b (id INT, v TEXT, n INT UNSIGNED, UNIQUE KEY (id, n))")
    first.ddl("CREATE TABLE shop.c (v VARCHAR(300), id INT, n INT NOT NULL, PRIMARY KEY (n, id)) CHARSET utf8mb4")
    clients = [Client(server, rng) for _ in range(3)]
    position: Position | None = None
    found, entries = [], list[Any]()
    async with serving(server) as port:
        source = source_of(port)
        for round_ in range(5):
            read = Reading(await source.open(position, entries=entries))
            entries += read.opened.take_entries()
            breaks = round_ < 4 and rng.random() < 0.7
            await until(lambda: bool(server.dumps))
            try:
                for number in range(60):
                    rng.choice(clients).step()
                    if breaks and number == 30:
                        connection = next(one for one in server.connections if one.dump is server.dumps[-1])
                        connection.cut(after=rng.randrange(3_000))
                    await read.stream.read() if number % 9 == 8 and not breaks else None
                await read.to_end(server)
            except SourceError:
                assert breaks
            position = read.stream.position()
            entries += read.stream.take_entries()
            found += seen(read.changes)
            await read.stream.close()
            if rng.random() < 0.3:
                server.restart()
                with pytest.raises(ServerDown):
                    clients[0].session.begin()
        read = Reading(await source.open(position, entries=entries))
        await read.to_end(server)
        found += seen(read.changes)
        await read.stream.close()
    assert found == truth(server.history)
    assert len(found) > 100
    assert server.unknown == []
