"""Parses CREATE TABLE: its columns, keys, options and partitions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.mysql.schema.ddl.actions import OVERLAPS, ColumnDef, CreateTable, Index, indexes_of
from headrace.mysql.schema.ddl.columns import column_definition, constraint
from headrace.mysql.schema.ddl.cursor import Cursor
from headrace.mysql.schema.ddl.types import charset_clause, collate_clause

_OPTIONS = (
    "ENGINE", "TYPE", "AUTO_INCREMENT", "AUTOEXTEND_SIZE", "AVG_ROW_LENGTH", "CHECKSUM", "TABLE_CHECKSUM",
    "COMPRESSION", "CONNECTION", "DELAY_KEY_WRITE", "ENCRYPTION", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE",
    "INSERT_METHOD", "KEY_BLOCK_SIZE", "MAX_ROWS", "MIN_ROWS", "PACK_KEYS", "PASSWORD", "ROW_FORMAT",
    "SECONDARY_ENGINE", "COMMENT", "STATS_AUTO_RECALC", "STATS_PERSISTENT", "STATS_SAMPLE_PAGES", "TABLESPACE",
    "UNION", "ENCRYPTED", "ENCRYPTION_KEY_ID", "IETF_QUOTES", "PAGE_CHECKSUM", "PAGE_COMPRESSED",
    "PAGE_COMPRESSION_LEVEL", "TRANSACTIONAL", "STORAGE",
)  # fmt: skip
"""Table options with a value that do not change the table schema."""


@dataclass(slots=True)
class Options:
    """The effect of table options on the table schema. `charset` is None if they have none, "" for the schema's
    default."""

    charset: str | None = None
    collation: str = ""
    versioned: bool = False
    start_transaction: bool = False
    """Written by MySQL after CREATE ... SELECT."""

    @property
    def final(self) -> str | None:
        """Returns the resulting character set: a collation implies one too."""
        return self.charset or self.collation or self.charset


def table_option(c: Cursor, found: Options) -> bool:
    """Parses one table option, if there is one."""
    start = c.i
    c.takes("DEFAULT")
    if c.sees("CHARACTER", "SET") or c.sees("CHARSET") or c.sees("CHAR", "SET"):
        found.charset = charset_clause(c)
        return True
    if c.sees("COLLATE"):
        found.collation = collate_clause(c)
        if not found.collation and found.charset is None and c.tokens[c.i - 1].upper == "DEFAULT":
            found.charset = ""
        return True
    c.i = start
    if c.takes_any("DATA", "INDEX"):
        c.expect("DIRECTORY")
        c.takes("=")
        c.string()
        return True
    if c.takes("START", "TRANSACTION"):
        found.start_transaction = True
        return True
    if c.takes("WITH", "SYSTEM", "VERSIONING"):
        found.versioned = True
        return True
    if c.skips(*_OPTIONS):
        return True
    if c.peek().kind in ("word", "name") and c.peek(1).value == "=" and c.peek(1).kind == "op":
        c.i += 2  # an engine's own option
        c.skip_value()
        return True
    return False


def partitions(c: Cursor) -> None:
    """Skips PARTITION BY to the end of the statement: it does not affect the table schema."""
    c.expect("PARTITION", "BY")
    while not c.done:
        if c.sees("("):
            c.parens()
        elif c.peek().kind == "op" and c.peek().value in ");," and not c.sees(","):
            raise c.problem("partitions that are not known")
        elif c.sees_any("SELECT", "WITH", "VALUES") and not _partition_values(c):
            raise c.problem("a query was not expected")
        else:
            c.i += 1


def _partition_values(c: Cursor) -> bool:
    return c.sees("VALUES") and c.peek(1).upper in ("LESS", "IN")


def create_table(c: Cursor) -> CreateTable:
    """Parses all that follows CREATE [OR REPLACE] [TEMPORARY] TABLE. Raises NotParsed."""
    if_not_exists = c.takes("IF", "NOT", "EXISTS")
    made = CreateTable(c.table(), if_not_exists=if_not_exists)
    if c.sees("LIKE") or c.sees("(", "LIKE"):
        within = c.takes("(")
        c.expect("LIKE")
        made = replace(made, like=c.table())
        if within:
            c.expect(")")
        c.end()
        return made
    made = _body(c, made)
    options = Options()
    while table_option(c, options):
        c.takes(",")
    if c.sees("PARTITION", "BY"):
        partitions(c)
    c.end()
    versioned = options.versioned or any(column.versioned for column in made.columns)
    return replace(made, charset=options.final or "", versioned=versioned, atomic_select=options.start_transaction)


def _body(c: Cursor, made: CreateTable) -> CreateTable:
    c.expect("(")
    columns: list[ColumnDef] = []
    indexes: list[Index] = []
    periods: dict[str, tuple[str, str]] = {}
    while True:
        if c.sees("PERIOD", "FOR"):
            periods |= _period(c)
        else:
            key = constraint(c)
            if isinstance(key, Index):
                indexes.append(key)
            elif not key:
                columns.append(column_definition(c))
                indexes += indexes_of(columns[-1])
        if not c.takes(","):
            break
    c.expect(")")
    lower = {name.lower() for both in periods.values() for name in both}
    fixed = tuple(replace(col, nullable=False) if col.name.lower() in lower else col for col in columns)
    return replace(made, columns=fixed, indexes=tuple(_spread(index, periods) for index in indexes))


def _spread(index: Index, periods: dict[str, tuple[str, str]]) -> Index:
    """Returns the index with the columns of a period in place of it: MariaDB puts the end first."""
    parts: list[tuple[str, int]] = []
    for name, prefix in index.parts:
        if prefix == OVERLAPS:
            start, end = periods.get(name.lower(), ("", ""))
            parts += [(end, 0), (start, 0)]
        else:
            parts.append((name, prefix))
    return replace(index, parts=tuple(parts))


def _period(c: Cursor) -> dict[str, tuple[str, str]]:
    """Parses MariaDB's PERIOD FOR name (start, end), by its name: both columns become NOT NULL."""
    c.expect("PERIOD", "FOR")
    name = c.name().lower()
    c.expect("(")
    first = c.name()
    c.expect(",")
    second = c.name()
    c.expect(")")
    return {name: (first, second)}
