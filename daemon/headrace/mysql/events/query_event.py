"""QUERY events: the statement's text and the session's settings that determine its meaning (MySQL's Query_event)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from headrace.mysql.values.mariadb import decompressed_event

_FIXED = {0: 4, 1: 8, 3: 4, 4: 6, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 14: 4, 15: 8, 16: 1, 17: 8, 18: 2, 19: 1, 20: 1}
_FIXED |= {128: 3, 129: 8}
"""Bytes after each status variable's code if the number is fixed; MariaDB's codes begin at 128."""
_START_ALTER, _COMMIT_ALTER, _ROLLBACK_ALTER = 2, 4, 8


@dataclass(frozen=True, slots=True)
class QueryEvent:
    """One statement. `schema` is the session's default schema, "" for none; collations are MySQL's ids, 0 if the event
    has none. `error` is the errno on the source, 0 for a statement that succeeded."""

    schema: str
    text: bytes
    error: int = 0
    sql_mode: int = 0
    client_collation: int = 0
    server_collation: int = 0
    alter_phase: str = ""
    """MariaDB's ALTER in two phases: "start", "commit" or "rollback"; "" for any other statement."""

    @property
    def sql(self) -> str:
        """Returns the text as published: the client's character set is UTF-8 in practice; other bytes stay visible."""
        return self.text.decode("utf-8", "backslashreplace")


def parse_query(data: bytes, at: int, stop: int) -> QueryEvent:
    """Reads the event whose body is data[at:stop]. Raises struct.error, IndexError or ValueError for invalid bytes."""
    schema_length, error, size = struct.unpack_from("<BHH", data, at + 8)
    schema_at = at + 13 + size
    text_at = schema_at + schema_length + 1
    if text_at > stop:
        raise ValueError("a QUERY event is shorter than its parts")
    facts = _variables(data, at + 13, schema_at)
    return QueryEvent(data[schema_at : text_at - 1].decode(), data[text_at:stop], error, **facts)  # type: ignore[arg-type]


def parse_compressed_query(data: bytes, at: int, stop: int, largest: int) -> QueryEvent:
    """Reads MariaDB's QUERY_COMPRESSED: the same with compressed text, at most `largest` bytes. Raises ValueError and
    the errors of parse_query."""
    schema_length, _, variables = struct.unpack_from("<BHH", data, at + 8)
    text_at = at + 13 + variables + schema_length + 1
    plain = data[at:text_at] + decompressed_event(data, text_at, stop, largest)
    return parse_query(plain, 0, len(plain))


def _variables(data: bytes, at: int, stop: int) -> dict[str, int | str]:
    """Returns the variables that matter. An unknown code ends the reading, as in the server: what follows it can't be
    found, and newer servers only append."""
    facts: dict[str, int | str] = {}
    while at < stop:
        code, at = data[at], at + 1
        size = _FIXED.get(code)
        if size is None:
            size = _size(code, data, at, stop)
            if size is None:
                break
        if at + size > stop:
            raise ValueError("the status variables of a QUERY event end within one")
        if code == 1:
            facts["sql_mode"] = int.from_bytes(data[at : at + 8], "little")
        elif code == 4:
            facts["client_collation"], _, facts["server_collation"] = struct.unpack_from("<HHH", data, at)
        elif code == 130:
            phases = {_START_ALTER: "start", _COMMIT_ALTER: "commit", _ROLLBACK_ALTER: "rollback"}
            facts["alter_phase"] = phases.get(data[at] & 14, "")
        at += size
    return facts


def _size(code: int, data: bytes, at: int, stop: int) -> int | None:
    """Returns the bytes of a variable that contains its length; None for an unknown code."""
    if code in (5, 6):  # time zone, catalog: length and text
        return 1 + data[at]
    if code == 2:  # the catalog of MySQL 5.0, followed by a zero
        return 2 + data[at]
    if code == 11:  # invoker: user and host, each with its length
        user = data[at]
        return 2 + user + data[at + 1 + user]
    if code == 12:  # updated schemas: a count (254: too many to list), then each followed by a zero
        count, p = data[at], at + 1
        for _ in range(count if count != 254 else 0):
            p = data.index(0, p, stop) + 1
        return p - at
    if code == 130:
        return 9 if data[at] & (_COMMIT_ALTER | _ROLLBACK_ALTER) else 1
    if code == 131:  # MariaDB's character_set_collations: a count of pairs
        return 1 + 4 * data[at]
    return None
