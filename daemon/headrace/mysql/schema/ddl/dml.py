"""The tables that the text of an INSERT, UPDATE, DELETE, REPLACE or LOAD DATA names."""

from __future__ import annotations

from headrace.mysql.schema.ddl.actions import TableName
from headrace.mysql.schema.ddl.cursor import Cursor
from headrace.mysql.sql.tokens import NotParsed

_MODIFIERS = ("LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "QUICK", "IGNORE", "CONCURRENT", "LOCAL")


def named_by_dml(c: Cursor) -> tuple[TableName, ...] | None:
    """Returns the tables that are changed, possibly with others that are only read; None if unknown.

    `c` is at the first word; only the statement's first tokens need to be there."""
    try:
        word = c.peek().upper
        c.i += 1
        while c.takes_any(*_MODIFIERS):
            pass
        if word in ("INSERT", "REPLACE"):
            c.takes("INTO")
            return (c.table(),)
        if word == "LOAD":
            while not c.takes("INTO", "TABLE"):
                if c.done:
                    return None
                c.i += 1
            return (c.table(),)
        if word == "UPDATE":
            return _sources(c, ("SET",))
        if word == "DELETE":
            return _deleted(c)
    except NotParsed:
        pass
    return None


def _deleted(c: Cursor) -> tuple[TableName, ...] | None:
    """Parses DELETE FROM t ..., DELETE a, b FROM a JOIN b ..., DELETE FROM a, b USING a JOIN b: aliases are replaced by
    tables."""
    if not c.takes("FROM"):
        while not c.takes("FROM"):
            if c.done:
                return None
            c.i += 1
        return _sources(c, ("WHERE", "ORDER", "LIMIT", ";"))
    first = _sources(c, ("WHERE", "ORDER", "LIMIT", "USING", "RETURNING", ";"))
    if c.takes("USING"):
        return _sources(c, ("WHERE", ";"))
    return first


def _sources(c: Cursor, ends: tuple[str, ...]) -> tuple[TableName, ...] | None:
    """Returns the tables of table references up to one of `ends` or the statement's end; None for a subquery."""
    names = []
    while True:
        while c.takes("("):
            pass
        if c.sees_any("SELECT", "WITH", "VALUES"):
            return None
        names.append(c.table())
        # Skips an alias, hints and join conditions, up to the next table.
        while not c.takes(","):
            if c.sees_any(*ends):
                return tuple(names)
            if c.peek().kind == "end":
                # Only the statement's beginning is here: the rest could name more.
                return tuple(names) if len(c.tokens) < 60 else None
            if c.takes_any("JOIN", "STRAIGHT_JOIN"):
                break
            if c.sees("("):
                c.parens()
            else:
                c.i += 1
