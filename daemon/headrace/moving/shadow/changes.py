"""Reads messages of either system as single changes, with all compared fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from headrace.errors import NotUnderstood
from headrace.ports.replay import Published, parsed

ABSENT = "(absent)"
"""The value of a field that a change does not have."""
NO_TABLE = "(no table)"
DELETE, INSERT, TOMBSTONE = "DELETE", "INSERT", "TOMBSTONE"


@dataclass(slots=True)
class Change:
    """One row's change, one statement, or one mark of a transaction."""

    table: str
    """`schema.table`; for a statement the table or the schema, or NO_TABLE."""
    key: str
    """The values of the row's key, as JSON; "" without a key."""
    kind: str
    """INSERT, UPDATE, DELETE, TOMBSTONE, or the kind of a statement or mark."""
    fields: dict[str, Any]
    """The compared values by name; nested ones have dots, as `data.name`."""
    committed_ms: int
    """In milliseconds since 1970 by the source's clock, 0 if the message does not have it."""
    stored_ms: int
    """When the message was published, in milliseconds since 1970."""
    rows: int = 1
    """Number of rows in the message."""
    version: int | None = None
    """headrace's own number of a row."""

    @property
    def lane(self) -> tuple[str, str]:
        """Returns the unit within which order counts: the row, or the table if it has no key."""
        return self.table, self.key


Reader = Callable[[Published, Mapping[str, list[str]], bool], Iterator[Change]]
"""Yields the changes in a message. The mapping has the key's columns of tables as headrace knows them: Canal names none
if a table has only a unique key, and both sides must be compared by the same key. The flag says whether headrace
published it. Raises NotUnderstood."""
KeyText = Callable[[str, Any], Any]
"""Returns what both systems have in common for a type and a key's value."""


class TopicReader:
    """Yields the changes of one topic's messages, in order. A tombstone, which has neither table nor time, gets the
    topic's name and the time of the delete before it."""

    def __init__(self, read: Callable[[Published], Iterable[Change]], topic: str) -> None:
        self._read, self._topic = read, topic
        self._committed_ms = 0

    def __call__(self, message: Published) -> Iterator[Change]:
        """Yields the changes in one more message. Raises NotUnderstood."""
        for change in self._read(message):
            change.table = change.table or f"topic {self._topic}"
            change.committed_ms = self._committed_ms = change.committed_ms or self._committed_ms
            yield change


def canal_changes(
    message: Published, keys_of: Mapping[str, list[str]], key_text: KeyText = lambda type_, value: value
) -> Iterator[Change]:
    """Yields the changes in a flat message of Canal's format; see Reader."""
    if message.value is None:
        return
    raw = parsed(message.value)
    try:
        table = f"{raw['database']}.{raw['table']}"
        rows, old, keys = raw.get("data") or [], raw.get("old"), raw.get("pkNames") or []
        keys = sorted(keys_of.get(table, keys))
        kind, committed, types = str(raw["type"]), int(raw.get("es") or 0), raw.get("mysqlType") or {}

        def key_of(values: Mapping[str, Any]) -> str:
            return _key([key_text(str(types.get(name)), values.get(name)) for name in keys])

        common = {name: raw.get(name) for name in ("isDdl", "gtid", "sql", "pkNames", "es")}
        for name in ("mysqlType", "sqlType"):
            common |= {f"{name}.{column}": value for column, value in (raw.get(name) or {}).items()}
        if not rows:
            fields = {**common, "database": raw["database"]}
            # For a statement about no table Canal has no database.
            yield Change(raw["table"] or NO_TABLE, "", kind, fields, committed, message.stored_ms)
        for number, row in enumerate(rows):
            fields = {**common, **{f"data.{column}": value for column, value in row.items()}}
            before = (old[number] or {}) if old else {}
            fields |= {f"old.{column}": value for column, value in before.items()}
            version = None if message.version is None else message.version + number
            one = Change(table, key_of(row), kind, fields, committed, message.stored_ms, len(rows), version)
            yield from _halves(one, key_of({**row, **before})) if before else (one,)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise NotUnderstood(f"a message is no flat message of Canal ({type(error).__name__}: {error})") from error


def _halves(update: Change, before: str) -> Iterator[Change]:
    """Yields an UPDATE that changes the key as a DELETE and an INSERT, which is its effect on the two rows."""
    if before == update.key:
        yield update
        return
    kept = {name: value for name, value in update.fields.items() if not name.startswith("old.")}
    old = {f"data.{name[4:]}": value for name, value in update.fields.items() if name.startswith("old.")}
    for key, kind, fields in ((before, DELETE, {**kept, **old}), (update.key, INSERT, kept)):
        # Both halves have the UPDATE's number, and are in different units.
        of = update.committed_ms, update.stored_ms, update.rows, update.version
        yield Change(update.table, key, kind, fields, *of)


_KINDS = {"c": "INSERT", "u": "UPDATE", "d": "DELETE", "r": "READ", "t": "TRUNCATE"}


def debezium_changes(message: Published, keys_of: Mapping[str, list[str]], ours: bool = False) -> Iterator[Change]:
    """Yields the change in a message of Debezium's format: a row, a tombstone, a mark of a transaction or a statement;
    see Reader."""
    try:
        yield _debezium_change(message)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise NotUnderstood(
            f"a message is no change event of Debezium ({type(error).__name__}: {error})",
            remedy="messages that a transformation has flattened (unwrap) can't be compared",
        ) from error


def _debezium_change(message: Published) -> Change:
    key_schema, key = _unwrapped(None if message.key is None else parsed(message.key))
    lane, of = "" if key is None else orjson.dumps(key).decode(), (message.stored_ms, 1, message.version)
    if message.value is None:
        return Change("", lane, TOMBSTONE, {}, 0, *of)
    schema, raw = _unwrapped(parsed(message.value))
    fields: dict[str, Any] = {"key": key}
    schemas = {"schema": [key_schema, schema]}  # last: examples show the beginning
    if "status" in raw:
        fields |= _flat("", {name: value for name, value in raw.items() if not name.startswith("ts_")}) | schemas
        return Change(str(raw["id"]), "", str(raw["status"]), fields, int(raw["ts_ms"]), message.stored_ms)
    source = raw["source"]
    of_source = _flat("source.", {name: value for name, value in source.items() if name not in _CLOCKS})
    committed, table = int(source["ts_ms"]), f"{source['db']}.{source['table']}"
    if "ddl" in raw:
        fields |= _flat("", {name: raw.get(name) for name in ("ddl", "databaseName", "schemaName", "tableChanges")})
        fields |= of_source | schemas
        return Change(str(raw["databaseName"]), lane, "DDL", fields, committed, message.stored_ms)
    kind = _KINDS[raw["op"]]
    for side in ("before", "after"):
        fields |= _flat(f"{side}.", raw[side]) if raw[side] is not None else {side: None}
    fields |= {"transaction": raw.get("transaction"), **of_source, **schemas}
    return Change(table, lane, kind, fields, committed, *of)


_CLOCKS = frozenset({"ts_ms", "ts_us", "ts_ns"})


def _unwrapped(raw: Any) -> tuple[Any, Any]:
    """Returns schema and payload; the converter's schemas may be off."""
    if isinstance(raw, dict) and raw.keys() == {"schema", "payload"}:
        return raw["schema"], raw["payload"]
    return None, raw


def _flat(prefix: str, raw: dict[str, Any]) -> dict[str, Any]:
    return {prefix + name: value for name, value in raw.items()}


def _key(values: list[Any]) -> str:
    return orjson.dumps(values).decode() if values else ""
