"""Turns messages into document actions. The format of each is recognized by its content: Canal's flat JSON, or
Debezium's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson

from headrace_documents.documents import (
    TOMBSTONE,
    Action,
    Converter,
    Rules,
    converters,
    document_id,
    expand_prefix,
    index_name,
    index_owner,
)
from headrace_documents.errors import MessageError
from headrace_documents.formats import canal, debezium
from headrace_documents.formats.changes import Headers, Message, Nothing, Rows

_NO_HEADERS: Headers = {}


def read(value: bytes | None, key: bytes | None = None, headers: Headers = _NO_HEADERS) -> Message:
    """Reads a message of either format. Raises MessageError, and then nothing of it may be applied."""
    if value is None:
        return Nothing("a tombstone: the delete before it has said the same")
    if not value:
        raise MessageError("the message is empty")
    if (parts := debezium.split_schema(value)) is not None:
        event = _object(parts[1])
        return debezium.read_debezium(event, debezium.envelope(parts[0]), key, headers)
    message = _object(value)
    if canal.is_canal(message):
        return canal.read_canal(message, headers)
    if debezium.is_debezium(message):
        schema = message.get("schema")
        known = debezium.envelope(orjson.dumps(schema) if schema is not None else b"null")
        return debezium.read_debezium(message.get("payload", message), known, key, headers)
    if "status" in message and "id" in message:
        return Nothing("a message about a transaction")
    raise MessageError("neither a message of Canal nor an event of Debezium")


class _Layout(NamedTuple):
    """Shared by all rows of one table while its types stay the same."""

    types: Mapping[str, str]
    target: str
    owner: tuple[str, ...]
    rules: Rules
    columns: frozenset[str]
    typed: list[tuple[str, Converter]]


_LAYOUTS: dict[tuple[Rules, str, str], _Layout] = {}
_MOST_LAYOUTS = 4096


def _layout(rules: Rules, message: Rows) -> _Layout:
    """Raises MessageError."""
    key = rules, message.database, message.table
    known = _LAYOUTS.get(key)
    # comparing two dictionaries takes less than making a key from one
    if known is None or known.types != message.types:
        if len(_LAYOUTS) >= _MOST_LAYOUTS:
            _LAYOUTS.clear()
        index = index_name(rules.index_template, *key[1:])
        owner = index_owner(rules.index_template, *key[1:])
        types = dict(message.types)
        prefixed = expand_prefix(rules, *key[1:])
        known = _Layout(types, index, owner, prefixed, frozenset(types), converters(rules, types))
        _LAYOUTS[key] = known
    return known


def actions(message: Rows, rules: Rules) -> list[Action]:
    """Returns the actions for documents. Raises MessageError."""
    keys = message.keys
    if not keys:
        table = f"{message.database}.{message.table}"
        raise MessageError(f"table {table} has no primary key, so its rows can't be addressed as documents")
    _, index, owner, rules, columns, typed = _layout(rules, message)
    gone = TOMBSTONE if rules.tombstones else None
    version, step = message.version, message.step
    if message.operation == "DELETE":
        ids = [document_id(keys, row, rules) for row in message.rows]
        return [Action(index, name, version + i * step, gone, i, owner) for i, name in enumerate(ids)]
    made: list[Action] = []
    for i, (row, old) in enumerate(zip(message.rows, message.olds, strict=True)):
        if not row.keys() >= columns:
            raise _not_whole(columns, row, i)
        number = version + i * step
        name = document_id(keys, row, rules)
        if old is not None and any(key in old for key in keys):
            before = document_id(keys, {**row, **{key: old[key] for key in keys if key in old}}, rules)
            if before != name:
                made.append(Action(index, before, number, gone, i, owner))
        for column, convert in typed:
            text = row.get(column)
            if isinstance(text, str):
                row[column] = convert(text)
        made.append(Action(index, name, number, row, i, owner))
    return made


def _not_whole(columns: frozenset[str], row: Iterable[str], number: int) -> MessageError:
    """Returns the error for an incomplete row. Under binlog_row_image=MINIMAL a row lacks columns. An index request
    replaces the whole document, so such a row would remove the columns that it lacks."""
    missing = ", ".join(sorted(columns.difference(row)))
    return MessageError(f"row {number} is not whole, it lacks {missing}: the source needs binlog_row_image=FULL")


def _object(value: bytes) -> dict[str, Any]:
    try:
        message = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise MessageError(f"not JSON: {error}") from None
    if not isinstance(message, dict):
        raise MessageError("not a JSON object")
    return message
