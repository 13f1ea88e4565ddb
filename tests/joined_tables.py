"""Services of four tables, what is done to them at random, and the join that the documents have to be."""

from __future__ import annotations

import random
from typing import Any

import orjson

from headrace_documents.formats.changes import Row, Rows

TYPES = {
    "serve": {"id": "bigint", "name": "varchar(64)", "item_id": "bigint", "city": "varchar(20)"},
    "item": {"id": "bigint", "title": "varchar(64)", "type_id": "bigint"},
    "type": {"id": "bigint", "name": "varchar(64)"},
    "price": {"id": "bigint", "serve_id": "bigint", "unit": "varchar(9)", "amount": "decimal(10,2)"},
}
SERVICES: dict[str, Any] = {
    "name": "services",
    "tables": r"shop\.serve",
    "drop": ["item_id"],
    "join": [
        {"name": "item", "tables": r"shop\.item", "on": {"id": "item_id"}, "drop": ["id", "type_id"]},
        {
            "name": "type",
            "tables": r"shop\.type",
            "parent": "item",
            "on": {"id": "type_id"},
            "shape": "object",
        },
        {
            "name": "prices",
            "tables": r"shop\.price",
            "on": {"serve_id": "id"},
            "shape": "list",
            "drop": ["serve_id"],
        },
    ],
}


def message(table: str, operation: Any, row: Row, old: Row | None, version: int) -> Rows:
    return Rows("shop", table, operation, ("id",), TYPES[table], [dict(row)], [old], version, 1, 0)


class Source:
    """Tables, and the messages of what is done to them."""

    def __init__(self, chance: random.Random) -> None:
        self.tables: dict[str, dict[str, Row]] = {name: {} for name in TYPES}
        self.messages: list[Rows] = []
        self._chance, self._version = chance, 0

    def step(self) -> None:
        chance = self._chance
        table = chance.choice(list(TYPES))
        rows = self.tables[table]
        self._version += 10
        pick = chance.random()
        if not rows or pick < 0.4:
            key = str(chance.randrange(12))
            if key in rows:
                return
            rows[key] = self._row(table, key)
            self.messages.append(message(table, "INSERT", rows[key], None, self._version))
            return
        key = chance.choice(list(rows))
        old = rows[key]
        if pick < 0.55:
            del rows[key]
            self.messages.append(message(table, "DELETE", old, None, self._version))
            return
        new = self._row(table, key)
        changed = {name for name in old if chance.random() < 0.5}
        row = {name: new[name] if name in changed else old[name] for name in old}
        if chance.random() < 0.15 and (other := str(chance.randrange(12))) not in rows:
            row["id"] = other
        del rows[key]
        rows[str(row["id"])] = row
        former = {name: value for name, value in old.items() if row[name] != value}
        self.messages.append(message(table, "UPDATE", row, former, self._version))

    def _row(self, table: str, key: str) -> Row:
        chance = self._chance
        made: Row = {"id": key}
        for column in TYPES[table]:
            if column.endswith("_id"):
                made[column] = None if chance.random() < 0.1 else str(chance.randrange(12))
            elif column != "id":
                made[column] = f"{chance.randrange(3)}"
        return made

    def read_again(self) -> list[Rows]:
        """Each row as a table that is read has it."""
        self._version += 10
        return [
            message(table, "INSERT", row, None, self._version)
            for table, rows in self.tables.items()
            for row in rows.values()
        ]

    def join(self) -> dict[str, Any]:
        made = {}
        for key, serve in self.tables["serve"].items():
            body: Row = {"id": int(key), "name": serve["name"], "city": serve["city"]}
            item = self.tables["item"].get(serve["item_id"] or "")
            if item is not None:
                body["item_title"] = item["title"]
                kind = self.tables["type"].get(item["type_id"] or "")
                body["type"] = None if kind is None else {"id": int(kind["id"]), "name": kind["name"]}
            prices = sorted((one for one in self.tables["price"].values() if one["serve_id"] == key), key=_number)
            body["prices"] = [{"id": int(one["id"]), "unit": one["unit"], "amount": one["amount"]} for one in prices]
            made[key] = body
        return made


def _number(row: Row) -> int:
    return int(row["id"])


def canal_message(rows: Rows) -> bytes:
    """As the daemon publishes it."""
    return orjson.dumps(
        {
            "_pos": str(rows.version),
            "database": rows.database,
            "table": rows.table,
            "pkNames": list(rows.keys),
            "isDdl": False,
            "type": rows.operation,
            "es": 1767225600000,
            "ts": 1767225600001,
            "mysqlType": rows.types,
            "data": rows.rows,
            "old": None if rows.olds[0] is None else list(rows.olds),
            "id": 1,
        }
    )
