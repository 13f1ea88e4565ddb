"""Random CREATE and ALTER statements, for comparison of the schema history with a real server."""

# ruff: noqa: E501

from __future__ import annotations

from random import Random

TYPES = (
    "int", "int unsigned", "tinyint", "tinyint(1)", "tinyint(1) unsigned", "smallint(4) zerofill", "mediumint", "bigint",
    "bigint(20) unsigned", "decimal", "decimal(7)", "decimal(20,6) unsigned", "float", "float(30)", "double(8,3)", "real",
    "bit", "bit(17)", "char", "char(7)", "varchar(1)", "varchar(100)", "varchar(300)", "nchar(3)", "text", "tinytext",
    "mediumtext", "longtext", "text(70)", "text(300)", "text(20000)", "blob", "blob(200)", "longblob", "binary(5)",
    "varbinary(400)", "date", "time", "time(2)", "datetime", "datetime(6)", "timestamp null", "year", "json",
    "enum('a','b')", "set('x','y','z')", "enum('q''r','ü') charset utf8mb4", "char(3) binary", "varchar(9) charset latin1",
    "varchar(9) collate utf8mb4_bin", "text charset gbk", "char(4) ascii", "varchar(5) charset binary", "point", "geometry",
    "varchar(7) byte", "long varchar", "bool", "serial_", "enum('x') charset latin1 collate latin1_bin", "int comment 'a'",
)  # fmt: skip
CHARSETS = ("utf8mb4", "latin1", "gbk", "utf8mb3", "latin2", "ascii", "ucs2")
NAMES = ("a", "b", "c", "d", "e", "f", "`g h`", "`ï`", "A1", "b1")
TABLES = ("t", "u", "v")


def statement(rng: Random, known: dict[str, list[str]]) -> str:
    """One statement about tables whose columns, as far as is known, are `known`; many of them are refused."""
    table = rng.choice(TABLES)
    if table not in known or rng.random() < 0.06:
        return _create(rng, table)
    columns = known[table] or ["a"]
    roll = rng.random()
    if roll < 0.04:
        return f"RENAME TABLE {table} TO {rng.choice(TABLES)}2, {rng.choice(TABLES)} TO {table}"
    if roll < 0.08:
        return f"RENAME TABLE {table} TO w, {rng.choice(TABLES)} TO {table}, w TO {rng.choice(TABLES)}"
    if roll < 0.11:
        return f"DROP TABLE IF EXISTS {table}"
    if roll < 0.15:
        other = rng.choice(TABLES)
        return f"CREATE TABLE {'IF NOT EXISTS ' if rng.random() < 0.5 else ''}{other} LIKE {table}"
    if roll < 0.19:
        return f"CREATE TABLE {rng.choice(TABLES)} AS SELECT * FROM {table}"
    if roll < 0.22:
        return f"ALTER DATABASE CHARACTER SET {rng.choice(CHARSETS)}"
    parts = [_part(rng, columns) for _ in range(rng.choice((1, 1, 2, 2, 3, 4, 5)))]
    return f"ALTER TABLE {table} " + ", ".join(parts)


def _create(rng: Random, table: str) -> str:
    names = rng.sample(NAMES, rng.randint(1, 6))
    parts = [_column(rng, name) for name in names]
    if rng.random() < 0.5:
        parts.append(f"PRIMARY KEY ({', '.join(rng.sample(names, rng.randint(1, min(2, len(names)))))})")
    charset = f" CHARSET {rng.choice(CHARSETS)}" if rng.random() < 0.5 else ""
    verb = "CREATE TABLE IF NOT EXISTS" if rng.random() < 0.2 else "CREATE TABLE"
    return f"{verb} {table} ({', '.join(parts)}){charset}"


def _column(rng: Random, name: str) -> str:
    kind = rng.choice(TYPES)
    if kind == "serial_":
        kind = "bigint unsigned"
    words = (" NOT NULL", " NULL", " NOT NULL UNIQUE", " UNIQUE", " COMMENT 'x, y'", " INVISIBLE")
    attributes = [a for a in words if rng.random() < 0.12]
    if " NULL" in attributes and (" NOT NULL" in attributes or " NOT NULL UNIQUE" in attributes):
        attributes = []
    return f"{name} {kind}{''.join(attributes)}"


def _place(rng: Random, columns: list[str]) -> str:
    roll = rng.random()
    if roll < 0.2:
        return " FIRST"
    return f" AFTER {rng.choice([*columns, *NAMES[:3]])}" if roll < 0.55 else ""


def _part(rng: Random, columns: list[str]) -> str:
    old, new, roll = rng.choice(columns), rng.choice(NAMES), rng.random()
    if roll < 0.2:
        return f"ADD COLUMN {_column(rng, new)}{_place(rng, columns)}"
    if roll < 0.32:
        return f"DROP COLUMN {old}"
    if roll < 0.48:
        return f"MODIFY {_column(rng, old)}{_place(rng, columns)}"
    if roll < 0.62:
        return f"CHANGE {old} {_column(rng, new)}{_place(rng, columns)}"
    if roll < 0.74:
        return f"RENAME COLUMN {old} TO {new}"
    if roll < 0.78:
        return f"ADD PRIMARY KEY ({', '.join(dict.fromkeys((old, rng.choice(columns))))})"
    if roll < 0.82:
        return "DROP PRIMARY KEY"
    if roll < 0.88:
        return f"CONVERT TO CHARACTER SET {rng.choice(CHARSETS)}"
    if roll < 0.93:
        return f"DEFAULT CHARACTER SET {rng.choice(CHARSETS)}"
    if roll < 0.95:
        return f"ADD {rng.choice(('INDEX', 'UNIQUE'))} ({', '.join(dict.fromkeys((old, rng.choice(columns))))})"
    if roll < 0.97:
        return f"DROP INDEX {old}"
    return f"ALTER COLUMN {old} SET DEFAULT 1"
