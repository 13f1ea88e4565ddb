"""Table schemas as Debezium's schema changes describe them (tableChanges)."""

from __future__ import annotations

import re
from typing import Any

from headrace.model import Column, DdlKind, TableChange, TableSchema

_ROWS_ONLY = frozenset({DdlKind.TRUNCATE})
_NOT_DESCRIBED = _ROWS_ONLY | {DdlKind.CREATE_INDEX, DdlKind.DROP_INDEX}
_TYPES = {DdlKind.CREATE: "CREATE", DdlKind.ERASE: "DROP"}
_JDBC = {
    **dict.fromkeys(("tinyint", "smallint"), 5),
    **dict.fromkeys(("mediumint", "int", "year"), 4),
    "bigint": -5,
    "float": 6,
    "double": 8,
    "decimal": 3,
    "bit": -7,
    "date": 91,
    "time": 92,
    "datetime": 93,
    "timestamp": 2014,
    **dict.fromkeys(("char", "enum", "set"), 1),
    **dict.fromkeys(("varchar", "tinytext", "text", "mediumtext", "longtext"), 12),
    "binary": -2,
    "varbinary": -3,
    **dict.fromkeys(("tinyblob", "blob", "mediumblob", "longblob"), 2004),
}
"""java.sql.Types as Debezium's parser of DDL returns them; all other types are OTHER."""
_OTHER = 1111
_SIZES = re.compile(r"\((\d+)(?:,(\d+))?\)")


def table_changes(changes: tuple[TableChange, ...], *, alters: bool) -> list[dict[str, Any]]:
    """Returns the list of `tableChanges`: the changes of a table's description. It does not include a TRUNCATE, CREATE
    INDEX or DROP INDEX, but every ALTER TABLE."""
    left_out = _ROWS_ONLY if alters else _NOT_DESCRIBED
    return [_change(change) for change in changes if change.kind not in left_out]


def _change(change: TableChange) -> dict[str, Any]:
    name = ".".join('"' + part.replace('"', '""') + '"' for part in (change.schema, change.table))
    table = _table(change.after) if change.after is not None else None
    return {"type": _TYPES.get(change.kind, "ALTER"), "id": name, "table": table}


def _table(schema: TableSchema) -> dict[str, Any]:
    return {
        "defaultCharsetName": None,
        "primaryKeyColumnNames": [schema.columns[i].name for i in schema.keys],
        "columns": [_column(column, position) for position, column in enumerate(schema.columns, 1)],
        "comment": None,
    }


def _column(column: Column, position: int) -> dict[str, Any]:
    kind = column.kind
    sizes = _SIZES.search(column.mysql_type) if kind not in ("enum", "set") else None
    # What is in parentheses has its own fields; MySQL writes types in lower case, Debezium in capitals.
    name = re.sub(r"\(.*\)", "", column.mysql_type, flags=re.DOTALL).upper()
    return {
        "name": column.name,
        "jdbcType": _JDBC.get(kind, _OTHER),
        "nativeType": None,
        "typeName": name,
        "typeExpression": name,
        "charsetName": column.charset if column.charset not in ("", "binary") else None,
        "length": int(sizes[1]) if sizes else column.length or None,
        "scale": int(sizes[2]) if sizes and sizes[2] else None,
        "position": position,
        "optional": column.nullable,
        "autoIncremented": column.auto_increment,
        "generated": column.auto_increment or column.generated,
        "comment": column.comment or None,
        "defaultValueExpression": column.default,
        "enumValues": ["'" + label.replace("'", "''") + "'" for label in column.labels] or None,
    }
