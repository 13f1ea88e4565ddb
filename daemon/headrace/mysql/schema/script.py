"""Applies the statements of an SQL file, such as `mysqldump --no-data` writes, to a schema history."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import Refusal
from headrace.model import DdlKind
from headrace.mysql.events.query_event import QueryEvent
from headrace.mysql.schema.history import Reading, SchemaHistory
from headrace.mysql.sql.dialect import Dialect
from headrace.mysql.sql.tokens import NotParsed, first_tokens, tokenize

_MOST = 16 << 20
_UTF8MB4 = 45
"""A collation of the text's character set."""
_DELIMITER = re.compile(r"^[ \t]*DELIMITER[ \t]+(\S+)[^\n]*$", re.IGNORECASE | re.MULTILINE)


def apply_script(path: Path, history: SchemaHistory, dialect: Dialect) -> None:
    """Applies the DDL of the file, in order, to an empty history: only what the file creates exists. USE sets the
    schema of names without one; statements that are no DDL, and those under another DELIMITER than `;`, change nothing.

    Raises Refusal, with the line, for a statement about tables that is not understood, and for a file that is not UTF-8
    or larger than 16 MiB; OSError."""
    with path.open("rb") as file:
        raw = file.read(_MOST + 1)  # a pipe has no size
    if len(raw) > _MOST:
        raise Refusal(f"{path} is larger than {_MOST >> 20} MiB", remedy="dump the tables without rows (--no-data)")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refusal(f"{path} is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}") from None
    history.adopt(Reading(listed=True))
    schema, line, seen = "", 1, 0
    for at, statement in _statements(path, text, dialect):
        line, seen = line + text.count("\n", seen, at), at
        where = f"{path}, line {line}"
        words = first_tokens(statement, dialect, 3)
        if words and words[0].upper == "USE":
            if len(words) != 2:
                raise Refusal(f"{where}: the statement is not understood", remedy="write it as `USE schema;`")
            schema = words[1].value
            continue
        _apply(QueryEvent(schema, statement.encode(), client_collation=_UTF8MB4), where, history)


def _apply(query: QueryEvent, where: str, history: SchemaHistory) -> None:
    effect = history.apply(query, file="", end=0, pos=0)
    if effect.category != "ddl" or effect.temporary:
        return
    if effect.problem:
        raise Refusal(f"{where}: the statement is not understood: {effect.problem}")
    if effect.kind is not DdlKind.CREATE or not effect.table:
        return
    if not effect.schema:
        raise Refusal(f"{where}: {effect.table} has no schema", remedy="put `USE schema;` before the statement")
    if not history.knows(effect.schema, effect.table):
        why = history.unknown_because(effect.schema, effect.table)
        raise Refusal(f"{where}: {effect.schema}.{effect.table} is not understood: {why}")


def _statements(path: Path, text: str, dialect: Dialect) -> Iterator[tuple[int, str]]:
    """Yields each statement that ends in `;`, with where its text begins."""
    begin, delimiter = 0, ";"
    for change in [*_DELIMITER.finditer(text), None]:
        end = change.start() if change else len(text)
        if delimiter == ";":
            yield from _split(path, text, begin, end, dialect)
        if change:
            begin, delimiter = change.end(), change[1]


def _split(path: Path, text: str, begin: int, end: int, dialect: Dialect) -> Iterator[tuple[int, str]]:
    part, first = text[begin:end], -1
    try:
        tokens = tokenize(part, dialect, len(part))
    except NotParsed as error:
        read = first_tokens(part, dialect, len(part))
        line = text.count("\n", 0, begin + (read[-1].at if read else 0)) + 1
        raise Refusal(f"{path} can't be divided into statements after line {line}: {error}") from None
    last = 0
    for token in tokens:
        if token.kind == "op" and token.value == ";":
            if first >= 0:
                yield begin + first, part[last : token.at]
            first, last = -1, token.at + 1
        elif first < 0:
            first = token.at
    if first >= 0:
        yield begin + first, part[last:]
