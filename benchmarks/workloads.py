"""Fills a MySQL server with the tables that are measured; each workload has binlog files of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pymysql

SCHEMA = "bench"
_COLUMNS = (
    "id BIGINT AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL, name VARCHAR(64), price DECIMAL(10,2), created DATETIME(3),"
    " note TEXT, flag TINYINT"
)
_COLUMNS_JSON = f"{_COLUMNS}, doc JSON"
_NOTE = "开荒保洁与日常维护, booked online and paid on site; "


@dataclass(frozen=True, slots=True)
class Workload:
    """Rows of one table, and where they stand in the binlog."""

    name: str
    table: str
    rows: int
    file: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return asdict(self)


def _values(first: int, count: int, *, json: bool) -> Iterator[str]:
    for i in range(first, first + count):
        row = (
            f"({i * 7 % 100_000},'家庭保洁 {i}',{i % 10_000}.{i % 100:02d},'2026-11-21 10:{i % 60:02d}:{i * 7 % 60:02d}"
            f".{i % 1000:03d}','{_NOTE}{_NOTE}{_NOTE}{i}',{i % 2}"
        )
        yield row + (f',\'{{"city": "北京", "n": {i}, "tags": ["hot", {i % 9}]}}\')' if json else ")")


class Filler:
    """Writes the workloads through one connection."""

    def __init__(self, server: Any) -> None:
        self._connection = pymysql.connect(**server.connection("root"), autocommit=True, charset="utf8mb4")
        self._cursor = self._connection.cursor()
        self._cursor.execute(f"CREATE DATABASE IF NOT EXISTS {SCHEMA}")

    def close(self) -> None:
        """Ends the connection."""
        self._connection.close()

    def _begin(self, table: str, *, json: bool) -> tuple[str, str]:
        """A new table and a new binlog file; the file's name and the table's column list."""
        columns = _COLUMNS_JSON if json else _COLUMNS
        self._cursor.execute(f"CREATE TABLE {SCHEMA}.{table} ({columns})")
        self._cursor.execute("FLUSH BINARY LOGS")
        self._cursor.execute("SHOW BINARY LOG STATUS")
        file = self._cursor.fetchone()[0]
        return file, "k, name, price, created, note, flag" + (", doc" if json else "")

    def bulk(self, table: str, rows: int, *, json: bool = False, per_transaction: int = 1000) -> Workload:
        """Transactions of many rows: the server writes events of about 34."""
        file, columns = self._begin(table, json=json)
        for first in range(0, rows, per_transaction):
            values = ",".join(_values(first, min(per_transaction, rows - first), json=json))
            self._cursor.execute(f"INSERT INTO {SCHEMA}.{table} ({columns}) VALUES {values}")
        return Workload(table, table, rows, file)

    def compressed(self, table: str, rows: int) -> Workload:
        """The same in compressed transactions."""
        self._cursor.execute("SET binlog_transaction_compression = ON")
        workload = self.bulk(table, rows)
        self._cursor.execute("SET binlog_transaction_compression = OFF")
        return workload

    def singles(self, table: str, rows: int) -> Workload:
        """One-row transactions: five events a row."""
        self.relax()
        file, columns = self._begin(table, json=False)
        for value in _values(0, rows, json=False):
            self._cursor.execute(f"INSERT INTO {SCHEMA}.{table} ({columns}) VALUES {value}")
        return Workload(table, table, rows, file)

    def one_transaction(self, table: str, rows: int) -> Workload:
        """All rows in one transaction."""
        file, columns = self._begin(table, json=False)
        self._cursor.execute("SET GLOBAL max_binlog_cache_size = 18446744073709547520")
        self._connection.begin()
        for first in range(0, rows, 5000):
            values = ",".join(_values(first, 5000, json=False))
            self._cursor.execute(f"INSERT INTO {SCHEMA}.{table} ({columns}) VALUES {values}")
        self._connection.commit()
        return Workload(table, table, rows, file)

    def one_large_transaction(self, table: str, rows: int) -> Workload:
        """The same with so many rows that the server has to make them itself, out of 10,000 of another table."""
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
        """Rows with a JSON column that no binlog has, repeated every 10,000."""
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
        """A table whose changes stand in the binlog, and which keeps no row; statements that write such transactions,
        as `bulk` does, and cost the server little."""
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
        """A table of rows that say when the server began with them, in microseconds since 1970 UTC; a statement that
        adds one."""
        self._cursor.execute(
            f"CREATE TABLE {SCHEMA}.{table} (id BIGINT AUTO_INCREMENT PRIMARY KEY, at_us BIGINT NOT NULL, note TEXT)"
        )
        microseconds = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED)"
        return [f"INSERT INTO {SCHEMA}.{table} (at_us, note) VALUES ({microseconds}, '{_NOTE}')"]

    def relax(self) -> None:
        """Has the server leave it to the system when it writes to the disk, which is not what is measured."""
        self._cursor.execute("SET GLOBAL sync_binlog = 0, GLOBAL innodb_flush_log_at_trx_commit = 0")

    def one_statement(self, table: str, rows: int) -> Workload:
        """Rows of 200 bytes in the binlog, all of one statement."""
        self._cursor.execute(f"CREATE TABLE {SCHEMA}.{table} (id INT PRIMARY KEY, pad VARCHAR(250))")
        self._cursor.execute("FLUSH BINARY LOGS")
        self._cursor.execute("SHOW BINARY LOG STATUS")
        file = self._cursor.fetchone()[0]
        self._cursor.execute(f"SET SESSION cte_max_recursion_depth = {rows}")
        self._cursor.execute(
            f"INSERT INTO {SCHEMA}.{table} WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i <"
            f" {rows}) SELECT i, RPAD(CONCAT('row ', i, ' '), 194, 'booked online ') FROM n"
        )
        return Workload(table, table, rows, file)
