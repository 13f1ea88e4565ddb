"""Parses column definitions, defaults and expressions, keys and references: the content of CREATE and ALTER TABLE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace.mysql.schema.ddl.actions import OVERLAPS, PRIMARY, ColumnDef, Index
from headrace.mysql.schema.ddl.cursor import Cursor
from headrace.mysql.schema.ddl.types import charset_attributes, collate_clause, data_type
from headrace.mysql.sql.tokens import NotParsed

_ENGINES = ("ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE")
_VALUED = ("COLUMN_FORMAT", "STORAGE", "SRID", "REF_SYSTEM_ID", *_ENGINES)
"""Attributes with a value that do not change the table schema."""
_OF_INDEX = ("USING", "TYPE", "COMMENT", "KEY_BLOCK_SIZE", "M", "DISTANCE", *_ENGINES)
"""Those of an index."""
_NOW = ("CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP")


def column_definition(c: Cursor) -> ColumnDef:
    """Parses a name, its type and all attributes, up to what does not belong to it."""
    name = c.column()
    declared = data_type(c)
    return _attributes(c, ColumnDef(name, declared, unique=declared.kind == "serial"))


def _attributes(c: Cursor, made: ColumnDef) -> ColumnDef:
    collation = ""
    while True:
        if c.takes("NOT", "NULL"):
            made = replace(made, nullable=False)
        elif c.takes("NULL"):
            made = replace(made, nullable=True)
        elif c.takes("DEFAULT"):
            made = replace(made, default=default_value(c))
        elif c.takes("ON", "UPDATE"):
            _now(c)
        elif c.takes("AUTO_INCREMENT"):
            made = replace(made, auto_increment=True)
        elif c.takes("SERIAL", "DEFAULT", "VALUE"):
            made = replace(made, auto_increment=True, nullable=False, unique=True)
        elif c.takes("COMMENT"):
            made = replace(made, comment=c.string())
        elif c.sees("COLLATE"):
            collation = collate_clause(c)
        elif c.takes("PRIMARY", "KEY") or c.takes("KEY"):
            made = replace(made, primary=True)
        elif c.takes("UNIQUE"):
            c.takes("KEY")
            made = replace(made, unique=True)
        elif c.takes("INVISIBLE"):
            made = replace(made, invisible=True)
        elif c.takes("WITH", "SYSTEM", "VERSIONING"):
            made = replace(made, versioned=True)
        elif c.sees("GENERATED") or c.sees("AS"):
            made = _generated(c, made)
        elif not _without_effect(c):
            start = c.i
            made = replace(made, type=charset_attributes(c, made.type))
            if c.i == start:
                break
    if collation and not made.type.charset:
        made = replace(made, type=replace(made.type, charset=collation))
    return made


def _without_effect(c: Cursor) -> bool:
    """Parses attributes that do not change the table schema."""
    if c.takes("VISIBLE") or c.takes("NOT", "SECONDARY") or c.takes("WITHOUT", "SYSTEM", "VERSIONING"):
        return True
    if c.skips(*_VALUED):
        return True
    if c.sees("REFERENCES"):
        references(c)
    elif c.sees("CONSTRAINT") or c.sees("CHECK"):
        if c.takes("CONSTRAINT") and not c.sees_any("CHECK", "REFERENCES"):
            c.name()
        if c.sees("REFERENCES"):
            references(c)
        else:
            check(c)
    elif c.dialect.mariadb and c.peek().kind in ("word", "name") and c.peek(1).value == "=":
        c.i += 2  # an engine's own attribute
        c.skip_value()
    else:
        return False
    return True


def _generated(c: Cursor, made: ColumnDef) -> ColumnDef:
    if c.takes("GENERATED"):
        c.expect("ALWAYS")
    c.expect("AS")
    if c.takes("ROW"):
        end = c.takes_any("START", "END")
        if not end:
            raise c.problem("START or END was expected")
        return replace(made, generated=True, nullable=False, row_time=end)
    c.parens()
    virtual = c.takes_any("VIRTUAL", "STORED", "PERSISTENT") in ("", "VIRTUAL")
    return replace(made, generated=True, virtual=virtual)


def _now(c: Cursor) -> str:
    if not c.takes_any(*_NOW):
        raise c.problem("CURRENT_TIMESTAMP was expected")
    if not c.takes("("):
        return "CURRENT_TIMESTAMP"
    digits = 0 if c.sees(")") else c.number()
    c.expect(")")
    return f"CURRENT_TIMESTAMP({digits})" if digits else "CURRENT_TIMESTAMP"


def default_value(c: Cursor) -> str | None:
    """Returns the value of DEFAULT: the text of a literal, None for NULL, else the expression's own text."""
    token = c.peek()
    if c.takes("NULL"):
        return None
    if c.sees_any(*_NOW):
        return _now(c)
    if token.kind in ("string", "bits"):
        c.i += 1
        return token.value
    if c.sees("(") or c.takes_any("-", "+"):
        if c.sees("("):
            return _text(c, c.parens)
        if c.peek().kind != "number":
            raise c.problem("a number was expected")
    if c.peek().kind == "number":
        c.i += 1
        return ("-" if token.value == "-" else "") + c.tokens[c.i - 1].value
    if token.kind == "word" and c.peek(1).kind == "string" and token.upper in ("DATE", "TIME", "TIMESTAMP"):
        c.i += 2
        return c.tokens[c.i - 1].value
    if token.kind == "word" and token.upper in ("TRUE", "FALSE"):
        c.i += 1
        return "1" if token.upper == "TRUE" else "0"
    if not c.dialect.mariadb:
        raise c.problem("a default was expected")
    return _text(c, lambda: _simple_expression(c))


def _simple_expression(c: Cursor) -> None:
    """Parses a call or a name: MariaDB allows it without parentheses."""
    if c.takes("NEXT", "VALUE", "FOR") or c.takes("PREVIOUS", "VALUE", "FOR"):
        c.table()
        return
    if c.sees("CASE"):
        raise c.problem("an expression that is not known")
    if c.peek().kind == "variable":
        c.i += 1
        return
    c.table()
    if c.sees("("):
        c.parens()


def _text(c: Cursor, step: Callable[[], None]) -> str:
    start = c.i
    step()
    return " ".join(token.value for token in c.tokens[start : c.i])


def references(c: Cursor) -> None:
    """Parses REFERENCES table (columns) and what follows."""
    c.expect("REFERENCES")
    c.table()
    if c.sees("("):
        c.parens()
    while True:
        if c.takes("MATCH"):
            c.name()
        elif c.takes("ON", "DELETE") or c.takes("ON", "UPDATE"):
            if not (c.takes("SET", "NULL") or c.takes("SET", "DEFAULT") or c.takes("NO", "ACTION")):
                c.name()
        else:
            return


def check(c: Cursor) -> None:
    """Parses CHECK (expression), enforced or not."""
    c.expect("CHECK")
    c.parens()
    if not c.takes("NOT", "ENFORCED"):
        c.takes("ENFORCED")


def index_parts(c: Cursor) -> tuple[tuple[str, int], ...]:
    """Parses (a, b(10) DESC, (a + b), ...). MariaDB's period WITHOUT OVERLAPS has the prefix OVERLAPS."""
    c.expect("(")
    parts = []
    while True:
        name, prefix = "", 0
        if c.sees("("):
            c.parens()
        else:
            name = c.column()
            if c.takes("("):
                prefix = c.number()
                c.expect(")")
        c.takes_any("ASC", "DESC")
        if c.takes("WITHOUT", "OVERLAPS"):
            prefix = OVERLAPS
        parts.append((name, prefix))
        if not c.takes(","):
            break
    c.expect(")")
    return tuple(parts)


def index_options(c: Cursor) -> None:
    """Parses USING, COMMENT and the others after or before an index's columns."""
    while True:
        if c.skips(*_OF_INDEX) or c.takes_any("VISIBLE", "INVISIBLE", "IGNORED") or c.takes("NOT", "IGNORED"):
            pass
        elif c.takes("WITH", "PARSER"):
            c.name()
        elif c.takes("CLUSTERING"):
            c.takes("=")
            if c.peek().kind == "word" and c.peek().upper in ("YES", "NO", "DEFAULT"):
                c.i += 1
        elif c.dialect.mariadb and c.peek().kind == "word" and c.peek(1).value == "=":
            c.i += 2
            c.skip_value()
        else:
            return


def constraint(c: Cursor) -> Index | bool:
    """Parses a key or constraint of a table: returns an index, True for another, False if it is none."""
    start, symbol = c.i, ""
    if c.takes("CONSTRAINT"):
        c.takes("IF", "NOT", "EXISTS")
        if not c.sees_any("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
            symbol = c.name()
    named = c.i > start
    if c.takes("PRIMARY", "KEY"):
        if not c.sees("("):
            _index_name(c)
        index_options(c)
        parts = index_parts(c)
        index_options(c)
        if not all(name for name, _ in parts):
            raise NotParsed("a primary key on an expression")
        return Index(PRIMARY, True, parts)
    if c.takes("FOREIGN", "KEY"):
        c.takes("IF", "NOT", "EXISTS")
        if not c.sees("("):
            c.name()
        c.parens()
        references(c)
        return True
    if c.sees("CHECK"):
        check(c)
        return True
    unique = c.takes("UNIQUE")
    if unique or c.takes_any("FULLTEXT", "SPATIAL"):
        c.takes_any("INDEX", "KEY")
    elif named or not (c.takes_any("INDEX", "KEY") or c.takes("VECTOR", "INDEX") or c.takes("VECTOR", "KEY")):
        if named:
            raise c.problem("a constraint was expected")
        return False
    c.takes("IF", "NOT", "EXISTS")
    name = _index_name(c) or symbol
    index_options(c)
    parts = index_parts(c)
    index_options(c)
    return Index(name, unique, parts)


def _index_name(c: Cursor) -> str:
    if c.sees("(") or (c.sees_any("USING", "TYPE") and c.peek(1).kind == "word" and c.peek(2).value == "("):
        return ""
    return c.name()
