"""The tables of the demo and what is done to them: services of cities, their items, types and prices; a new column."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pymysql

from devstack.servers.sql import SqlServer

DATABASE = "shop"
CREATE = (
    """CREATE TABLE serve_type (
    id BIGINT NOT NULL PRIMARY KEY,
    name VARCHAR(32) NOT NULL
) DEFAULT CHARSET = utf8mb4""",
    """CREATE TABLE serve_item (
    id BIGINT NOT NULL PRIMARY KEY,
    serve_type_id BIGINT NOT NULL,
    name VARCHAR(64) NOT NULL,
    unit ENUM('次', '小时', '天', '月') NOT NULL COMMENT 'that its price is told by first',
    description TEXT NULL,
    KEY (serve_type_id)
) DEFAULT CHARSET = utf8mb4""",
    """CREATE TABLE serve (
    id BIGINT NOT NULL PRIMARY KEY COMMENT 'a service: an item in a city',
    serve_item_id BIGINT NOT NULL,
    city_name VARCHAR(32) NOT NULL,
    is_on_sale TINYINT(1) NOT NULL DEFAULT 0,
    is_hot TINYINT(1) NOT NULL DEFAULT 0,
    hot_since DATETIME(3) NULL,
    detail TEXT NULL,
    updated_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
    KEY (serve_item_id)
) DEFAULT CHARSET = utf8mb4""",
    """CREATE TABLE serve_price (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    serve_id BIGINT NOT NULL,
    unit ENUM('次', '小时', '天', '月') NOT NULL,
    price DECIMAL(10,2) NOT NULL,
    UNIQUE KEY (serve_id, unit)
) DEFAULT CHARSET = utf8mb4""",
)
ADD_COLUMN = "ALTER TABLE serve_item ADD COLUMN duration_minutes SMALLINT UNSIGNED NULL AFTER unit"

CITIES = ("北京", "上海", "广州", "深圳", "杭州", "成都", "武汉", "南京", "西安", "重庆", "苏州", "长沙")
FURTHER_CITIES = ("天津", "青岛", "厦门")
ITEMS = {
    "保洁清洗": ("家庭保洁", "深度保洁", "日常保洁", "玻璃清洗", "地毯清洗", "新居开荒", "家庭保洁(四小时)"),
    "家电清洗": ("空调清洗", "油烟机清洗", "洗衣机清洗", "冰箱清洗"),
    "家电维修": ("空调维修", "电视维修", "热水器维修", "洗衣机维修"),
    "搬家服务": ("居民搬家", "长途搬家", "办公室搬迁", "小型搬运"),
    "月嫂保姆": ("月嫂", "育儿嫂", "住家保姆", "钟点工", "养老护理"),
    "管道疏通": ("马桶疏通", "下水道疏通", "水龙头维修"),
}
DESCRIPTIONS = {
    "新居开荒": "装修之后的第一次清洁,之后可预约家庭保洁",
    "钟点工": "按小时上门:做饭、洗衣、家庭保洁 🏠",
    "住家保姆": "长期照顾家庭,包括做饭与日常保洁",
    "长途搬家": None,
}
"""Of the items of which there is more to say than of the others."""
UNITS = ("次", "小时", "天", "月")
MARKS = ("新", "优选", "特惠", "标准")
"""What a changed name ends with, behind a dot in the middle of the line."""

Row = tuple[object, ...]
Tables = dict[str, list[Row]]
COLUMNS = {
    "serve_type": "id, name",
    "serve_item": "id, serve_type_id, name, unit, description",
    "serve": "id, serve_item_id, city_name, is_on_sale, is_hot, hot_since, detail",
    "serve_price": "serve_id, unit, price",
}


def kinds() -> Tables:
    """All types and items."""
    made: Tables = {"serve_type": [], "serve_item": []}
    for number, (kind, items) in enumerate(ITEMS.items(), 1):
        made["serve_type"].append((number, kind))
        for item in items:
            key = len(made["serve_item"]) + 1
            description = DESCRIPTIONS.get(item, f"专业{item},上门服务\n价格面议")
            made["serve_item"].append((key, number, item, UNITS[key % len(UNITS)], description))
    return made


def services(
    chance: random.Random, items: list[int], cities: tuple[str, ...] = CITIES, first_id: int = 1
) -> Iterator[Tables]:
    """Every item in every city, each with one to three prices."""
    for number, (city, item) in enumerate(itertools.product(cities, items), first_id):
        hot = chance.random() < 0.2
        day = f"2026-{chance.randrange(1, 13):02}-{chance.randrange(1, 29):02}"
        detail = None if chance.random() < 0.3 else f"{city}地区当天可约 <b>“满意付款”</b> & 免费退订"
        since = f"{day} 08:30:00.{number % 1000:03}" if hot else None
        units = chance.sample(UNITS, chance.randrange(1, 4))
        yield {
            "serve": [(number, item, city, int(chance.random() < 0.8), int(hot), since, detail)],
            "serve_price": [(number, unit, f"{chance.randrange(2900, 99900) / 100:.2f}") for unit in units],
        }


@contextmanager
def session(
    server: SqlServer, database: str | None = DATABASE, *, autocommit: bool = True, **further: Any
) -> Iterator[Any]:
    """A cursor of root's on the server; times are in UTC. `further` are arguments of the driver's."""
    connection = pymysql.connect(
        **server.connection("root"),
        database=database,
        charset="utf8mb4",
        autocommit=autocommit,
        init_command="SET time_zone = '+00:00'",
        connect_timeout=10,
        read_timeout=60,
        write_timeout=60,
        **further,
    )
    with connection, connection.cursor() as cursor:
        yield cursor


def create(server: SqlServer) -> None:
    """The database and the empty tables."""
    with session(server, None) as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE} DEFAULT CHARSET utf8mb4")
        cursor.execute(f"USE {DATABASE}")
        for statement in CREATE:
            cursor.execute(statement)


def fill(server: SqlServer, chance: random.Random) -> int:
    """All rows, in three transactions; returns the number of services."""
    made, rows = kinds(), list[Tables]()
    rows += services(chance, [_number(row[0]) for row in made["serve_item"]])
    with session(server, autocommit=False) as cursor:
        insert(cursor, made)
        cursor.connection.commit()
        for table in ("serve", "serve_price"):
            insert(cursor, {table: [row for one in rows for row in one[table]]})
            cursor.connection.commit()
    return len(rows)


def insert(cursor: Any, tables: Tables) -> None:
    """Inserts rows of several tables."""
    for table, rows in tables.items():
        places = ", ".join(["%s"] * len(COLUMNS[table].split(",")))
        cursor.executemany(f"INSERT INTO {table} ({COLUMNS[table]}) VALUES ({places})", rows)


def change(server: SqlServer, chance: random.Random, count: int, each: Callable[[int], None]) -> dict[str, int]:
    """`count` transactions of every kind; `each` is called with the number of those done. Returns rows by kind."""
    with session(server, autocommit=False) as cursor:
        changes = _Changes(cursor, chance)
        for number in range(1, count + 1):
            changes.one(number)
            cursor.connection.commit()
            each(number)
    return changes.done


class _Changes:
    """Random changes, a transaction each."""

    def __init__(self, cursor: Any, chance: random.Random) -> None:
        self.done = {"updated": 0, "deleted": 0, "moved": 0, "inserted": 0}
        self._cursor, self._chance = cursor, chance
        self._top = self._number("SELECT MAX(id) FROM serve")
        self._items = self._numbers("SELECT id FROM serve_item")
        self._types = self._numbers("SELECT id FROM serve_type")
        self._new = services(chance, list(self._items), FURTHER_CITIES, self._top + 1001)

    def one(self, number: int) -> None:
        """One of them."""
        weights = {
            self._prices_of_a_city: 4,
            self._service: 5,
            self._price: 3,
            self._item: 4,  # each reaches the services of all cities
            self._type: 1,  # and this those of several items
            self._item_of_another_type: 1,
            self._replaced_item: 1,
            self._delete: 4,
            self._moved: 3,
            self._insert: 3,
        }
        (chosen,) = self._chance.choices(list(weights), list(weights.values()))
        chosen(number)

    def _run(self, kind: str, sql: str, *values: object) -> None:
        self.done[kind] += self._cursor.execute(sql, values)

    def _number(self, sql: str) -> int:
        return self._numbers(sql)[0]

    def _numbers(self, sql: str) -> list[int]:
        self._cursor.execute(sql)
        return [int(row[0]) for row in self._cursor.fetchall()]

    def _key(self) -> int:
        return self._chance.randrange(1, self._top + 1)

    def _marked(self) -> str:
        return f"CONCAT(SUBSTRING_INDEX(name, '·', 1), '·{self._chance.choice(MARKS)}')"

    def _prices_of_a_city(self, number: int) -> None:
        sql = (
            "UPDATE serve_price p JOIN serve s ON s.id = p.serve_id SET p.price = p.price + 1.10 WHERE s.city_name = %s"
        )
        self._run("updated", sql, self._chance.choice(CITIES))

    def _service(self, number: int) -> None:
        sql = "UPDATE serve SET is_on_sale = 1 - is_on_sale, detail = %s WHERE id = %s"
        self._run("updated", sql, f"第 {number} 次修改", self._key())

    def _price(self, number: int) -> None:
        key = self._key()
        self._run("deleted", "DELETE FROM serve_price WHERE serve_id = %s AND unit = '月'", key)
        sql = "INSERT INTO serve_price (serve_id, unit, price) SELECT id, '月', %s FROM serve WHERE id = %s"
        if self._chance.random() < 0.5:
            self._run("inserted", sql, f"{number}.05", key)

    def _item(self, number: int) -> None:
        sql = f"UPDATE serve_item SET name = {self._marked()}, description = CONCAT(description, %s) WHERE id = %s"
        self._run("updated", sql, f"。第 {number} 版", self._chance.choice(self._items))

    def _type(self, number: int) -> None:
        sql = f"UPDATE serve_type SET name = {self._marked()} WHERE id = %s"
        self._run("updated", sql, self._chance.choice(self._types))

    def _item_of_another_type(self, number: int) -> None:
        sql = "UPDATE serve_item SET serve_type_id = %s WHERE id = %s"
        self._run("updated", sql, self._chance.choice(self._types), self._chance.choice(self._items))

    def _replaced_item(self, number: int) -> None:
        """A new item in place of one, with its services."""
        at = self._chance.randrange(len(self._items))
        old, new = self._items[at], 1000 + number
        sql = f"""INSERT INTO serve_item ({COLUMNS["serve_item"]})
            SELECT %s, serve_type_id, name, unit, %s FROM serve_item WHERE id = %s"""
        self._run("inserted", sql, new, f"第 {number} 代", old)
        self._run("updated", "UPDATE serve SET serve_item_id = %s WHERE serve_item_id = %s", new, old)
        self._run("deleted", "DELETE FROM serve_item WHERE id = %s", old)
        self._items[at] = new

    def _delete(self, number: int) -> None:
        key = self._key()
        self._run("deleted", "DELETE FROM serve WHERE id = %s", key)
        self._run("deleted", "DELETE FROM serve_price WHERE serve_id = %s", key)

    def _moved(self, number: int) -> None:
        """The key itself changes: the document moves."""
        key, new = self._key(), self._top + 5000 + number
        self._run("moved", "UPDATE serve SET id = %s WHERE id = %s", new, key)
        self._run("moved", "UPDATE serve_price SET serve_id = %s WHERE serve_id = %s", new, key)

    def _insert(self, number: int) -> None:
        row = next(self._new, None)
        if row is not None and _number(row["serve"][0][1]) in self._items:
            insert(self._cursor, row)
            self.done["inserted"] += sum(map(len, row.values()))


def alter(server: SqlServer, chance: random.Random) -> int:
    """A new column of items, services in further cities, and a value of the column for every item. Returns the number
    of new services."""
    with session(server) as cursor:
        cursor.execute("SELECT MAX(id) FROM serve")
        first = int(cursor.fetchone()[0]) + 20000
        cursor.execute(ADD_COLUMN)
        cursor.execute("SELECT id FROM serve_item")
        items = [int(row[0]) for row in cursor.fetchall()]
        count = 0
        for row in services(chance, items, ("昆明", "大连"), first):
            insert(cursor, row)
            count += 1
        # ADD COLUMN gives the old rows a NULL without a word in the binlog: they are published when they change.
        cursor.execute("UPDATE serve_item SET duration_minutes = 60 + id % 240")
    return count


def _number(value: object) -> int:
    return int(str(value))
