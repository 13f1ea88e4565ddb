"""Services of four tables in a real MySQL: filled in bulk, changed by several writers, and joined by the server."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql

CREATE = (
    "CREATE TABLE serve_type (id BIGINT PRIMARY KEY, name VARCHAR(32) NOT NULL)",
    "CREATE TABLE serve_item (id BIGINT PRIMARY KEY, serve_type_id BIGINT NULL, name VARCHAR(64) NOT NULL,"
    " description TEXT NULL, KEY (serve_type_id))",
    "CREATE TABLE serve (id BIGINT PRIMARY KEY, serve_item_id BIGINT NULL, name VARCHAR(64) NOT NULL,"
    " province VARCHAR(16) NOT NULL, city VARCHAR(16) NULL, on_sale TINYINT NOT NULL DEFAULT 1, KEY (serve_item_id))",
    "CREATE TABLE serve_price (id BIGINT PRIMARY KEY, serve_id BIGINT NULL, unit ENUM('次', '小时', '天', '月'),"
    " price DECIMAL(10,2) NOT NULL, KEY (serve_id))",
)
INDEX = """
[[index]]
name = "{name}"
tables = '{schema}\\.serve'
drop = ["serve_item_id"]
[[index.join]]
name = "item"
tables = '{schema}\\.serve_item'
on = {{ id = "serve_item_id" }}
drop = ["id", "serve_type_id"]
[[index.join]]
name = "type"
parent = "item"
tables = '{schema}\\.serve_type'
on = {{ id = "serve_type_id" }}
shape = "object"
[[index.join]]
name = "prices"
tables = '{schema}\\.serve_price'
on = {{ serve_id = "id" }}
shape = "list"
drop = ["serve_id"]
"""
CITIES = {"广东": ("广州", "深圳"), "四川": ("成都", "绵阳"), "浙江": ("杭州", "宁波"), "北京": ("北京",)}
WORDS = ("日常保洁", "深度保洁", "家庭保洁", "玻璃清洗", "空调清洗", "家电维修", "居民搬家", "月嫂", "管道疏通", "开荒")
UNITS = ("次", "小时", "天", "月")
_ROWS = 2000
"""Of one INSERT."""
_BUSY = frozenset({1062, 1205, 1213})
"""A key that is there, a lock that is held, a deadlock: the transaction is rolled back."""


class Services:
    """The tables of one schema, so large: `types`, `items`, `services`."""

    def __init__(self, server: Any, schema: str, types: int, items: int, services: int) -> None:
        self._server, self._schema = server, schema
        self.types, self.items, self.services = types, items, services

    def connect(self) -> Any:
        return pymysql.connect(**self._server.connection("root"), database=self._schema, charset="utf8mb4")

    def create(self) -> None:
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in CREATE:
                cursor.execute(statement)

    def fill(self, chance: random.Random) -> None:
        """Each row by chance; a price or two for each service."""
        with self.connect() as connection, connection.cursor() as cursor:
            some = Change(chance, self)
            prices = self.services + self.services // 2
            for table, count in (
                *(("serve_type", self.types), ("serve_item", self.items)),
                *(("serve", self.services), ("serve_price", prices)),
            ):
                for start in range(0, count, _ROWS):
                    some.insert(cursor, table, range(start, min(count, start + _ROWS)))
                    connection.commit()

    @contextmanager
    def writers(self, count: int, seed: int, pause: float) -> Iterator[Counter[str]]:
        """So many change all tables until the end of the block, `pause` seconds between two transactions of each.
        Gives the numbers of their transactions by kind."""
        stop, done = threading.Event(), Counter[str]()

        def write(number: int) -> None:
            change = Change(random.Random(seed * 100 + number), self)
            with self.connect() as connection, connection.cursor() as cursor:
                while not stop.wait(pause):
                    try:
                        kind = change.transaction(cursor)
                        connection.commit()
                    except pymysql.MySQLError as error:
                        connection.rollback()
                        if error.args[0] not in _BUSY:
                            done[f"error {error.args}"] += 1
                            raise
                        kind = "rolled back"
                    done[kind] += 1

        threads = [threading.Thread(target=write, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield done
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def join(self) -> dict[str, dict[str, Any]]:
        """The documents, of four SELECTs as of one moment."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")

            def rows(sql: str) -> Any:
                cursor.execute(sql)
                return cursor.fetchall()

            types = {key: {"id": key, "name": name} for key, name in rows("SELECT id, name FROM serve_type")}
            items = {row[0]: row[1:] for row in rows("SELECT id, serve_type_id, name, description FROM serve_item")}
            prices: dict[int, list[dict[str, Any]]] = {}
            for key, serve, unit, price in rows("SELECT id, serve_id, unit, price FROM serve_price ORDER BY id"):
                prices.setdefault(serve, []).append({"id": key, "unit": unit, "price": str(price)})
            made = {}
            for key, item, name, province, city, on_sale in rows(
                "SELECT id, serve_item_id, name, province, city, on_sale FROM serve"
            ):
                body = {"id": key, "name": name, "province": province, "city": city, "on_sale": on_sale}
                if item in items:
                    kind, title, description = items[item]
                    body |= {"item_name": title, "item_description": description, "type": types.get(kind)}
                made[str(key)] = {**body, "prices": prices.get(key, [])}
        return made


class Change:
    """What one writer does, by chance."""

    def __init__(self, chance: random.Random, services: Services) -> None:
        self._chance = chance
        self._sizes = {
            "serve_type": services.types,
            "serve_item": services.items,
            "serve": services.services,
            "serve_price": services.services * 3 // 2,
        }

    def insert(self, cursor: Any, table: str, keys: Any) -> None:
        rows = [self._row(table, key) for key in keys]
        values = ", ".join(["(" + ", ".join(["%s"] * len(rows[0])) + ")"] * len(rows))
        cursor.execute(f"INSERT IGNORE INTO {table} VALUES {values}", [value for row in rows for value in row])

    def transaction(self, cursor: Any) -> str:
        """Does something; its kind."""
        chance = self._chance
        table = chance.choices(tuple(self._sizes), (1, 8, 45, 46))[0]
        key = self._key(table)
        pick = chance.random()
        if pick < 0.25:
            self.insert(cursor, table, [key])
            return f"insert {table}"
        if pick < 0.45:
            self._update(cursor, table, key)
            return f"update {table}"
        if pick < 0.55:
            cursor.execute(f"DELETE FROM {table} WHERE id = %s", (key,))
            return f"delete {table}"
        if pick < 0.65:
            cursor.execute(f"UPDATE {table} SET id = %s WHERE id = %s", (self._key(table), key))
            return f"key {table}"
        if pick < 0.75:
            cursor.execute(
                "UPDATE serve_price SET serve_id = %s WHERE id BETWEEN %s AND %s", (self._key("serve"), key, key + 3)
            )
            return "move prices"
        if pick < 0.8:
            cursor.execute("UPDATE serve SET serve_item_id = %s WHERE id = %s", (self._of("serve_item"), key))
            return "move service"
        if pick < 0.85:  # children that come before their parent, and in a transaction of their own
            serve = self._sizes["serve"] + chance.randrange(self._sizes["serve"])
            keys = [self._sizes["serve_price"] * 2 + serve * 3 + number for number in range(3)]
            for price in keys:
                values = (price, serve, chance.choice(UNITS), chance.randrange(9999))
                cursor.execute("REPLACE INTO serve_price VALUES (%s, %s, %s, %s)", values)
            cursor.connection.commit()
            self.insert(cursor, "serve", [serve])
            return "late parent"
        if pick < 0.9:
            start = self._key("serve")
            cursor.execute("UPDATE serve SET on_sale = 1 - on_sale WHERE id BETWEEN %s AND %s", (start, start + 30))
            return "many rows"
        for _ in range(chance.randrange(2, 9)):
            one = chance.choices(tuple(self._sizes), (0.2, 2, 40, 40))[0]
            self._update(cursor, one, self._key(one))
            self.insert(cursor, one, [self._key(one)])
            cursor.execute(f"DELETE FROM {one} WHERE id = %s", (self._key(one),))
        return "mixed"

    def _update(self, cursor: Any, table: str, key: int) -> None:
        names = {
            "serve_type": ("name",),
            "serve_item": ("serve_type_id", "name", "description"),
            "serve": ("serve_item_id", "name", "province", "city", "on_sale"),
            "serve_price": ("serve_id", "unit", "price"),
        }[table]
        values = dict(zip(names, self._row(table, key)[1:], strict=True))
        changed = self._chance.sample(names, self._chance.randint(1, len(names)))
        cursor.execute(
            f"UPDATE {table} SET {', '.join(f'{name} = %s' for name in changed)} WHERE id = %s",
            [*(values[name] for name in changed), key],
        )

    def _row(self, table: str, key: int) -> tuple[Any, ...]:
        chance = self._chance
        word = chance.choice(WORDS)
        if table == "serve_type":
            return key, f"{word}{chance.randrange(100)}"
        if table == "serve_item":
            text = None if chance.random() < 0.1 else f"{word},可预约{chance.choice(WORDS)} 🏠"
            return key, self._of("serve_type"), word, text
        if table == "serve":
            province = chance.choice(tuple(CITIES))
            city = None if chance.random() < 0.05 else chance.choice(CITIES[province])
            return key, self._of("serve_item"), f"{city or province}{word}", province, city, chance.randrange(2)
        return key, self._of("serve"), chance.choice(UNITS), f"{chance.randrange(100, 99999) / 100:.2f}"

    def _key(self, table: str) -> int:
        """Mostly one that is there."""
        return self._chance.randrange(self._sizes[table] * 11 // 10)

    def _of(self, table: str) -> int | None:
        return None if self._chance.random() < 0.03 else self._key(table)
