"""JSON diffs (binlog_row_value_options = PARTIAL_JSON): hundreds of random changes give what SELECT says."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.binlogs import connect, declared, decode, image, new_file, select

pytestmark = pytest.mark.server

KEYS = ["a", "b", "key with space", "中", 'quo"te', "back\\slash", "long" * 20, "", "0", "k.d", "B"]


def scalar(rng: random.Random) -> Any:
    return rng.choice([None, True, 0, -7, 70000, 5000000000, 1.5, -2.5e-9, "", "short", "字" * 50, "x" * 300, 'a"b\\'])


def document(rng: random.Random, depth: int) -> Any:
    kind = rng.random()
    if depth == 0 or kind < 0.3:
        return scalar(rng)
    if kind < 0.6:
        return [document(rng, depth - 1) for _ in range(rng.randrange(5))]
    return {key: document(rng, depth - 1) for key in rng.sample(KEYS, rng.randrange(1, 6))}


def path(rng: random.Random, value: Any) -> str:
    text = "$"
    while isinstance(value, (dict, list)) and (text == "$" or rng.random() < 0.6):
        if isinstance(value, dict):
            key = rng.choice([*value, *KEYS])
            text, value = text + "." + json.dumps(key, ensure_ascii=False), value.get(key)
        else:
            at = rng.randrange(len(value) + 2)
            text, value = f"{text}[{at}]", value[at] if at < len(value) else None
    return text


def test_diffs_of_documents_give_what_the_server_has(mysql: Any) -> None:
    rng = random.Random(20261121)
    with connect(mysql) as connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS partial")
        cursor.execute("CREATE DATABASE partial")
        cursor.execute("USE partial")
        cursor.execute("SET binlog_row_value_options = 'PARTIAL_JSON'")
        file = new_file(mysql, cursor)
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT, j JSON, k JSON)")
        for i in range(60):
            texts = [json.dumps(document(rng, 4), ensure_ascii=False) for _ in range(2)]
            cursor.execute("INSERT INTO t VALUES (%s, 0, %s, %s)", (i, *texts))
        for i in range(600):
            number = rng.randrange(60)
            column = rng.choice("jk")
            cursor.execute(f"SELECT {column} FROM t WHERE id = {number}")
            value = json.loads(cursor.fetchone()[0])
            function = rng.choice(["JSON_SET", "JSON_SET", "JSON_REPLACE", "JSON_REMOVE"])
            changes = []
            for _ in range(rng.randrange(1, 4)):
                where = path(rng, value)
                if where == "$":
                    continue
                changes.append(connection.escape(where))
                if function != "JSON_REMOVE":
                    new = json.dumps(document(rng, 2), ensure_ascii=False)
                    changes.append(f"CAST({connection.escape(new)} AS JSON)")
            if changes:
                call = f"{function}({column}, {', '.join(changes)})"
                cursor.execute(f"UPDATE t SET {column} = {call}, n = {i} WHERE id = {number}")
        table = declared(cursor, "partial", "t")
        expected = select(cursor, table, mariadb=False)
        new_file(mysql, cursor)
        cursor.execute("DROP DATABASE partial")
    raw = file.read_bytes()
    kinds, at = [], 4
    while at < len(raw):
        kinds.append(raw[at + 4])
        at += int.from_bytes(raw[at + 9 : at + 13], "little")
    assert kinds.count(39) > 200, "most updates are written as diffs"
    assert image(decode(file, schema="partial"), table) == expected
