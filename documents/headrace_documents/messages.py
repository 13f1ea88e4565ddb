"""Messages into document actions: one pure function a format, behind `PARSERS`.

The one format so far is Canal's flat JSON with headrace's `_pos`. A further format is one more function and one more
line in the registry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import orjson

from headrace_documents.documents import (
    MAX_VERSION,
    TOMBSTONE,
    Action,
    Rules,
    Value,
    converters,
    document_id,
    expand_prefix,
    index_name,
    index_owner,
)
from headrace_documents.errors import MessageError

Json = object


class Parsed(NamedTuple):
    """What a message asks for. `ignored` names the DDL that was passed over; then there are no actions."""

    actions: list[Action]
    rows: int
    ignored: str = ""


Parser = Callable[[bytes | None, Rules], Parsed]

_WITHOUT_ROWS = frozenset({"QUERY", "TRANSACTIONBEGIN", "TRANSACTIONEND"})
"""Texts of statements and marks of transactions: what a daemon publishes only when it is asked to."""


def parse_canal(value: bytes | None, rules: Rules) -> Parsed:
    """Reads one Canal flat message with `_pos`.

    Row i of the message has version `_pos + i`: the daemon reserves a number for each row, so versions grow with the
    binlog and a message that is sent again carries the same ones. Raises MessageError, and then nothing of the
    message is applied.
    """
    message = _load(value)
    database, table = _text(message, "database"), _text(message, "table")
    kind = _text(message, "type")
    if message.get("isDdl") is True or kind in _WITHOUT_ROWS:
        return Parsed([], 0, f"{kind} {database}.{table}")
    if kind not in ("INSERT", "UPDATE", "DELETE"):
        raise MessageError(f"type {kind!r} is none of INSERT, UPDATE, DELETE")
    position = _position(message)
    rows = _rows(message)
    if position + len(rows) - 1 > MAX_VERSION:
        raise MessageError("_pos is too large for the rows of the message")
    keys = _keys(message, database, table)
    rules = expand_prefix(rules, database, table)
    index = index_name(rules.index_template, database, table)
    owner = index_owner(rules.index_template, database, table)
    gone = TOMBSTONE if rules.tombstones else None
    if kind == "DELETE":
        ids = [document_id(keys, row, rules) for row in rows]
        return Parsed([Action(index, name, position + i, gone, i, owner) for i, name in enumerate(ids)], len(rows))

    mysql_types, sql_types = _object(message, "mysqlType"), _object(message, "sqlType")
    typed = converters(rules, mysql_types, sql_types)
    olds = _olds(message, len(rows)) if kind == "UPDATE" else [None] * len(rows)
    actions: list[Action] = []
    for i, row in enumerate(rows):
        # Under binlog_row_image=MINIMAL a row lacks columns. An index request replaces the whole document, so such
        # a row would wipe the columns it is silent about.
        if not mysql_types.keys() <= row.keys():
            missing = ", ".join(sorted(mysql_types.keys() - row.keys()))
            raise MessageError(f"row {i} is not whole, it lacks {missing}: the source needs binlog_row_image=FULL")
        name = document_id(keys, row, rules)
        old = olds[i]
        if old is not None and any(key in old for key in keys):
            before = document_id(keys, {**row, **{key: old[key] for key in keys if key in old}}, rules)
            if before != name:
                actions.append(Action(index, before, position + i, gone, i, owner))
        body = cast(dict[str, Value], row)
        for column, convert in typed:
            text = body.get(column)
            if isinstance(text, str):
                body[column] = convert(text)
        actions.append(Action(index, name, position + i, body, i, owner))
    return Parsed(actions, len(rows))


PARSERS: dict[str, Parser] = {"canal": parse_canal}


def _load(value: bytes | None) -> dict[str, Json]:
    if not value:
        raise MessageError("the message is empty")
    try:
        message = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise MessageError(f"not JSON: {error}") from None
    if not isinstance(message, dict):
        raise MessageError("not a JSON object")
    return message


def _text(message: dict[str, Json], name: str) -> str:
    value = message.get(name)
    if not isinstance(value, str):
        raise MessageError(f"not a Canal message: {name!r} is not a string")
    return value


def _object(message: dict[str, Json], name: str) -> dict[str, Json]:
    value = message.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MessageError(f"not a Canal message: {name!r} is not an object")
    return value


def _position(message: dict[str, Json]) -> int:
    text = message.get("_pos")
    if text is None:
        raise MessageError("no _pos: without it the order of changes is unknown")
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > 19:
        raise MessageError("_pos is not a string of at most 19 digits")
    position = int(text)
    if not 0 < position <= MAX_VERSION:
        raise MessageError("_pos is not between 1 and 2^63 - 1")
    return position


def _rows(message: dict[str, Json]) -> list[dict[str, Json]]:
    rows = message.get("data")
    if not isinstance(rows, list) or not rows:
        raise MessageError("not a Canal message: 'data' is not a list of rows")
    for i, row in enumerate(rows):
        if not isinstance(row, dict):
            raise MessageError(f"not a Canal message: row {i} of 'data' is not an object")
        for column, value in row.items():
            if value is not None and not isinstance(value, str):
                raise MessageError(f"not a Canal message: column {column!r} of row {i} is neither a string nor null")
    return rows


def _keys(message: dict[str, Json], database: str, table: str) -> list[str]:
    keys = message.get("pkNames")
    if not keys:
        raise MessageError(f"table {database}.{table} has no primary key, so its rows can't be addressed as documents")
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise MessageError("not a Canal message: 'pkNames' is not a list of strings")
    return keys


def _olds(message: dict[str, Json], count: int) -> list[dict[str, Json] | None]:
    olds = message.get("old")
    if olds is None:
        return [None] * count
    if not isinstance(olds, list) or len(olds) != count:
        raise MessageError("not a Canal message: 'old' has not one entry for each row of 'data'")
    if not all(old is None or isinstance(old, dict) for old in olds):
        raise MessageError("not a Canal message: an entry of 'old' is not an object")
    return olds
