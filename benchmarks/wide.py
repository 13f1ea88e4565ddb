"""WIDE: 20 tables of 31 to 60 columns of all types, as a workload. Its statements depend on their numbers alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

TABLES = 20
_NOTE = "开荒保洁与日常维护, booked online and paid on site; "
_DOC = '{{"city": "北京", "n": {}, "tags": ["hot", {}], "price": {}.5}}'

_TYPES: tuple[tuple[str, Callable[[int], str]], ...] = (
    ("INT NOT NULL", lambda i: f"{i * 7 % 100_000}"),
    ("VARCHAR(64)", lambda i: f"'家庭保洁 {i % 9_999}'"),
    ("BIGINT UNSIGNED", lambda i: f"{i * 1_000_003}"),
    ("DECIMAL(10,2)", lambda i: f"{i % 10_000}.{i % 100:02d}"),
    ("DATETIME(6)", lambda i: f"'2026-11-21 10:{i % 60:02d}:{i * 7 % 60:02d}.{i % 1_000_000:06d}'"),
    ("TINYINT", lambda i: f"{i % 200 - 100}"),
    ("TEXT", lambda i: f"'{(_NOTE * 2)[: 20 + i * 7 % 41]}'"),
    ("TIMESTAMP(3) NULL", lambda i: f"'2026-06-{1 + i % 28:02d} 12:{i % 60:02d}:00.{i % 1000:03d}'"),
    ("ENUM('new','paid','sent','returned')", lambda i: f"{1 + i % 4}"),
    ("DOUBLE", lambda i: f"{i % 100_000 / 7!r}"),
    ("VARCHAR(200)", lambda i: f"'street {i % 999}, {_NOTE[: i % 30]}'" if i % 5 else "NULL"),
    ("DATE", lambda i: f"'19{50 + i % 50}-{1 + i % 12:02d}-{1 + i % 28:02d}'"),
    ("SMALLINT UNSIGNED", lambda i: f"{i % 65_536}"),
    ("JSON", lambda i: f"'{_DOC.format(i, i % 9, i % 1000)}'"),
    ("CHAR(20)", lambda i: f"'code {i % 99_999}'"),
    ("SET('a','b','c','d','e')", lambda i: f"{i % 32}"),
    ("BIT(12)", lambda i: f"{i % 4096}"),
    ("FLOAT", lambda i: f"{i % 1000 / 8!r}"),
    ("TIME", lambda i: f"'{i % 24:02d}:{i % 60:02d}:{i * 3 % 60:02d}'"),
    ("VARBINARY(40)", lambda i: f"x'{i % 2**64:016x}'"),
    ("DECIMAL(30,10)", lambda i: f"-{i * 1_000_003}.{i % 1000:03d}"),
    ("MEDIUMINT", lambda i: f"{i % 8_000_000}"),
    ("BLOB", lambda i: f"x'{'00ff1022' * (i % 8)}'"),
    ("YEAR", lambda i: f"{1970 + i % 80}"),
    ("POINT", lambda i: f"ST_GeomFromText('POINT({i % 180} {i % 90}.5)')" if i % 3 else "NULL"),
    ("DATETIME", lambda i: f"'2025-12-{1 + i % 28:02d} 08:00:{i % 60:02d}'"),
)
_GBK = "VARCHAR(100) CHARACTER SET gbk"
_UPDATED = "c0 = c0 + 1, c3 = c3 + 1, c4 = '2026-11-22 09:30:00.250000'"


def _columns(table: int) -> list[tuple[str, Callable[[int], str]]]:
    """Returns the columns of a table besides its key: from 30 in the first table to 59 in the last."""
    count = 30 + table * 29 // (TABLES - 1)
    columns = [_TYPES[at % len(_TYPES)] for at in range(count)]
    if table == TABLES // 2:
        columns[count // 2] = (_GBK, lambda i: f"'北京市朝阳区 {i % 999} 号'")
    return columns


def tables(schema: str, prefix: str) -> Iterator[str]:
    """Yields the statements that create the tables."""
    for table in range(TABLES):
        columns = ", ".join(f"c{at} {kind}" for at, (kind, _) in enumerate(_columns(table)))
        yield f"CREATE TABLE {schema}.{prefix}{table} (id BIGINT PRIMARY KEY, {columns})"


def transactions(schema: str, prefix: str, rows: int) -> Iterator[str]:
    """Yields statements that change so many rows, 1 to 50 each, of random tables: 70 of 100 insert, 25 update and 5
    delete."""
    rng, made, next_id = random.Random("wide"), 0, [1] * TABLES
    columns = [_columns(table) for table in range(TABLES)]
    while made < rows:
        table, count = rng.randrange(TABLES), min(rng.choice((1, 1, 1, 2, 5, 10, 50)), rows - made)
        name, last, what = f"{schema}.{prefix}{table}", next_id[table], rng.random()
        ids = f"BETWEEN {last - count} AND {last - 1}"
        if what < 0.7 or last <= count:
            values = [[str(i), *(value(i) for _, value in columns[table])] for i in range(last, last + count)]
            statement = f"INSERT INTO {name} VALUES ({'),('.join(map(','.join, values))})"
            next_id[table] += count
        elif what < 0.95:
            statement = f"UPDATE {name} SET {_UPDATED} WHERE id {ids}"
        else:
            statement = f"DELETE FROM {name} WHERE id {ids}"
            next_id[table] -= count
        made += count
        yield statement
