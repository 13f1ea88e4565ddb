"""Table schemas from the rows of information_schema, which differ a little between both servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from headrace.mysql.schema.apply import require_sound_labels
from headrace.mysql.schema.ddl.actions import PRIMARY, ColumnDef, Index, TableName
from headrace.mysql.schema.ddl.definition import TableDefinition, in_order, is_row_time, row_times
from headrace.mysql.schema.ddl.types import make_column, parse_type
from headrace.mysql.sql.dialect import Dialect, charset_named, charset_of_collation
from headrace.mysql.sql.tokens import NotParsed

Row = Mapping[str, Any]
_AT_ONCE = 500
"""Tables whose columns are queried by one statement."""

TABLES_SQL = (
    "SELECT TABLE_SCHEMA AS s, TABLE_NAME AS t, TABLE_TYPE AS kind FROM information_schema.TABLES"
    " WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED', 'SEQUENCE')"
)
BASE_TABLES_SQL = (
    "SELECT TABLE_SCHEMA AS s, TABLE_NAME AS t FROM information_schema.TABLES"
    " WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')"
    " AND TABLE_SCHEMA NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema')"
)
SCHEMAS_SQL = "SELECT SCHEMA_NAME AS s, DEFAULT_CHARACTER_SET_NAME AS charset FROM information_schema.SCHEMATA"
_COLUMNS = (
    "SELECT TABLE_NAME AS t, COLUMN_NAME AS name, COLUMN_TYPE AS type, IS_NULLABLE AS nullable,"
    " CHARACTER_SET_NAME AS charset, COLUMN_DEFAULT AS value, COLUMN_COMMENT AS comment, EXTRA AS extra,"
    " ORDINAL_POSITION AS ordinal FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = {schema}{only}"
)
_KEYS = (
    "SELECT TABLE_NAME AS t, INDEX_NAME AS Key_name, NON_UNIQUE AS Non_unique, COLUMN_NAME AS Column_name,"
    " SUB_PART AS Sub_part, SEQ_IN_INDEX AS Seq_in_index FROM information_schema.STATISTICS"
    " WHERE TABLE_SCHEMA = {schema}{only}"
)
"""Named as in SHOW INDEX."""
_COLLATIONS = (
    "SELECT TABLE_NAME AS t, TABLE_COLLATION AS collation, TABLE_TYPE AS kind FROM information_schema.TABLES"
    " WHERE TABLE_SCHEMA = {schema}{only}"
)


def literal(text: str) -> str:
    """Returns a string for a statement, independent of the session's escapes: as hex digits."""
    return f"CONVERT(0x{text.encode().hex()} USING utf8mb4)" if text else "''"


def statements(schema: str, tables: Sequence[str]) -> tuple[str, str, str]:
    """Returns the queries for the columns, indexes and character sets of some tables of one schema."""
    names = [literal(table) for table in tables]
    # for IN MariaDB opens every table of the schema, and waits for locked ones
    only = f" AND TABLE_NAME = {names[0]}" if len(names) == 1 else f" AND TABLE_NAME IN ({', '.join(names)})"
    facts = {"schema": literal(schema), "only": only}
    return _COLUMNS.format(**facts), _KEYS.format(**facts), _COLLATIONS.format(**facts)


async def read_tables(
    query: Callable[[str], Awaitable[Sequence[Row]]], names: Iterable[TableName], dialect: Dialect
) -> AsyncIterator[tuple[TableName, TableDefinition | str]]:
    """Yields the name of each table, with its definition or with why that is unknown. Raises what `query` raises."""
    for schema, of_schema in groupby(sorted(names), itemgetter(0)):
        tables = [table for _, table in of_schema]
        for i in range(0, len(tables), _AT_ONCE):
            part = tables[i : i + _AT_ONCE]
            columns, keys, kinds = [by_table(await query(sql)) for sql in statements(schema, part)]
            for table in part:
                of_keys: Sequence[Row] = keys.get(table, [])
                if order_matters(of_keys):
                    of_keys = await query(show_index(schema, table))
                yield (schema, table), definition_of(columns.get(table, []), of_keys, kinds.get(table, []), dialect)


def order_matters(keys: Iterable[Row]) -> bool:
    """Returns whether one of several unique keys may become the primary key: then they must come from show_index()."""
    return len({_text(row["Key_name"]) for row in keys if not int(row["Non_unique"])} - {PRIMARY}) > 1


def show_index(schema: str, table: str) -> str:
    """Returns the query for the indexes of one table in the server's order, which information_schema does not show."""
    quoted = ("`" + name.replace("`", "``") + "`" for name in (table, schema))
    return "SHOW INDEX FROM {} FROM {}".format(*quoted)


def definition_of(
    columns: Sequence[Row], keys: Sequence[Row], tables: Sequence[Row], dialect: Dialect
) -> TableDefinition | str:
    """Returns one table from the rows about it, or why it is unknown."""
    if not tables:
        return "it was dropped while table schemas were read"
    try:
        return _definition(columns, keys, tables[0], dialect)
    except NotParsed as error:
        return f"what information_schema shows of it is not understood ({error})"


def by_table(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Returns rows by the name of their table."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(_text(row["t"]), []).append(row)
    return found


def _definition(rows: Sequence[Row], keys: Sequence[Row], table: Row, dialect: Dialect) -> TableDefinition:
    if not rows:
        raise NotParsed("it has no columns, or our account may not see them")
    columns = []
    for row in sorted(rows, key=_ordinal):
        extra = _text(row["extra"] or "").upper()
        definition = ColumnDef(
            _text(row["name"]),
            parse_type(_text(row["type"]), dialect),
            _text(row["nullable"]) == "YES",
            _default(row["value"], dialect),
            _text(row["comment"] or ""),
            "AUTO_INCREMENT" in extra,
            "VIRTUAL GENERATED" in extra or "STORED GENERATED" in extra or "PERSISTENT" in extra,
            "INVISIBLE" in extra,
            virtual="VIRTUAL GENERATED" in extra,
        )
        # MySQL shows no character set for ENUM and SET in the binary one.
        charset = charset_named(_text(row["charset"])) if row["charset"] else "binary"
        columns.append(make_column(definition, charset, dialect))
    indexes = list(_indexes(keys))
    primary = [name for index in indexes if index.name == PRIMARY for name, _ in index.parts]
    versioned = _text(table["kind"]) == "SYSTEM VERSIONED"
    if versioned and not any(map(is_row_time, columns)):
        columns += row_times(dialect)
        primary += ["row_end"] if primary else []
    numbers = {column.name: i for i, column in enumerate(columns)}
    require_sound_labels(columns)
    charset = charset_of_collation(_text(table["collation"] or ""))
    others = tuple(index for index in indexes if index.name != PRIMARY)
    others = others if dialect.mariadb else in_order(others, columns)
    return TableDefinition(tuple(columns), tuple(numbers[name] for name in primary), charset, others)


def _indexes(keys: Iterable[Row]) -> Iterator[Index]:
    found: dict[str, list[Row]] = {}
    for row in keys:
        found.setdefault(_text(row["Key_name"]), []).append(row)
    for name, rows in found.items():
        parts = [
            (_text(row["Column_name"] or ""), int(row["Sub_part"] or 0))
            for row in sorted(rows, key=lambda row: int(row["Seq_in_index"]))
        ]
        yield Index(name, not int(rows[0]["Non_unique"]), tuple(parts))


def _ordinal(row: Row) -> int:
    return int(row["ordinal"])


def _default(value: object, dialect: Dialect) -> str | None:
    """Returns a default: MariaDB shows the text of an expression, a string in quotes, the word NULL for none."""
    if value is None:
        return None
    text = _text(value)
    if dialect.mariadb and dialect.version >= 100207:
        if text == "NULL":
            return None
        if len(text) > 1 and text[0] == text[-1] == "'":
            return text[1:-1].replace("''", "'")
    return text


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
