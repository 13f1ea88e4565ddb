"""Reads back Debezium's change events about the rows of one table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from json.encoder import encode_basestring as quote
from typing import Any

import orjson

from headrace.ports.replay import MessageReader, Published, PublishedRow, RowState, key_text, of_another_format, parsed

_COMMITTED = re.compile(rb'"source":\{[^{}]{0,300}?"ts_ms":([0-9]{1,15})[,}]')


class DebeziumReader(MessageReader):
    """Reads the messages. A message has no version of its own: it is the one that the sink keeps, or the later message
    counts.

    A tombstone names its table only in its key's schema. Without schemas it is skipped: the delete before it has the
    same meaning, and if compaction has removed that, there is nothing else of the key."""

    def __init__(self, schema: str, table: str, keys: Sequence[str]) -> None:
        self._schema, self._table, self._keys = schema, table, keys
        self._mark = f'"table":{quote(table)}'.encode()
        """A part of every message about the table, so that others need not be parsed."""
        self._key_name = f".{schema}.{table}.Key"

    def read(self, message: Published) -> Sequence[RowState]:
        value = message.value
        if value is None:
            return self._tombstone(message)
        if self._mark not in value:
            return ()
        whole = parsed(value)
        try:
            event = whole.get("payload", whole)
            source, op = event["source"], event.get("op")
            if (source["db"], source["table"]) != (self._schema, self._table) or op not in ("c", "r", "u", "d"):
                return ()
            return self._reported(event, op, message, _columns(whole))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise of_another_format(f"{self._schema}.{self._table}", "Debezium's", error) from error

    def committed_ms(self, message: Published) -> int:
        found = _COMMITTED.search(message.value or b"")
        return int(found[1]) if found is not None else 0

    def _reported(self, event: dict[str, Any], op: str, message: Published, columns: int) -> Sequence[RowState]:
        before: PublishedRow | None = event.get("before") if op in "ud" else None
        after: PublishedRow | None = event.get("after") if op != "d" else None
        version = message.version
        partial = after is not None and (message.partial or len(after) < columns)
        if not self._keys:
            return (RowState(b"", after, version, partial, before),)
        reported = []
        key = key_text(after, self._keys) or b"" if after is not None else None
        was = key_text({**(after or {}), **before}, self._keys) or b"" if before is not None else None
        if was is not None and was != key:
            reported.append(RowState(was, None, version))
        if after is not None and key is not None:
            reported.append(RowState(key, after, version, partial))
        return reported

    def _tombstone(self, message: Published) -> Sequence[RowState]:
        if not message.key or not self._keys or self._key_name.encode() not in message.key:
            return ()
        try:
            whole = orjson.loads(message.key)
            if not whole["schema"]["name"].endswith(self._key_name):
                return ()
            key = key_text(whole["payload"], self._keys)
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
            return ()
        return (RowState(key, None, message.version),) if key is not None else ()


def _columns(whole: dict[str, Any]) -> int:
    """Returns how many columns a row has by the message's schema; 0 if it has none."""
    for field in (whole.get("schema") or {}).get("fields", ()):
        if field.get("field") == "after":
            return len(field["fields"])
    return 0
