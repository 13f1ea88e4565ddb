"""Canal's flat JSON (com.alibaba.otter.canal.protocol.FlatMessage), with or without headrace's `_pos`."""

from __future__ import annotations

from typing import Any, cast

from headrace_documents.errors import MessageError
from headrace_documents.formats.changes import (
    MAX_VERSION,
    Headers,
    Message,
    Nothing,
    Row,
    Rows,
    Statement,
    header_position,
    position_of,
)

_TEXT = frozenset({str})
_CELLS = frozenset({str, type(None)})
_WITHOUT_ROWS = frozenset({"TRANSACTIONBEGIN", "TRANSACTIONEND"})
_SQL_TYPES = {
    **dict.fromkeys((-7, -6, -5, 4, 5, 16), "bigint"),
    **dict.fromkeys((6, 7, 8), "double"),
    **dict.fromkeys((2, 3), "decimal"),
}
"""java.sql.Types, used only if mysqlType is missing: Canal calls a BIGINT UNSIGNED a DECIMAL there."""


def is_canal(message: dict[str, Any]) -> bool:
    """Returns whether an object may be a message of Canal."""
    return "database" in message and "type" in message


def read_canal(message: dict[str, Any], headers: Headers) -> Message:
    """Reads a message. Raises MessageError, and then nothing of it may be applied.

    Row i has the version `_pos` + i, from the message or from the header `headrace-pos`. Canal itself has neither: then
    it is the time of the commit in seconds followed by the number of Canal's batch, one for all rows, so that of two
    changes within a batch the one that is read later counts."""
    database, table, kind = message.get("database"), message.get("table"), message.get("type")
    if not (isinstance(database, str) and isinstance(table, str) and isinstance(kind, str)):
        wrong = next(name for name in ("database", "table", "type") if not isinstance(message.get(name), str))
        raise MessageError(f"not a Canal message: {wrong!r} is not a string")
    if kind in _WITHOUT_ROWS:
        return Nothing(kind)
    if message.get("isDdl") is True or kind == "QUERY":
        sql = message.get("sql")
        return Statement(kind, database, table, sql if isinstance(sql, str) else "", _pos(message, headers))
    if kind not in ("INSERT", "UPDATE", "DELETE"):
        raise MessageError(f"type {kind!r} is none of INSERT, UPDATE, DELETE")
    version, step = _version(message, headers)
    rows = _rows(message)
    if version + (len(rows) - 1) * step > MAX_VERSION:
        raise MessageError("_pos is too large for the rows of the message")
    keys = _keys(message)
    types = _types(message, rows[0])
    es = message.get("es")
    olds = _olds(message, len(rows)) if kind == "UPDATE" else [None] * len(rows)
    committed = es if isinstance(es, int) else 0
    return Rows(database, table, cast(Any, kind), keys, types, rows, olds, version, step, committed)


def _object(message: dict[str, Any], name: str) -> dict[str, Any]:
    value = message.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MessageError(f"not a Canal message: {name!r} is not an object")
    return value


def _types(message: dict[str, Any], row: Row) -> dict[str, str]:
    declared, numbers = _object(message, "mysqlType"), _object(message, "sqlType")
    if declared and all(declared.values()) and _TEXT.issuperset(map(type, declared.values())):
        return declared
    types = {}
    for column in declared or (numbers.keys() & row.keys()):
        text, number = declared.get(column), numbers.get(column)
        types[column] = text if isinstance(text, str) and text else _SQL_TYPES.get(cast(Any, number), "")
    return types


def _version(message: dict[str, Any], headers: Headers) -> tuple[int, int]:
    if position := _pos(message, headers):
        return position, 1
    es, batch = message.get("es"), message.get("id")
    if not isinstance(es, int) or not isinstance(batch, int) or not 0 < es < 1 << 43 or batch < 0:
        raise MessageError("neither _pos nor es and id: without them the order of changes is unknown")
    return (es // 1000 << 31) | (batch & 0x7FFFFFFF), 0


def _pos(message: dict[str, Any], headers: Headers) -> int:
    """Returns the position; 0 if there is none."""
    text = message.get("_pos")
    return header_position(headers) if text is None else position_of(text, "_pos")


def _rows(message: dict[str, Any]) -> list[Row]:
    rows = message.get("data")
    if not isinstance(rows, list) or not rows:
        raise MessageError("not a Canal message: 'data' is not a list of rows")
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            raise MessageError(f"not a Canal message: row {i} of 'data' is not an object")
        if not _CELLS.issuperset(map(type, row.values())):
            column = next(name for name, value in row.items() if type(value) not in _CELLS)
            raise MessageError(f"not a Canal message: column {column!r} of row {i} is neither a string nor null")
    return rows


def _keys(message: dict[str, Any]) -> tuple[str, ...]:
    keys = message.get("pkNames")
    if not keys:
        return ()
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise MessageError("not a Canal message: 'pkNames' is not a list of strings")
    return tuple(keys)


def _olds(message: dict[str, Any], count: int) -> list[Row | None]:
    olds = message.get("old")
    if olds is None:
        return [None] * count
    if not isinstance(olds, list) or len(olds) != count:
        raise MessageError("not a Canal message: 'old' has not one entry for each row of 'data'")
    if not all(old is None or isinstance(old, dict) for old in olds):
        raise MessageError("not a Canal message: an entry of 'old' is not an object")
    return olds
