"""Fills a MySQL server with the measured tables; each workload has its own binlog files.

W1 and W2L are the workloads of the race: inserts, updates and deletes of a table with a JSON column, in bulk and in
one-row transactions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from benchmarks import wide

SCHEMA = "bench"
W1_ROWS, W2L_ROWS, WIDE_ROWS, MANY_ROWS = 560_000, 250_000, 100_000, 250_000
MANY_TABLES = 5_000
_COLUMNS_MIXED = (
    "id BIGINT PRIMARY KEY, k INT NOT NULL, name VARCHAR(64), price DECIMAL(10,2), created DATETIME(3), note TEXT,"
    " doc JSON, flag TINYINT UNSIGNED"
)
_BLOCK = (5_600, 50, 5, 1)
"""Rows of a block of W1, and how many transactions of 100 rows insert, update and delete them."""
_ROW_BYTES = 290
"""Bytes of an inserted row in the binlog."""
_TOGETHER = 200
"""Statements that are sent at a time."""
_COLUMNS = (
    "id BIGINT AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL, name VARCHAR(64), price DECIMAL(10,2), created DATETIME(3),"
    " note TEXT, flag TINYINT"
)
_COLUMNS_JSON = f"{_COLUMNS}, doc JSON"
_NOTE = "开荒保洁与日常维护, booked online and paid on site; "


@dataclass(frozen=True, slots=True)
class Workload:
    """Rows of one table, and their position in the binlog."""

    name: str
    table: str
    rows: int
    file: str = ""
    next_file: str = ""
    """The file after its own."""

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON types only."""
        return asdict(self)


def _values(first: int, count: int, *, json: bool) -> Iterator[str]:
    for i in range(first, first + count):
        row = (
            f"({i * 7 % 100_000},'家庭保洁 {i}',{i % 10_000}.{i % 100:02d},'2026-11-21 10:{i % 60:02d}:{i * 7 % 60:02d}"
            f".{i % 1000:03d}','{_NOTE}{_NOTE}{_NOTE}{i}',{i % 2}"
        )
        yield row + (f',\'{{"city": "北京", "n": {i}, "tags": ["hot", {i % 9}]}}\')' if json else ")")


def mixed_row(i: int) -> str:
    """Returns a row of W1 and W2L as SQL: its text has 100 to 140 characters, its JSON three keys."""
    return (
        f"({i},{i * 7 % 100_000},'家庭保洁 {i}',{i % 10_000}.{i % 100:02d},'2026-11-21 10:{i % 60:02d}:{i * 7 % 60:02d}"
        f".{i % 1000:03d}','{(_NOTE * 4)[: 100 + i * 7 % 41]}',"
        f'\'{{"city": "北京", "n": {i}, "tags": ["hot", {i % 9}]}}\',{i % 200})'
    )


def w1_statements(table: str, rows: int) -> Iterator[str]:
    """Yields 56 transactions of 100 rows: 50 insert, 5 update and 1 deletes."""
    size, inserts, updates, deletes = _BLOCK
    for first in range(0, rows // size * inserts * 100, inserts * 100):
        for start in range(first, first + inserts * 100, 100):
            yield f"INSERT INTO {SCHEMA}.{table} VALUES {','.join(map(mixed_row, range(start, start + 100)))}"
        for start in range(first, first + updates * 100, 100):
            yield _changed(table, f"BETWEEN {start} AND {start + 99}")
        for start in range(first + updates * 100, first + (updates + deletes) * 100, 100):
            yield f"DELETE FROM {SCHEMA}.{table} WHERE id BETWEEN {start} AND {start + 99}"


def w2l_statements(table: str, rows: int) -> Iterator[str]:
    """Yields 10 transactions of one row: 6 insert, 3 update and 1 deletes."""
    for first in range(0, rows // 10 * 6, 6):
        inserts = [f"INSERT INTO {SCHEMA}.{table} VALUES {mixed_row(i)}" for i in range(first, first + 6)]
        yield from inserts[:3]
        yield _changed(table, f"= {first}")
        yield from inserts[3:5]
        yield _changed(table, f"= {first + 3}")
        yield f"DELETE FROM {SCHEMA}.{table} WHERE id = {first + 1}"
        yield inserts[5]
        yield _changed(table, f"= {first + 5}")


def _changed(table: str, ids: str) -> str:
    changes = "k = k + 1, price = price + 1, created = '2026-11-22 09:30:00.250'"
    return f"UPDATE {SCHEMA}.{table} SET {changes} WHERE id {ids}"


class Filler:
    """Writes the workloads through one connection."""

    def __init__(self, server: Any) -> None:
        self._connection = pymysql.connect(
            **server.connection("root"), autocommit=True, charset="utf8mb4", client_flag=CLIENT.MULTI_STATEMENTS
        )
        self._cursor = self._connection.cursor()
        self._cursor.execute(f"CREATE DATABASE IF NOT EXISTS {SCHEMA}")

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def _begin(self, table: str, *, json: bool) -> tuple[str, str]:
        """Creates a new table and a new binlog file; returns the file's name and the table's column list."""
        self._cursor.execute(f"CREATE TABLE {SCHEMA}.{table} ({_COLUMNS_JSON if json else _COLUMNS})")
        return self._new_file(), "k, name, price, created, note, flag" + (", doc" if json else "")

    def _new_file(self) -> str:
        self._cursor.execute("FLUSH BINARY LOGS")
        self._cursor.execute("SHOW BINARY LOG STATUS")
        return str(self._cursor.fetchone()[0])

    def _run_all(self, statements: list[str]) -> None:
        self._cursor.execute(";".join(statements))
        while self._cursor.nextset():
            """Each statement is a transaction, and has an answer."""

    def w1(self, rows: int = W1_ROWS, table: str = "w1") -> Workload:
        """Writes bulk: 500 of 560 rows are inserted, 50 updated and 10 deleted, 100 a transaction, about 30 an
        event."""
        return self._mixed(table, rows // _BLOCK[0] * _BLOCK[0], w1_statements(table, rows), 10)

    def w2l(self, rows: int = W2L_ROWS, table: str = "w2l") -> Workload:
        """Writes one-row transactions: 60 % insert, 30 % update, 10 % delete."""
        return self._mixed(table, rows // 10 * 10, w2l_statements(table, rows), _TOGETHER)

    def w1_compressed(self, rows: int = W1_ROWS) -> Workload:
        """Writes W1 in compressed transactions."""
        self._cursor.execute("SET binlog_transaction_compression = ON")
        workload = self.w1(rows, "w1z")
        self._cursor.execute("SET binlog_transaction_compression = OFF")
        return workload

    def many(self, rows: int) -> Workload:
        """Writes one-row transactions into random tables of 5,000, more than the server keeps open by default."""
        self.relax()
        self._cursor.execute("SET GLOBAL innodb_file_per_table = OFF")  # 5,000 files take minutes
        self._run_all(
            [f"CREATE TABLE {SCHEMA}.many{i} ({_COLUMNS_MIXED}, a INT, b VARCHAR(20))" for i in range(MANY_TABLES)]
        )
        file, rng, at = self._new_file(), random.Random("many"), 0
        while at < rows:
            some = [
                f"INSERT INTO {SCHEMA}.many{rng.randrange(MANY_TABLES)} VALUES {mixed_row(i)[:-1]},{i},'b{i}')"
                for i in range(at, min(at + _TOGETHER, rows))
            ]
            self._run_all(some)
            at += len(some)
        return Workload("many", r"many\d+", rows, file, self._new_file())

    def wide(self, rows: int) -> Workload:
        """Writes WIDE; see benchmarks/wide.py."""
        self.relax()
        for statement in wide.tables(SCHEMA, "wide"):
            self._cursor.execute(statement)
        file, statements = self._new_file(), wide.transactions(SCHEMA, "wide", rows)
        while some := list(islice(statements, 10)):
            self._run_all(some)
        return Workload("wide", r"wide\d+", rows, file, self._new_file())

    def old(self, size: int, table: str = "old") -> Workload:
        """Writes this many bytes of binlog with rows of that kind, which the server does not keep elsewhere."""
        self.relax()
        seed, each = f"{table}_seed", 1000
        self._cursor.execute("SET sql_log_bin = OFF")
        self._cursor.execute(f"CREATE TABLE {SCHEMA}.{seed} ({_COLUMNS_MIXED})")
        self._cursor.execute(f"INSERT INTO {SCHEMA}.{seed} VALUES {','.join(map(mixed_row, range(each)))}")
        self._cursor.execute("SET sql_log_bin = ON")
        self._cursor.execute(f"CREATE TABLE {SCHEMA}.{table} ({_COLUMNS_MIXED}) ENGINE = BLACKHOLE")
        file, rows = self._new_file(), 0
        for _ in range(size // (each * _ROW_BYTES) + 1):
            self._cursor.execute(f"INSERT INTO {SCHEMA}.{table} SELECT * FROM {SCHEMA}.{seed}")
            rows += each
        return Workload(table, table, rows, file, self._new_file())

    def steady(self, table: str) -> list[str]:
        """Creates a table, and returns statements of one row that can be repeated endlessly: 6 insert, 3 update and 1
        deletes."""
        self._cursor.execute(f"CREATE TABLE {SCHEMA}.{table} ({_COLUMNS_MIXED})")
        self._cursor.execute(f"ALTER TABLE {SCHEMA}.{table} MODIFY id BIGINT AUTO_INCREMENT")
        self.relax()
        inserts = [f"INSERT INTO {SCHEMA}.{table} VALUES (NULL,{mixed_row(i).partition(',')[2]}" for i in range(6)]
        update = _changed(table, "= LAST_INSERT_ID()")
        delete = f"DELETE FROM {SCHEMA}.{table} WHERE id = LAST_INSERT_ID()"
        return [*inserts[:2], update, *inserts[2:4], update, *inserts[4:], update, delete]

    def _mixed(self, table: str, rows: int, statements: Iterator[str], together: int) -> Workload:
        self.relax()
        self._cursor.execute(f"CREATE TABLE {SCHEMA}.{table} ({_COLUMNS_MIXED})")
        file = self._new_file()
        while some := list(islice(statements, together)):
            self._run_all(some)
        return Workload(table, table, rows, file, self._new_file())

    def bulk(self, table: str, rows: int, *, json: bool = False, per_transaction: int = 1000) -> Workload:
        """Writes transactions of many rows: the server writes events of about 34."""
        file, columns = self._begin(table, json=json)
        for first in range(0, rows, per_transaction):
            values = ",".join(_values(first, min(per_transaction, rows - first), json=json))
            self._cursor.execute(f"INSERT INTO {SCHEMA}.{table} ({columns}) VALUES {values}")
        return Workload(table, table, rows, file)

    def one_transaction(self, table: str, rows: int) -> Workload:
        """Writes all rows in one transaction."""
        file, columns = self._begin(table, json=False)
        self._cursor.execute("SET GLOBAL max_binlog_cache_size = 18446744073709547520")
        self._connection.begin()
        for first in range(0, rows, 5000):
            values = ",".join(_values(first, 5000, json=False))
            self._cursor.execute(f"INSERT INTO {SCHEMA}.{table} ({columns}) VALUES {values}")
        self._connection.commit()
        return Workload(table, table, rows, file)

    def one_large_transaction(self, table: str, rows: int) -> Workload:
        """Does the same with so many rows that the server must make them itself, from 10,000 of another table."""
        self.bulk(f"{table}_seed", 10_000)
        file, columns = self._begin(table, json=False)
        self._connection.begin()
        for _ in range(rows // 10_000):
            self._cursor.execute(
                f"INSERT INTO {SCHEMA}.{table} ({columns}) SELECT {columns} FROM {SCHEMA}.{table}_seed"
            )
        self._connection.commit()
        return Workload(table, table, rows // 10_000 * 10_000, file)

    def stored(self, table: str, rows: int) -> Workload:
        """Stores rows with a JSON column that no binlog has, repeated every 10,000."""
        self._cursor.execute("SET sql_log_bin = OFF")
        seed, each = f"{table}_seed", min(rows, 10_000)
        self.bulk(seed, each, json=True)
        _, columns = self._begin(table, json=True)
        for _ in range(rows // each):
            self._cursor.execute(
                f"INSERT INTO {SCHEMA}.{table} ({columns}) SELECT {columns} FROM {SCHEMA}.{seed} ORDER BY id"
            )
        self._cursor.execute(f"ANALYZE TABLE {SCHEMA}.{table}")
        self._cursor.fetchall()
        self._cursor.execute("SET sql_log_bin = ON")
        return Workload(table, table, rows // each * each)

    def logged_only(self, table: str, rows_per_transaction: int) -> list[str]:
        """Creates a table whose changes are in the binlog, and which stores no row; returns statements that write such
        transactions, as `bulk` does, and cost the server little."""
        seed, count = f"{table}_seed", 10
        self.bulk(seed, count * rows_per_transaction, json=True, per_transaction=rows_per_transaction)
        self._cursor.execute(f"CREATE TABLE {SCHEMA}.{table} ({_COLUMNS_JSON}) ENGINE = BLACKHOLE")
        starts = range(0, count * rows_per_transaction, rows_per_transaction)
        return [
            f"INSERT INTO {SCHEMA}.{table} SELECT * FROM {SCHEMA}.{seed}"
            f" WHERE id > {start} AND id <= {start + rows_per_transaction}"
            for start in starts
        ]

    def stamped(self, table: str) -> list[str]:
        """Creates a table of rows that contain when the server began them, in microseconds since 1970 UTC; returns a
        statement that adds one."""
        self._cursor.execute(
            f"CREATE TABLE {SCHEMA}.{table} (id BIGINT AUTO_INCREMENT PRIMARY KEY, at_us BIGINT NOT NULL, note TEXT)"
        )
        microseconds = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED)"
        return [f"INSERT INTO {SCHEMA}.{table} (at_us, note) VALUES ({microseconds}, '{_NOTE}')"]

    def relax(self) -> None:
        """Lets the server leave disk writes to the system, because they are not measured."""
        self._cursor.execute("SET GLOBAL sync_binlog = 0, GLOBAL innodb_flush_log_at_trx_commit = 0")

    def one_statement(self, table: str, rows: int) -> Workload:
        """Writes rows of 200 bytes in the binlog, all of one statement."""
        self._cursor.execute(f"CREATE TABLE {SCHEMA}.{table} (id INT PRIMARY KEY, pad VARCHAR(250))")
        file = self._new_file()
        self._cursor.execute(f"SET SESSION cte_max_recursion_depth = {rows}")
        self._cursor.execute(
            f"INSERT INTO {SCHEMA}.{table} WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i <"
            f" {rows}) SELECT i, RPAD(CONCAT('row ', i, ' '), 194, 'booked online ') FROM n"
        )
        return Workload(table, table, rows, file)
