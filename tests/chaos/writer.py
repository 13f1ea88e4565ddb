"""The writer of the chaos suite: changes rows all the time, whatever becomes of the server."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pymysql

TABLES = ("orders", "parts")
KEYS = 400
BULK = 3000
"""Rows of a large statement."""


def create(server: Any, schema: str) -> None:
    """The schema and its tables, empty; daemons that begin with the oldest binlog need not read what came before."""
    server.sql("FLUSH BINARY LOGS")
    server.sql(f"PURGE BINARY LOGS TO '{server.sql('SHOW BINARY LOGS')[-1][0]}'")
    server.sql(f"CREATE DATABASE {schema} CHARACTER SET utf8mb4")
    for table in TABLES:
        server.sql(f"CREATE TABLE {schema}.{table} (id INT PRIMARY KEY, name VARCHAR(60), n BIGINT NOT NULL)")


class Writer(threading.Thread):
    """One-row transactions, bulk statements, changed keys, deletes, and now and then several thousand rows at once.

    What was committed is not kept: the server's binlog and tables say it, also after a crash of the server.
    """

    def __init__(self, server: Any, schema: str, seed: int, pause: float = 0.02) -> None:
        super().__init__(name="writer")
        self._server, self._schema, self._pause = server, schema, pause
        self._random = random.Random(seed)
        self._over = threading.Event()
        self.transactions = self.reconnects = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._over.is_set():
                try:
                    with self.connect() as connection, connection.cursor() as cursor:
                        self._write(connection, cursor)
                except pymysql.err.Error:  # restarted or crashed: what was committed is in the binlog
                    self.reconnects += 1
                    self._over.wait(0.2)
        except BaseException as error:
            self.error = error

    def connect(self, **more: Any) -> Any:
        options = {**self._server.connection("root"), "database": self._schema, "charset": "utf8mb4"}
        return pymysql.connect(**options, connect_timeout=5, read_timeout=30, write_timeout=30, **more)

    def _write(self, connection: Any, cursor: Any) -> None:
        while not self._over.wait(self._pause):
            for _ in range(self._random.choice((1, 1, 1, 5))):
                self._change(cursor)
            connection.commit()
            self.transactions += 1

    def _change(self, cursor: Any) -> None:
        pick, key, n = self._random.random(), self._random.randrange(KEYS), self.transactions
        if pick < 0.40:
            cursor.execute("REPLACE INTO orders VALUES (%s, %s, %s)", (key, f"家庭保洁 {key}", n))
        elif pick < 0.75:
            cursor.execute("UPDATE orders SET n = n + 1, name = %s WHERE id = %s", (f"搬家 {n}", key))
        elif pick < 0.85:
            cursor.execute("DELETE FROM orders WHERE id = %s", (key,))
        elif pick < 0.985:
            cursor.execute("UPDATE IGNORE orders SET id = %s WHERE id = %s", (self._random.randrange(KEYS), key))
        elif pick < 0.998:
            cursor.execute("UPDATE orders SET n = n + 1 WHERE id < %s", (key,))
        else:
            self.bulk(cursor, n)

    def bulk(self, cursor: Any, n: int) -> None:
        """Several thousand rows in one transaction."""
        first = self._random.randrange(BULK)
        values = ",".join(f"({i},'part {n}',{n})" for i in range(first, first + BULK))
        cursor.execute(f"REPLACE INTO parts VALUES {values}")

    def stop(self) -> None:
        """Ends the writing, and puts a last row into each table."""
        self.end()
        if self.error is not None:
            raise self.error
        deadline = time.monotonic() + 60
        while True:
            try:
                with self.connect(autocommit=True) as connection, connection.cursor() as cursor:
                    for table in TABLES:
                        cursor.execute(f"REPLACE INTO {table} VALUES (1000000, 'the last', {self.transactions})")
                    return
            except pymysql.err.Error:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def end(self) -> None:
        """Without a last row, for a run that failed."""
        self._over.set()
        if self.ident is not None:
            self.join()
