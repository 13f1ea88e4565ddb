"""The tables of information_schema and performance_schema that clients ask for (MySQL manual, "INFORMATION_SCHEMA
Tables")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sim.mysql.errors import SqlError
from sim.mysql.schema import NOW, Column, Table

if TYPE_CHECKING:
    from sim.mysql.session import Session

Rows = Sequence[tuple[Any, ...]]


def _kinds(columns: str) -> dict[str, str]:
    """Returns the kinds of values by the names of columns; those without one are texts."""
    return {name: kind or "text" for name, _, kind in (column.partition(":") for column in columns.split())}


_TABLES = _kinds(
    "TABLE_CATALOG TABLE_SCHEMA TABLE_NAME TABLE_TYPE:label ENGINE TABLE_ROWS:uint DATA_LENGTH:uint TABLE_COLLATION"
    " TABLE_COMMENT"
)
_COLUMNS = _kinds(
    "TABLE_SCHEMA TABLE_NAME COLUMN_NAME ORDINAL_POSITION:long COLUMN_DEFAULT:blob IS_NULLABLE DATA_TYPE:blob"
    " CHARACTER_SET_NAME COLLATION_NAME COLUMN_TYPE:blob COLUMN_KEY:label EXTRA COLUMN_COMMENT:blob"
)
_STATISTICS = _kinds(
    "TABLE_SCHEMA TABLE_NAME NON_UNIQUE:long INDEX_NAME SEQ_IN_INDEX:long COLUMN_NAME SUB_PART:int NULLABLE"
)
_SCHEMATA = _kinds("CATALOG_NAME SCHEMA_NAME DEFAULT_CHARACTER_SET_NAME DEFAULT_COLLATION_NAME")
_PROCESSLIST = _kinds("ID:uint USER HOST DB COMMAND TIME:int STATE INFO:blob")
_SYSTEM = ("information_schema", "mysql", "performance_schema", "sys")
_ROW_BYTES = 100


def table(session: Session, schema: str, name: str) -> tuple[dict[str, str], Rows]:
    """Returns the columns with the kinds of their values, and the rows, of a table. Raises SqlError for one that the
    model does not have."""
    if schema == "information_schema":
        if name == "tables":
            return _TABLES, [_of_table(one) for one in _seen(session)]
        if name == "columns":
            return _COLUMNS, [row for one in _seen(session) for row in _of_columns(one)]
        if name == "statistics":
            return _STATISTICS, [row for one in _seen(session) for row in _of_indexes(one)]
        if name == "schemata":
            return _SCHEMATA, _of_schemas(session)
    if (schema, name) == ("performance_schema", "processlist"):
        return _PROCESSLIST, session.server.processes(session)
    raise SqlError(1109, f"Unknown table '{name.upper()}' in {schema}")


def _seen(session: Session) -> list[Table]:
    tables = session.engine.catalog.tables()
    return [one for one in tables if session.sees(one.definition.schema, one.definition.name)]


def _of_table(one: Table) -> tuple[Any, ...]:
    definition, rows = one.definition, len(one.rows)
    size = max(16384, rows * _ROW_BYTES)
    return (
        *("def", definition.schema, definition.name, "BASE TABLE", "InnoDB", rows, size),
        *(definition.collation, ""),
    )


def _default(column: Column) -> str | None:
    if column.default is NOW:
        digits = f"({column.type.decimals})" if column.type.decimals else ""
        return f"CURRENT_TIMESTAMP{digits}"
    return None if column.default is None else column.type.print(column.default).decode(column.type.codec, "replace")


def _of_columns(one: Table) -> list[tuple[Any, ...]]:
    definition, rows = one.definition, []
    for number, column in enumerate(definition.columns):
        kind = column.type
        text = kind.collation != "binary"
        extra = "auto_increment" if column.auto_increment else "DEFAULT_GENERATED" if column.default is NOW else ""
        rows.append(
            (
                *(definition.schema, definition.name, column.name, number + 1, _default(column)),
                *("YES" if column.nullable else "NO", kind.name, kind.charset if text else None),
                *(kind.collation if text else None, kind.text, "PRI" if number in definition.primary else ""),
                *(extra, column.comment),
            )
        )
    return rows


def _of_indexes(one: Table) -> list[tuple[Any, ...]]:
    definition = one.definition
    return [
        (
            *(definition.schema, definition.name, int(not index.unique), index.name, at, name, None),
            "YES" if definition.columns[definition.numbers[name.lower()]].nullable else "",
        )
        for index in sorted(definition.indexes, key=lambda index: index.name != "PRIMARY")
        for at, name in enumerate(index.columns, 1)
    ]


def show_index(one: Table) -> tuple[Sequence[str], Rows]:
    """Returns what SHOW INDEX prints."""
    names = ("Table", "Non_unique", "Key_name", "Seq_in_index", "Column_name", "Sub_part", "Null")
    return names, [(row[1], row[2], row[3], row[4], row[5], row[6], row[7]) for row in _of_indexes(one)]


def _of_schemas(session: Session) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = [("def", name, "utf8mb4", "utf8mb4_0900_ai_ci") for name in _SYSTEM]
    for name, schema in sorted(session.engine.catalog.schemas.items()):
        if session.sees(name, ""):
            rows.append(("def", name, schema.collation.partition("_")[0], schema.collation))
    return rows


def schema_sizes(session: Session) -> tuple[Sequence[str], Rows]:
    """Returns how many tables each database has."""
    tables = _seen(session)
    names = [row[1] for row in _of_schemas(session)]
    counts = [(name, sum(1 for one in tables if one.definition.schema == name)) for name in sorted(names)]
    return ("s", "c"), counts
