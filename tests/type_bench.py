"""A server on which columns of any types are made into a table that is decoded and compared with SELECT."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from devstack import Stack
from tests import versions
from tests.binlogs import Known, connect, declared, decode, final_rows, image, new_file, select
from tests.table_reads import rows_now

Columns = dict[str, list[str]]
"""The type of each column, and literals of values."""


def without_width(kind: str) -> str:
    """MariaDB's types without widths of display and remarks on their storage, which the binlog does not have."""
    kind = kind.replace(" /* mariadb-5.3 */", "")
    return re.sub(r"((?:int|year))\(\d+\)", r"\1", kind)


class Bench:
    """One server with a schema in it, and what turns columns into a compared table."""

    def __init__(self, server: Any, *, mariadb: bool) -> None:
        self.server, self.mariadb = server, mariadb
        self.connection = connect(server)
        self.cursor = self.connection.cursor()
        self.run("CREATE DATABASE types", "USE types")
        self.describes = bool(self.cursor.execute("SHOW VARIABLES LIKE 'binlog_row_metadata'"))
        """Whether the binlog can have the columns' names."""

    @property
    def leaves_generated_out(self) -> bool:
        """Whether images of changed and deleted rows lack generated columns, whatever binlog_row_image says."""
        self.cursor.execute("SELECT @@version")
        numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", self.cursor.fetchone()[0])
        assert numbers
        major, minor, patch = map(int, numbers.groups())
        return self.mariadb and major * 10000 + minor * 100 + patch >= versions.LEAVES_GENERATED_OUT

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.cursor.execute(statement)

    def known(self, *, reported: bool = False) -> Known | None:
        """The table as declared, where the decoder has to be `reported` or the binlog describes nothing."""
        reported = reported or not self.describes
        return {("types", "t"): declared(self.cursor, "types", "t")} if reported else None

    def compare(
        self, columns: Columns, *, extra: str = "", reported: bool = False, defaults: str = "", inserts: bool = False
    ) -> None:
        """Makes a table of these columns, `id` before them and a NULL row at its end; inserts, updates and deletes
        rows, or only `inserts` them, and compares. Without `reported` the decoder knows only what the binlog says,
        where it says something."""
        made = [f"c{i} {kind}" for i, kind in enumerate(columns)]
        self.run("DROP TABLE IF EXISTS t")
        path = new_file(self.server, self.cursor)
        self.run(f"CREATE TABLE t (id INT PRIMARY KEY, {', '.join(made)}) {defaults or 'DEFAULT CHARSET utf8mb4'}")
        height = max(map(len, columns.values()))
        names = [f"c{i}" for i, values in enumerate(columns.values()) if values]
        for row in range(height):
            literals = [values[row % len(values)] for values in columns.values() if values]
            self.run(f"INSERT INTO t (id, {', '.join(names)}) VALUES ({row}, {', '.join(literals)})")
        nullable = [f"c{i}" for i, kind in enumerate(columns) if "NOT NULL" not in kind and columns[kind]]
        if len(nullable) == len(names):
            self.run("INSERT INTO t (id) VALUES (-1)")
        if not inserts:
            self.run("UPDATE t SET id = id + 1000 WHERE id % 2 = 0", f"DELETE FROM t WHERE id = {height // 2 * 2 - 1}")
        if extra:
            self.run(extra)
        table = declared(self.cursor, "types", "t")
        expected = select(self.cursor, table, mariadb=self.mariadb)
        new_file(self.server, self.cursor)
        changes = decode(path, schema="types", known=self.known(reported=reported))
        assert changes
        got = image(changes, table)
        assert got.keys() == expected.keys()
        kinds = ["id", *columns]
        for key, row in expected.items():
            for i, value in enumerate(row):
                assert got[key][i] == value, f"{kinds[i]}, row {key}"
        read = {row[0]: row for row in rows_now(self.server, changes[-1].schema)}
        streamed = final_rows(changes)
        assert read.keys() == streamed.keys()
        for number, values in streamed.items():
            for i, value in enumerate(values):
                # by its text, in which 1 is not 1.0 and 0.0 not -0.0
                assert repr(read[number][i]) == repr(value), f"{kinds[i]}, row {number}, read from the table"
        if self.describes and not reported:
            for column, known in zip(changes[0].schema.columns, table.columns, strict=True):
                assert (column.name, column.unsigned, column.nullable) == (known.name, known.unsigned, known.nullable)
                assert (column.labels, column.sql_type) == (known.labels, known.sql_type), known.mysql_type
                if column.kind not in ("json", "float", "double", "longtext", "geometry", "vector"):
                    assert (column.mysql_type, column.charset) == (without_width(known.mysql_type), known.charset)
                    assert (column.length, column.scale) == (known.length, known.scale), known.mysql_type


mysql_only = pytest.mark.parametrize("bench", ["mysql"], indirect=True)
mariadb_only = pytest.mark.parametrize("bench", versions.MARIADB, indirect=True)


def open_bench(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Bench]:
    """For a module: on a server of its own, of the kind that the fixture's parameter names."""
    larger = () if request.param == "mysql" else ("--max-allowed-packet=64M", "--innodb-log-file-size=256M")
    server = stack.sql(request.param, None, *larger, name=f"{request.module.__name__}-{request.param}")
    bench = Bench(server, mariadb=request.param.startswith("mariadb"))
    yield bench
    bench.connection.close()
    server.kill()


since_57 = pytest.mark.parametrize("bench", versions.SINCE_57, indirect=True)
