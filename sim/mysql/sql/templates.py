"""Point updates that differ only in their literals, as heartbeats do, are parsed and compiled once."""

from __future__ import annotations

import re
from typing import Any

from sim.mysql.sql.parser import Reader
from sim.mysql.sql.tree import Update

_PART = re.compile(
    r"((?:_utf8mb4\s+|_binary\s+)?[xX]'[0-9a-fA-F]*'|'[^']*'|(?<![\w.])\d+(?![\w.]))|`[^`]*`|[\w@$.]+", re.ASCII
)
"""A literal, or a name that may have digits in it."""


def split(sql: str) -> tuple[str, list[Any]] | None:
    """Returns an UPDATE with a mark for each literal, and the literals; None for another statement, and for one whose
    literals have escapes."""
    if not sql.startswith("UPDATE ") or "\\" in sql or "''" in sql or '"' in sql or "(" in sql:
        return None
    values: list[Any] = []

    def mark(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        values.append(_value(match[1]))
        return "\0"

    return _PART.sub(mark, sql), values


def _value(text: str) -> Any:
    if text[0] == "'":
        return text[1:-1]
    if text[0] not in "_xX":
        return int(text)
    raw = bytes.fromhex(text[text.index("'") + 1 : -1])
    return raw.decode() if text.startswith("_utf8mb4") else raw


def parse_template(template: str) -> Update | None:
    """Returns the syntax tree of a marked UPDATE; None for one with ORDER BY or LIMIT. Raises SqlError 1064."""
    reader = Reader(template)
    reader.need("UPDATE")
    made = reader.update()
    reader.end()
    return made if made.limit is None and not made.order else None
