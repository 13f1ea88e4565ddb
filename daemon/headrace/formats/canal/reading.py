"""Reads back Canal's flat messages about the rows of one table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson

from headrace.ports.replay import MessageReader, Published, PublishedRow, RowState, key_text, of_another_format, parsed

_COMMITTED = re.compile(rb'[,{]"es":([0-9]{1,15})[,}]')
_ROWS = frozenset({"INSERT", "UPDATE", "DELETE"})


class CanalReader(MessageReader):
    """Reads the messages. Row i of a message has the version `_pos` + i; without `_pos` that of the message, if the
    sink keeps it."""

    def __init__(self, schema: str, table: str, keys: Sequence[str]) -> None:
        self._schema, self._table, self._keys = schema, table, keys
        self._mark = b'"table":' + orjson.dumps(table)
        """A part of every message about the table, so that others need not be parsed."""

    def read(self, message: Published) -> Sequence[RowState]:
        value = message.value
        if not value or self._mark not in value:
            return ()
        reported = parsed(value)
        if not isinstance(reported, dict) or reported.get("type") not in _ROWS:
            return ()
        if (reported.get("database"), reported.get("table")) != (self._schema, self._table):
            return ()
        try:
            return self._reported(reported, message)
        except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            raise of_another_format(f"{self._schema}.{self._table}", "Canal's", error) from error

    def committed_ms(self, message: Published) -> int:
        found = _COMMITTED.search(message.value or b"")
        return int(found[1]) if found is not None else 0

    def _reported(self, change: dict[str, Any], message: Published) -> list[RowState]:
        rows: list[PublishedRow] = change["data"]
        first = int(change["_pos"]) if "_pos" in change else message.version
        kind, columns = change["type"], change.get("mysqlType") or {}
        olds: Sequence[PublishedRow | None] = change.get("old") or [None] * len(rows)
        reported = []
        for i, row in enumerate(rows):
            version = None if first is None else first + i
            old = olds[i] if kind == "UPDATE" else None
            partial = message.partial or (len(row) < len(columns) and kind != "DELETE")
            if not self._keys:
                before = {**row, **(old or {})} if kind != "INSERT" else None
                reported.append(RowState(b"", None if kind == "DELETE" else row, version, partial, before))
                continue
            key = key_text(row, self._keys) or b""
            if kind == "DELETE":
                reported.append(RowState(key, None, version))
                continue
            if old and any(name in old for name in self._keys):
                was = key_text({**row, **old}, self._keys) or b""
                if was != key:
                    reported.append(RowState(was, None, version))
            reported.append(RowState(key, row, version, partial))
        return reported
