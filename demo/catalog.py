"""The table of the demo and what is done to it: services with Chinese names, their changes, and a new column."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pymysql

from devstack.servers.sql import SqlServer

DATABASE, TABLE = "shop", "serve_sync"

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

CITIES = ("北京", "上海", "广州", "深圳", "杭州", "成都", "武汉", "南京", "西安", "重庆", "苏州", "长沙")
ITEMS = {
    "保洁清洗": ("家庭保洁", "深度保洁", "日常保洁", "玻璃清洗", "地毯清洗", "新居开荒", "家庭保洁(四小时)"),
    "家电清洗": ("空调清洗", "油烟机清洗", "洗衣机清洗", "冰箱清洗"),
    "家电维修": ("空调维修", "电视维修", "热水器维修", "洗衣机维修"),
    "搬家服务": ("居民搬家", "长途搬家", "办公室搬迁", "小型搬运"),
    "月嫂保姆": ("月嫂", "育儿嫂", "住家保姆", "钟点工", "养老护理"),
    "管道疏通": ("马桶疏通", "下水道疏通", "水龙头维修"),
}
UNITS = ("次", "小时", "天", "月")
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


@contextmanager
def session(server: SqlServer, database: str | None = DATABASE) -> Iterator[Any]:
    """A cursor of root's on the server, each statement committed at once; times are in UTC."""
    connection = pymysql.connect(
        **server.connection("root"),
        database=database,
        charset="utf8mb4",
        autocommit=True,
        init_command="SET time_zone = '+00:00'",
    )
    with connection, connection.cursor() as cursor:
        yield cursor


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
