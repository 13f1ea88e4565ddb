"""Random tables and rows on real servers, three ways: our decoder, SELECT, and mysql-replication on the same binlog.

`HEADRACE_DIFFERENTIAL=500` in the environment runs so many tables on each server, with new random ones in each run.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from devstack import Stack
from headrace.model import Column, Operation, RowsChange
from headrace.mysql.second_opinion import known_error, same_value
from tests.binlogs import connect, declared, decode, image, new_file, select

pytestmark = [
    pytest.mark.server,
    pytest.mark.filterwarnings("ignore:'db' is deprecated"),  # mysql-replication's own
]

TABLES = int(os.environ.get("HEADRACE_DIFFERENTIAL", "0"))
ROUNDS = [40, pytest.param(120, marks=pytest.mark.long)]
CHARSETS = [
    "utf8mb4",
    "utf8mb3",
    "latin1",
    "gbk",
    "big5",
    "sjis",
    "ujis",
    "euckr",
    "gb2312",
    "koi8r",
    "cp1250",
    "greek",
]
"""Character sets that mysql-replication decodes too."""
OUR_CHARSETS = ["ucs2", "utf16", "utf16le", "utf32", "tis620", "cp932", "eucjpms", "macroman", "swe7", "armscii8"]

Declared = tuple[str, st.SearchStrategy[str]]
"""A column's type, and what makes literals of it."""


def text(limit: int) -> st.SearchStrategy[str]:
    letters = st.one_of(
        st.characters(codec="ascii"),
        st.characters(exclude_categories=("Cs",)),
        st.sampled_from("é€中文家電日本ー～한글ЖΩ😀"),
    )
    return st.text(letters, max_size=limit).map(lambda t: f"_utf8mb4 0x{t.encode().hex()}" if t else "''")


def binary(limit: int) -> st.SearchStrategy[str]:
    one = st.sampled_from([0, 32, 255]) | st.integers(0, 255)
    return st.lists(one, max_size=limit).map(lambda b: f"0x{bytes(b).hex()}" if b else "''")


def integer(bits: int, unsigned: bool) -> Declared:
    name = {8: "TINYINT", 16: "SMALLINT", 24: "MEDIUMINT", 32: "INT", 64: "BIGINT"}[bits]
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    return name + (" UNSIGNED" if unsigned else ""), st.integers(low, high).map(str)


def decimal(precision: int, scale: int) -> Declared:
    scale = min(scale, precision)

    def literal(digits: int) -> str:
        return f"{'-' if digits < 0 else ''}{Decimal(abs(digits)).scaleb(-scale):f}"

    limit = 10**precision - 1
    return f"DECIMAL({precision},{scale})", st.integers(-limit, limit).map(literal)


def temporal(name: str, fsp: int) -> Declared:
    micros = st.integers(0, 999_999).map(lambda m: f".{m:06d}"[: fsp + 1] if fsp else "")
    if name == "TIME":
        parts = st.tuples(
            st.sampled_from(["", "-"]), st.integers(0, 838), st.integers(0, 59), st.integers(0, 59), micros
        )
        made = parts.map(lambda p: f"'{p[0]}{p[1]:02d}:{p[2]:02d}:{p[3]:02d}{p[4]}'")
    else:
        first, last = (1971, 2037) if name == "TIMESTAMP" else (1, 9999)
        moments = st.datetimes(datetime.datetime(first, 1, 1), datetime.datetime(last, 12, 31))
        made = st.tuples(moments, micros).map(lambda p: f"'{p[0].isoformat(' ', 'seconds')}{p[1]}'")
        zero = ["'0000-00-00 00:00:00'"] + (
            ["'2026-00-00 01:02:03'", "'2026-11-00 00:00:00'"] if name == "DATETIME" else []
        )
        made = made | st.sampled_from(zero)
    return f"{name}({fsp})" if fsp else name, made


def labels(kind: str, members: list[str]) -> Declared:
    quoted = ",".join("'" + member.replace("\\", "\\\\").replace("'", "''") + "'" for member in members)
    top = (1 << len(members)) - 1 if kind == "SET" else len(members)
    return f"{kind}({quoted})", st.integers(0, top).map(str)


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 63), (1 << 64) - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(exclude_categories=("Cs",)), max_size=200),
    ),
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=9), inner)
    ),
    max_leaves=25,
).map(lambda value: f"_utf8mb4 0x{json.dumps(value, ensure_ascii=False).encode().hex()}")
FLOAT = st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr)
DOUBLE = st.floats(allow_nan=False, allow_infinity=False).map(repr)
MEMBER = st.text(
    st.characters(codec="utf-8", exclude_characters=",", categories=("L", "N", "P", "S")), min_size=1, max_size=6
)
MEMBERS = st.lists(MEMBER, min_size=1, max_size=20, unique_by=str.casefold)
POINT = st.tuples(DOUBLE, DOUBLE).map(lambda p: f"POINT({p[0]}, {p[1]})")
FSP = st.integers(0, 6)
LENGTH = st.sampled_from([1, 3, 20, 63, 64, 85, 86, 127, 128, 255])


def texts(names: list[str]) -> st.SearchStrategy[Declared]:
    forms = st.sampled_from(["CHAR({})", "VARCHAR({})", "VARCHAR({})", "TEXT", "TINYTEXT", "LONGTEXT"])
    return st.tuples(forms, LENGTH, st.sampled_from(names)).map(
        lambda t: (f"{t[0].format(t[1])} CHARACTER SET {t[2]}", text(min(t[1], 60)))
    )


COLUMN: st.SearchStrategy[Declared] = st.one_of(
    st.builds(integer, st.sampled_from([8, 16, 24, 32, 64]), st.booleans()),
    st.builds(decimal, st.integers(1, 65), st.integers(0, 30)),
    st.sampled_from([("FLOAT", FLOAT), ("DOUBLE", DOUBLE), ("YEAR", st.integers(1901, 2155).map(str) | st.just("0"))]),
    st.integers(1, 64).map(lambda n: (f"BIT({n})", st.integers(0, (1 << n) - 1).map(str))),
    st.builds(temporal, st.sampled_from(["TIME", "DATETIME", "TIMESTAMP"]), FSP),
    st.just(
        ("DATE", st.dates().map(lambda d: f"'{d}'") | st.sampled_from(["'0000-00-00'", "'2026-00-05'", "'2026-02-00'"]))
    ),
    texts(CHARSETS),
    LENGTH.map(lambda n: (f"BINARY({n})", binary(n))),
    LENGTH.map(lambda n: (f"VARBINARY({n * 2})", binary(n))),
    st.sampled_from([("BLOB", binary(300)), ("LONGBLOB", binary(9)), ("TINYBLOB", binary(9))]),
    st.builds(labels, st.sampled_from(["ENUM", "SET"]), MEMBERS),
    st.sampled_from([("JSON", JSON), ("JSON", JSON), ("GEOMETRY", POINT), ("POINT", POINT)]),
    texts(OUR_CHARSETS),
)


@st.composite
def tables(draw: st.DrawFn, mariadb: bool) -> tuple[list[str], list[list[str]]]:
    """The columns' declarations and rows of literals."""
    columns = draw(st.lists(COLUMN, min_size=4, max_size=14))
    if mariadb:  # its geometries may not hold any number
        columns = [c for c in columns if c[0] not in ("GEOMETRY", "POINT")] or [("INT", st.just("1"))]
    made, values = [], []
    for kind, literal in columns:
        nullable = draw(st.booleans())
        made.append(kind + ("" if nullable and kind != "TIMESTAMP" else " NULL" if nullable else " NOT NULL"))
        values.append(literal | st.just("NULL") if nullable else literal)
    return made, draw(st.lists(st.tuples(*values).map(list), min_size=3, max_size=8))


class Bench:
    def __init__(self, server: Any, *, mariadb: bool) -> None:
        self.server, self.mariadb = server, mariadb
        self.cursor = connect(server).cursor()
        self.cursor.execute("CREATE DATABASE diff")
        self.cursor.execute("USE diff")
        self.compared = 0

    def run(self, columns: list[str], rows: list[list[str]]) -> None:
        """One table through all three ways."""
        self.cursor.execute("DROP TABLE IF EXISTS t")
        names = ", ".join(f"c{i} {kind}" for i, kind in enumerate(columns))
        path = new_file(self.server, self.cursor)
        self.cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {names})")
        values = ", ".join(f"({i}, {', '.join(row)})" for i, row in enumerate(rows))
        self.cursor.execute(f"INSERT IGNORE INTO t VALUES {values}")
        pairs = ", ".join(f"c{i} = {literal}" for i, literal in enumerate(rows[-1]))
        self.cursor.execute(f"UPDATE IGNORE t SET {pairs}, id = id + 100 WHERE id % 2 = 0")
        self.cursor.execute("DELETE FROM t WHERE id % 3 = 1")
        table = declared(self.cursor, "diff", "t")
        expected = select(self.cursor, table, mariadb=self.mariadb)
        new_file(self.server, self.cursor)
        changes = decode(path, schema="diff")
        assert image(changes, table) == expected
        if not any(column.charset in OUR_CHARSETS for column in table.columns):
            self.oracle(path, changes)

    def oracle(self, path: Path, changes: list[RowsChange]) -> None:
        """The same changes as mysql-replication reads them from the server."""
        reader = BinLogStreamReader(
            connection_settings=dict(self.server.connection("root")),
            server_id=4711,
            log_file=path.name,
            log_pos=4,
            resume_stream=True,
            only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
            only_schemas=["diff"],
        )
        try:
            events = list(reader)
            rows = [event.rows for event in events]
        except UnicodeDecodeError:  # known error: it takes latin1 for cp1252, which lacks five of its codes
            assert any(column.charset == "latin1" for column in changes[0].schema.columns)
            return
        finally:
            reader.close()
        assert len(events) == len(changes)
        kinds = {Operation.INSERT: WriteRowsEvent, Operation.UPDATE: UpdateRowsEvent, Operation.DELETE: DeleteRowsEvent}
        for event, images, change in zip(events, rows, changes, strict=True):
            assert type(event) is kinds[change.operation]
            assert len(images) == len(change.rows)
            for i, row in enumerate(images):
                if change.before is None:
                    self.same(change.schema.columns, change.rows[i], row["values"])
                else:
                    self.same(change.schema.columns, change.before[i], row["before_values"])
                    self.same(change.schema.columns, change.rows[i], row["after_values"])

    def same(self, columns: tuple[Column, ...], ours: tuple[Any, ...], theirs: dict[str, Any]) -> None:
        assert list(theirs) == [column.name for column in columns]
        for column, value, other in zip(columns, ours, theirs.values(), strict=True):
            if not same_value(column, value, other):
                assert known_error(column, value, other), f"{column.mysql_type}: {value!r}, mysql-replication {other!r}"
            self.compared += 1


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def bench(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Bench]:
    server = getattr(stack, request.param)(name=f"differential-{request.param}")
    bench = Bench(server, mariadb=request.param == "mariadb")
    yield bench
    bench.cursor.connection.close()
    server.kill()


@pytest.mark.parametrize("count", ROUNDS)
def test_random_tables_decode_to_what_select_and_mysql_replication_say(bench: Bench, count: int) -> None:
    before = bench.compared

    @settings(
        max_examples=TABLES or count,
        deadline=None,
        database=None,
        derandomize=not TABLES,
        suppress_health_check=list(HealthCheck),
    )
    @given(tables(bench.mariadb))
    def run(table: tuple[list[str], list[list[str]]]) -> None:
        bench.run(*table)

    run()
    assert bench.compared - before > count * 5 // 6
