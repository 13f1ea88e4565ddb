"""The single table of the search example and what is done to it, and the documents that its rows have to be."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

from pymysql.converters import encoders

from demo.catalog import CITIES, DATABASE, ITEMS, UNITS, session
from demo.compare import Documents, selected
from devstack.servers.sql import SqlServer
from headrace_documents.elastic.cluster import Cluster

TABLE = "serve_sync"
INDEX = f"{DATABASE}.{TABLE}"

CREATE = f"""CREATE TABLE {TABLE} (
    id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
    name VARCHAR(64) NOT NULL COMMENT 'service name',
    serve_type_name VARCHAR(32) NOT NULL COMMENT 'type',
    serve_item_name VARCHAR(64) NOT NULL COMMENT 'item name',
    price DECIMAL(10,2) NOT NULL,
    unit ENUM('次', '小时', '天', '月') NOT NULL DEFAULT '次',
    city_name VARCHAR(32) NOT NULL,
    is_on_sale TINYINT(1) NOT NULL DEFAULT 0,
    is_hot TINYINT(1) NOT NULL DEFAULT 0,
    hot_since DATETIME(3) NULL,
    detail TEXT NULL,
    updated_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP
) DEFAULT CHARSET = utf8mb4"""
ADD_COLUMN = f"ALTER TABLE {TABLE} ADD COLUMN duration_minutes SMALLINT UNSIGNED NULL AFTER price"
COLUMNS = "id, name, serve_type_name, serve_item_name, price, unit, city_name, is_on_sale, is_hot, hot_since, detail"
INSERT = f"INSERT INTO {TABLE} ({COLUMNS}) VALUES ({', '.join(['%s'] * 11)})"

Service = tuple[object, ...]


def services(chance: random.Random, cities: tuple[str, ...] = CITIES, first_id: int = 1) -> list[Service]:
    """Every item in every city, as rows for INSERT."""
    made: list[Service] = []
    pairs = ((kind, item) for kind, items in ITEMS.items() for item in items)
    for number, (city, (kind, item)) in enumerate(itertools.product(cities, list(pairs)), first_id):
        hot = chance.random() < 0.2
        made.append(
            (
                number,
                f"{city}{item}",
                kind,
                item,
                f"{chance.randrange(2900, 99900) / 100:.2f}",
                chance.choice(UNITS),
                city,
                int(chance.random() < 0.8),
                int(hot),
                f"2026-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02} 08:30:00.{number % 1000:03}"
                if hot
                else None,
                None if chance.random() < 0.3 else f"{city}地区“{item}”,上门服务 🏠\n价格面议",
            )
        )
    return made


def create(server: SqlServer) -> None:
    """The database and the empty table."""
    with session(server, None) as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE} DEFAULT CHARSET utf8mb4")
        cursor.execute(f"USE {DATABASE}")
        cursor.execute(CREATE)


def fill(server: SqlServer, rows: list[Service]) -> None:
    """All rows, a hundred a transaction."""
    with session(server) as cursor:
        for start in range(0, len(rows), 100):
            cursor.executemany(INSERT, rows[start : start + 100])


def change(server: SqlServer, chance: random.Random, count: int, each: Callable[[int], None]) -> dict[str, int]:
    """`count` transactions of every kind; `each` is called with the number of those done. Returns rows by kind."""
    done = {"updated": 0, "deleted": 0, "moved": 0, "inserted": 0}
    with session(server) as cursor:
        cursor.execute(f"SELECT MAX(id) FROM {TABLE}")
        top = int(cursor.fetchone()[0])
        new = iter(services(chance, ("天津", "青岛", "厦门"), top + 1001))
        for number in range(1, count + 1):
            pick, city, key = chance.random(), chance.choice(CITIES), chance.randrange(1, top + 1)
            if pick < 0.3:  # many rows in one transaction
                kind, sql, values = "updated", "price = price + 1.10 WHERE city_name = %s", (city,)
                done[kind] += cursor.execute(f"UPDATE {TABLE} SET {sql}", values)
            elif pick < 0.65:
                sql = "is_on_sale = 1 - is_on_sale, name = CONCAT(name, '·新') WHERE id = %s"
                done["updated"] += cursor.execute(f"UPDATE {TABLE} SET {sql}", (key,))
            elif pick < 0.8:
                done["deleted"] += cursor.execute(f"DELETE FROM {TABLE} WHERE id = %s", (key,))
            elif pick < 0.9:  # the key itself changes: the document moves
                done["moved"] += cursor.execute(f"UPDATE {TABLE} SET id = %s WHERE id = %s", (top + 5000 + number, key))
            elif (row := next(new, None)) is not None:
                done["inserted"] += cursor.execute(INSERT, row)
            each(number)
    return done


def alter(server: SqlServer, chance: random.Random) -> int:
    """A new column, rows with it, and a value of it in the rows that were there. Returns the number of new rows."""
    with session(server) as cursor:
        cursor.execute(f"SELECT MAX(id) FROM {TABLE}")
        rows = services(chance, ("昆明", "大连"), int(cursor.fetchone()[0]) + 20000)
        cursor.execute(ADD_COLUMN)
        cursor.executemany(
            f"INSERT INTO {TABLE} ({COLUMNS}, duration_minutes) VALUES ({', '.join(['%s'] * 12)})",
            [(*row, chance.randrange(30, 481)) for row in rows],
        )
        # ADD COLUMN gives the old rows a NULL without a word in the binlog: they are published when they change.
        cursor.execute(f"UPDATE {TABLE} SET duration_minutes = 60 + id % 240 WHERE duration_minutes IS NULL")
    return len(rows)


def read_rows(server: SqlServer) -> Documents:
    """The table as its documents should be: key -> columns, integers as numbers, all else as the server's text."""
    with session(server, conv=dict(encoders)) as cursor:
        return {str(row["id"]): row for row in selected(cursor, f"SELECT * FROM {TABLE}")}


def count_found(cluster: Cluster, phrase: str) -> int:
    """How many services have the phrase in their name."""
    cluster.refresh(INDEX)
    return int(cluster.call("POST", (INDEX, "_count"), {"query": {"match_phrase": {"name": phrase}}})["count"])
