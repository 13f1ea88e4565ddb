"""Canal messages with `_pos` as the daemon makes them, for tests of the consumers; and a random history of a table."""

from __future__ import annotations

import json
import random
from typing import Any, NamedTuple

from headrace_documents.documents import Action, Rules
from headrace_documents.formats.changes import Headers, Rows, Statement
from headrace_documents.messages import actions, read

START = 3563400000000000000
TYPES = {"id": "bigint", "name": "varchar(64)", "price": "decimal(10,2)", "sold": "int unsigned"}


def row(key: object, name: str = "x", price: str = "9.90", sold: str | None = "0") -> dict[str, str | None]:
    return {"id": str(key), "name": name, "price": price, "sold": sold}


def change(table: str, position: int, kind: str, *rows: dict[str, Any], **more: Any) -> bytes:
    message = {
        "data": list(rows),
        "database": "shop",
        "es": 1700000000000,
        "gtid": "",
        "id": position - START,
        "isDdl": False,
        "mysqlType": TYPES,
        "old": None,
        "pkNames": ["id"],
        "sql": "",
        "sqlType": {"id": -5, "name": 12, "price": 3, "sold": 4},
        "table": table,
        "ts": 1700000000001,
        "type": kind,
        "_pos": str(position),
    }
    return json.dumps({**message, **more}).encode()


Documents = dict[str, tuple[int, dict[str, Any]]]
"""By id: version and body."""


def every_kind(table: str) -> tuple[list[bytes], Documents]:
    """A message of each kind, and the state in the end."""
    at = START
    messages = [
        change(table, at - 20, "INSERT", row(7), row(8)),
        change(table, at - 10, "TRUNCATE", data=None, pkNames=None, isDdl=True, sql="TRUNCATE TABLE t"),
        change(table, at + 0, "INSERT", row(1, "家庭保洁服务"), row(2, "家电维修"), row(3), row(4), row(5)),
        change(table, at + 10, "UPDATE", row(2, "家电清洗", sold="7"), old=[{"name": "家电维修", "sold": "0"}]),
        change(table, at + 20, "DELETE", row(3)),
        # The key changes 4 -> 40, and a new row takes the old one's place later.
        change(table, at + 30, "UPDATE", row(40, "moved"), old=[{"id": "4"}]),
        # The same key twice in one message: the later row wins.
        change(table, at + 40, "UPDATE", row(5, "a"), row(5, "b"), old=[{"name": "x"}, {"name": "a"}]),
        change(table, at + 50, "INSERT", row(6)),
        change(table, at + 60, "DELETE", row(6)),
        change(table, at + 61, "INSERT", row(6, "again")),
    ]
    state = {
        "1": (at, {"id": 1, "name": "家庭保洁服务", "price": "9.90", "sold": 0}),
        "2": (at + 10, {"id": 2, "name": "家电清洗", "price": "9.90", "sold": 7}),
        "40": (at + 30, {"id": 40, "name": "moved", "price": "9.90", "sold": 0}),
        "5": (at + 41, {"id": 5, "name": "b", "price": "9.90", "sold": 0}),
        "6": (at + 61, {"id": 6, "name": "again", "price": "9.90", "sold": 0}),
    }
    return messages, state


def history(table: str, count: int) -> tuple[list[bytes], Documents]:
    """A random history of one table, with resent stretches, and the state in the end."""
    rng = random.Random(20240607)
    state: Documents = {}
    messages: list[bytes] = []
    free = 10_000
    for i in range(count):
        at = START + 10 * i
        key, name = str(rng.randrange(300)), f"change {i}"
        body = {"name": name, "price": "1.00", "sold": i}
        if key not in state:
            messages.append(change(table, at, "INSERT", row(key, name, "1.00", str(i))))
            state[key] = (at, {"id": int(key), **body})
        elif (what := rng.random()) < 0.25:
            messages.append(change(table, at, "DELETE", row(key)))
            del state[key]
        elif what < 0.35:
            free += 1
            messages.append(change(table, at, "UPDATE", row(free, name, "1.00", str(i)), old=[{"id": key}]))
            del state[key]
            state[str(free)] = (at, {"id": free, **body})
        else:
            messages.append(change(table, at, "UPDATE", row(key, name, "1.00", str(i)), old=[{"name": "before"}]))
            state[key] = (at, {"id": int(key), **body})
        if i % 500 == 499:  # the daemon was restarted and sends its last messages again
            messages += messages[-40:]
    return messages, state


class Parsed(NamedTuple):
    """What a message asks for. `ignored` names a statement; then there are no actions."""

    actions: list[Action]
    rows: int
    ignored: str = ""


def parse(value: bytes | None, rules: Rules, key: bytes | None = None, headers: Headers | None = None) -> Parsed:
    """Reads a message, and makes the actions for its documents."""
    message = read(value, key, headers or {})
    if isinstance(message, Rows):
        return Parsed(actions(message, rules), len(message.rows))
    if isinstance(message, Statement):
        return Parsed([], 0, f"{message.kind} {message.database}.{message.table}")
    return Parsed([], 0)
