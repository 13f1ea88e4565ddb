"""DROP, RENAME, TRUNCATE, indexes, databases and sequences: the smaller statements about tables."""

from __future__ import annotations

from dataclasses import replace

from headrace.mysql.schema.ddl import actions
from headrace.mysql.schema.ddl.actions import ColumnDef, ColumnType, TableName
from headrace.mysql.schema.ddl.alter import wait
from headrace.mysql.schema.ddl.columns import index_parts
from headrace.mysql.schema.ddl.create import Options, table_option
from headrace.mysql.schema.ddl.cursor import Cursor
from headrace.mysql.schema.ddl.types import SIGNED_WIDTHS, data_type


def drop(c: Cursor) -> actions.DropTables:
    """Parses what follows DROP TABLE."""
    c.takes("IF", "EXISTS")
    names = [c.table()]
    while c.takes(","):
        names.append(c.table())
    c.takes_any("RESTRICT", "CASCADE")
    wait(c)
    c.end()
    return actions.DropTables(tuple(names))


def rename(c: Cursor) -> actions.RenameTables:
    """Parses what follows RENAME TABLE."""
    if_exists = c.takes("IF", "EXISTS")
    pairs: list[tuple[TableName, TableName]] = []
    while True:
        old = c.table()
        wait(c)
        c.expect("TO")
        pairs.append((old, c.table()))
        if not c.takes(","):
            break
    c.end()
    return actions.RenameTables(tuple(pairs), if_exists)


def truncate(c: Cursor) -> actions.Truncate:
    """Parses what follows TRUNCATE [TABLE]."""
    name = c.table()
    wait(c)
    c.takes("DROP", "STORAGE")
    c.takes("REUSE", "STORAGE")
    c.end()
    return actions.Truncate(name)


def index(c: Cursor) -> actions.AlterTable:
    """Parses what follows CREATE or DROP INDEX."""
    before = {token.upper for token in c.tokens[: c.i]}
    c.takes("IF", "EXISTS")
    if_not_exists = c.takes("IF", "NOT", "EXISTS")
    name = c.name()
    if c.takes_any("USING", "TYPE"):
        c.name()
    c.expect("ON")
    table = c.table()
    if "CREATE" not in before:
        return actions.AlterTable(table, (actions.DropIndex(name),))
    made = actions.Index(name, "UNIQUE" in before, index_parts(c))
    return actions.AlterTable(table, (actions.AddIndex(made, if_not_exists, or_replace="REPLACE" in before),))


def create_database(c: Cursor) -> actions.CreateDatabase:
    """Parses what follows CREATE DATABASE."""
    if_not_exists = c.takes("IF", "NOT", "EXISTS")
    name = c.name()
    options = _database_options(c)
    return actions.CreateDatabase(name, options.final or c.dialect.server_charset, if_not_exists)


def alter_database(c: Cursor) -> actions.AlterDatabase:
    """Parses what follows ALTER DATABASE; without a name it is the session's."""
    named = not (c.sees_any("CHARACTER", "CHARSET", "COLLATE", "DEFAULT", "COMMENT", "ENCRYPTION") or c.sees("READ"))
    name = c.name() if named or c.peek().kind == "name" else c.schema
    if c.takes("UPGRADE"):
        raise c.problem("UPGRADE DATA DIRECTORY NAME")
    options = _database_options(c)
    charset = options.final
    return actions.AlterDatabase(name, c.dialect.server_charset if charset == "" else charset or "")


def drop_database(c: Cursor) -> actions.DropDatabase:
    """Parses what follows DROP DATABASE."""
    c.takes("IF", "EXISTS")
    return actions.DropDatabase(c.name())


def _database_options(c: Cursor) -> Options:
    options = Options()
    while not c.done:
        if c.takes("READ", "ONLY"):
            c.takes("=")
            c.skip_value()
        else:
            if c.sees("DEFAULT", "ENCRYPTION"):
                c.i += 1
            if not table_option(c, options):
                raise c.problem("an option of a database that is not known")
    return options


_SEQUENCE = (
    ("next_not_cached_value", "bigint", 21, False, ""),
    ("minimum_value", "bigint", 21, False, ""),
    ("maximum_value", "bigint", 21, False, ""),
    ("start_value", "bigint", 21, False, "start value when sequences is created or value if RESTART is used"),
    ("increment", "bigint", 21, False, "increment value"),
    ("cache_size", "bigint", 21, True, ""),
    ("cycle_option", "tinyint", 1, True, "0 if no cycles are allowed, 1 if the sequence should begin a new cycle when "
     "maximum_value is passed"),
    ("cycle_count", "bigint", 21, False, "How many cycles have been done"),
)  # fmt: skip
"""The columns of a MariaDB sequence, which is a table."""


def create_sequence(c: Cursor) -> actions.CreateTable:
    """Parses what follows CREATE SEQUENCE. Of its options only AS <type>, of MariaDB 11.5, changes the table schema."""
    if_not_exists = c.takes("IF", "NOT", "EXISTS")
    name = c.table()
    types = [ColumnType(kind, width, unsigned=unsigned) for _, kind, width, unsigned, _ in _SEQUENCE]
    while not c.done:
        if c.takes("AS"):
            made = data_type(c)
            if made.kind not in SIGNED_WIDTHS:
                raise c.problem("a sequence of a type that is not known")
            types[:4] = [replace(made, length=SIGNED_WIDTHS[made.kind] + 1)] * 4
        else:
            c.i += 1
    columns = tuple(
        ColumnDef(column, made, nullable=False, comment=comment)
        for (column, _, _, _, comment), made in zip(_SEQUENCE, types, strict=True)
    )
    return actions.CreateTable(name, columns, if_not_exists=if_not_exists, charset="utf8mb4")
