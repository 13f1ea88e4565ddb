"""Conditions on rows are answered as the servers themselves answer them, for every type that compares."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pymysql
import pytest

from headrace.model import Column
from headrace.rules.predicate_parser import parse_condition
from headrace.rules.predicates import bind

pytestmark = pytest.mark.server

TYPES: dict[str, tuple[str, Callable[[Any], Any], list[str], list[str]]] = {
    # column: declared type, what a row has, values, literals
    "i": ("INT", int, ["0", "-7", "7", "100"], ["0", "-7", "7", "7.0", "6.5", "+8", "true", "false", "1e2"]),
    # without -1: MySQL 9.7 holds 18446744073709551615 in (-1, 0.5) for true
    "u": ("BIGINT UNSIGNED", int, ["0", "18446744073709551615"], ["0", "18446744073709551615", "0.5"]),
    "b": ("BIT(9)", lambda raw: int.from_bytes(raw, "big"), ["b'0'", "b'101'"], ["0", "5", "6"]),
    "d": ("DECIMAL(30,3)", str, ["0", "-1.5", "120.500", "99999999999999999.125"], ["0", "120.5", "-1.500", ".5"]),
    "f": ("DOUBLE", float, ["0", "-1.5", "0.1", "1e300"], ["0", "-1.5", "0.1", "1e300", "0.25"]),
    "day": (
        "DATE",
        str,
        ["'2026-01-31'", "'2026-02-01'", "'0000-00-00'", "'2024-02-29'", "'2026-11-00'"],
        ["'2026-01-31'", '"2026-1-31 00:00:00"', "'2026-01-31 12:00:00'", "'0000-00-00'", "'2024-02-29 23:59:59.5'"],
    ),
    "at": (
        "DATETIME(3)",
        str,
        ["'2026-01-31 00:00:00'", "'2026-01-31 12:30:00.500'", "'0000-00-00 00:00:00'", "'1000-01-01 23:59:59.999'"],
        ["'2026-01-31'", "'2026-01-31 12:30'", "'2026-01-31 12:30:00.5'", "'2026-01-31T12:30:00.499'", "'1000-01-02'"],
    ),
    "ts": (
        "TIMESTAMP NULL",
        str,
        ["'2026-01-31 00:00:00'", "'2026-01-31 12:30:00'"],
        ["'2026-01-31'", "'2026-01-31 12:30:00.1'", "'2026-01-31 12:30:00'"],
    ),
    "span": (
        "TIME(2)",
        str,
        ["'00:00:00'", "'-838:59:59'", "'25:00:00.5'", "'-00:00:01'", "'838:59:59'"],
        ["'00:00'", "'25:00:00.50'", "'-0:00:01'", "'9:00:00'", "'838:59:59'", "'-838:59:59'", "'25:00'"],
    ),
    "y": ("YEAR", str, ["2026", "'0000'", "1901", "2155"], ["2026", "'2025'", "2155", "1901"]),
    "s": (
        "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE {bin}",
        str,
        ["''", "'a'", "'A'", "'a '", "'北京'", r"'a\'b'", r"'a\\%'", "'a_b'", r"'x\ny'", "'50%'", "'😀'"],
        ["''", "'a'", '"A"', "'a '", "'北京'", "'a''b'", r"'a\\%'", r"'a\_b'", r'"x\ny"', r"'50\%'", r"'\a'", "'😀'"],
    ),
}
PATTERNS = [
    "'%'",
    "'a%'",
    "'%b'",
    r"'a\_b'",
    "'a_b'",
    r"'%\%'",
    "'__'",
    "'_'",
    r"'a\\\\%'",
    r"'a\\\\\%'",
    "'A'",
    "'%_%'",
    "''",
]
EQUAL_ONLY = {"e": "ENUM('low','High')", "g": "SET('a','b','c')"}
LABELS = {"e": ["'low'", "'High'", "'high'", "''"], "g": ["'a'", "'a,c'", "'c,a'", "''"]}


def rows_of(cursor: Any, rng: random.Random, binary: str) -> tuple[list[Column], list[tuple[Any, ...]]]:
    """A table with random rows of all types, as headrace has them."""
    declared = {name: kind.format(bin=binary) for name, (kind, _, _, _) in TYPES.items()}
    declared |= {name: f"{kind} CHARACTER SET utf8mb4 COLLATE {binary}" for name, kind in EQUAL_ONLY.items()}
    cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {', '.join(f'`{n}` {k}' for n, k in declared.items())})")
    values = {name: choice for name, (_, _, choice, _) in TYPES.items()} | {
        "e": ["'low'", "'High'"],
        "g": ["'a,c'", "''"],
    }
    for number in range(40):
        row = ", ".join("NULL" if rng.random() < 0.15 else rng.choice(values[name]) for name in declared)
        cursor.execute(f"INSERT INTO t VALUES ({number}, {row})")
    cursor.execute("SELECT * FROM t ORDER BY id")
    casts = [int, *(cast for _, cast, _, _ in TYPES.values()), str, str]
    rows = [tuple(None if v is None else c(v) for c, v in zip(casts, row, strict=True)) for row in cursor.fetchall()]
    columns = [Column("id", "int", 4)]
    columns += [Column(n, k.lower(), 0, labels=("low", "High") if n == "e" else ()) for n, k in declared.items()]
    return columns, rows


def comparison(rng: random.Random) -> str:
    """One comparison with a random column, as both languages have it."""
    name = rng.choice([*TYPES, *EQUAL_ONLY])
    literals = LABELS.get(name) or TYPES[name][3]
    one, two = rng.choice(literals), rng.choice(literals)
    operators = ["=", "<>", "!="] if name in EQUAL_ONLY else ["=", "<>", "<", "<=", ">", ">=", "!="]
    kind = rng.randrange(6)
    if kind == 0:
        return f"`{name}` is {rng.choice(['', 'not '])}null"
    if kind == 1:
        return f"{name} {rng.choice(['', 'not '])}in ({one}, {two})"
    if kind == 2 and name not in EQUAL_ONLY:
        return f"{name} {rng.choice(['', 'not '])}between {one} and {two}"
    if kind == 3:
        return f"s {rng.choice(['', 'not '])}like {rng.choice(PATTERNS)}"
    if kind == 4:
        return f"{one} {rng.choice(operators)} {name}"
    return f"{name} {rng.choice(operators)} {one}"


def condition(rng: random.Random, depth: int = 0) -> str:
    if depth == 3 or rng.random() < 0.4:
        return comparison(rng)
    inner = [condition(rng, depth + 1) for _ in range(rng.randint(2, 3))]
    text = rng.choice([" and ", " or "]).join(inner)
    return rng.choice([text, f"({text})", f"not ({text})", f"not {text}"])


@pytest.mark.parametrize("server", ["mysql", "mariadb"])
def test_random_conditions_are_answered_as_by_the_server(server: str, request: pytest.FixtureRequest) -> None:
    rng = random.Random(7)
    connection = request.getfixturevalue(server).connection("root") | {"conv": {}, "charset": "utf8mb4"}
    with pymysql.connect(**connection, autocommit=True) as db, db.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        cursor.execute("CREATE DATABASE rules_server")
        try:
            cursor.execute("USE rules_server")
            columns, rows = rows_of(cursor, rng, "utf8mb4_0900_bin" if server == "mysql" else "utf8mb4_nopad_bin")
            for _ in range(60):
                conditions = [condition(rng) for _ in range(25)]
                cursor.execute(f"SELECT {', '.join(f'({one})' for one in conditions)} FROM t ORDER BY id")
                theirs = list(zip(*cursor.fetchall(), strict=True))
                for text, answers in zip(conditions, theirs, strict=True):
                    match = bind(parse_condition(text), columns)
                    ours = [match(row) for row in rows]
                    wanted = [None if answer is None else answer == "1" for answer in answers]
                    wrong = [row for row, got, want in zip(rows, ours, wanted, strict=True) if got is not want]
                    assert not wrong, (text, wrong[0], ours[rows.index(wrong[0])])
        finally:
            cursor.execute("DROP DATABASE rules_server")
