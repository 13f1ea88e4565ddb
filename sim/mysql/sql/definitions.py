"""Reads statements about databases and tables, and applies them to a table's definition."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from sim.mysql.collations import DEFAULTS, charset_of
from sim.mysql.errors import SqlError, no_column
from sim.mysql.schema import NOW, Column, Definition, Index
from sim.mysql.sql.parser import Reader
from sim.mysql.sql.tree import Ddl, Name
from sim.mysql.types import Type, make_type

_SERIAL = {"DOUBLE": "PRECISION"}


def parse_ddl(sql: str) -> Ddl:
    """Returns the syntax tree. Raises SqlError 1064."""
    reader = Reader(sql)
    made = _statement(reader)
    reader.end()
    return made


def _statement(reader: Reader) -> Ddl:
    if reader.has("CREATE", "DATABASE") or reader.has("CREATE", "SCHEMA"):
        guarded = reader.has("IF", "NOT", "EXISTS")
        return Ddl("create database", (reader.name(), ""), guarded, _options(reader))
    if reader.has("DROP", "DATABASE") or reader.has("DROP", "SCHEMA"):
        guarded = reader.has("IF", "EXISTS")
        return Ddl("drop database", (reader.name(), ""), guarded)
    if reader.has("CREATE", "TABLE"):
        return _create(reader)
    if reader.has("DROP", "TABLE"):
        guarded = reader.has("IF", "EXISTS")
        names = reader.list(reader.table)
        return Ddl("drop table", names[0], guarded, others=tuple((name, name) for name in names))
    if reader.has("RENAME", "TABLE"):

        def pair() -> tuple[Name, Name]:
            before = reader.table()
            reader.need("TO")
            return before, reader.table()

        pairs = tuple(reader.list(pair))
        return Ddl("rename", pairs[0][0], others=pairs)
    if reader.has("TRUNCATE"):
        reader.has("TABLE")
        return Ddl("truncate", reader.table())
    if reader.has("ALTER", "TABLE"):
        name = reader.table()
        return Ddl("alter", name, actions=tuple(reader.list(lambda: _action(reader))))
    raise reader.fail()


def _options(reader: Reader) -> dict[str, Any]:
    """Reads the options of a table or database: ENGINE, CHARACTER SET, COLLATE, COMMENT and their like."""
    found: dict[str, Any] = {}
    while reader.next.kind == "word":
        reader.has("DEFAULT")
        if reader.has("CHARACTER", "SET") or reader.has("CHARSET"):
            name = "charset"
        elif reader.next.value in ("COLLATE", "ENGINE", "COMMENT", "AUTO_INCREMENT", "ROW_FORMAT"):
            name = str(reader.take().value).lower()
        else:
            raise reader.fail()
        reader.has("=")
        found[name] = str(reader.take().value).lower()
        reader.has(",")
    return found


def _create(reader: Reader) -> Ddl:
    guarded = reader.has("IF", "NOT", "EXISTS")
    name = reader.table()
    reader.need("(")
    actions = tuple(reader.list(lambda: _index(reader) or ("add", _column(reader), None)))
    reader.need(")")
    return Ddl("create", name, guarded, _options(reader), actions)


def _index(reader: Reader) -> tuple[Any, ...] | None:
    """Reads an index of a table; returns None if a column comes next."""
    if reader.has("PRIMARY", "KEY"):
        return ("index", Index("PRIMARY", True, _names(reader)))
    unique = reader.has("UNIQUE")
    if not (reader.has("KEY") or reader.has("INDEX")) and not unique:
        return None
    name = "" if reader.next.value == "(" else reader.name()
    columns = _names(reader)
    return ("index", Index(name or columns[0], unique, columns))


def _names(reader: Reader) -> tuple[str, ...]:
    reader.need("(")
    names = tuple(reader.list(reader.name))
    reader.need(")")
    return names


def _column(reader: Reader) -> tuple[str, dict[str, Any]]:
    """Reads a column: its name, and what is declared of it."""
    name, kind = reader.name(), reader.name().lower()
    reader.has(_SERIAL.get(kind.upper(), "-"))
    arguments = list[Any]()
    if reader.has("("):
        arguments = reader.list(lambda: reader.string() if reader.next.kind == "string" else reader.integer())
        reader.need(")")
    facts: dict[str, Any] = {"kind": kind, "arguments": tuple(arguments)}
    while reader.next.kind == "word" and reader.next.value not in ("FIRST", "AFTER"):
        _attribute(reader, facts)
    return name, facts


def _attribute(reader: Reader, facts: dict[str, Any]) -> None:
    if reader.has("UNSIGNED"):
        facts["unsigned"] = True
    elif reader.has("NOT", "NULL"):
        facts["nullable"] = False
    elif reader.has("NULL"):
        facts["nullable"] = True
    elif reader.has("AUTO_INCREMENT"):
        facts["auto_increment"] = True
    elif reader.has("PRIMARY", "KEY"):
        facts["key"] = "PRIMARY"
    elif reader.has("UNIQUE"):
        reader.has("KEY")
        facts["key"] = "UNIQUE"
    elif reader.has("COMMENT"):
        facts["comment"] = reader.string()
    elif reader.has("CHARACTER", "SET") or reader.has("CHARSET"):
        facts["charset"] = reader.name().lower()
    elif reader.has("COLLATE"):
        facts["collate"] = reader.name().lower()
    elif reader.has("DEFAULT"):
        if reader.has("CURRENT_TIMESTAMP"):
            if reader.has("("):
                reader.integer()
                reader.need(")")
            facts["default"] = NOW
        else:
            sign = "-" if reader.has("-") else ""
            token = reader.take()
            facts["default"] = None if token.value == "NULL" else f"{sign}{token.value}" if sign else token.value
    else:
        raise reader.fail()


def _place(reader: Reader) -> str | None:
    """Returns "" for FIRST, the name after AFTER, or None."""
    if reader.has("FIRST"):
        return ""
    return reader.name() if reader.has("AFTER") else None


def _action(reader: Reader) -> tuple[Any, ...]:
    if reader.has("ADD"):
        index = _index(reader)
        if index is not None:
            return index
        reader.has("COLUMN")
        column = _column(reader)
        return ("add", column, _place(reader))
    if reader.has("DROP"):
        if reader.has("PRIMARY", "KEY"):
            return ("drop index", "PRIMARY")
        if reader.has("INDEX") or reader.has("KEY"):
            return ("drop index", reader.name())
        reader.has("COLUMN")
        return ("drop", reader.name())
    if reader.has("MODIFY"):
        reader.has("COLUMN")
        column = _column(reader)
        return ("change", column[0], column, _place(reader))
    if reader.has("CHANGE"):
        reader.has("COLUMN")
        name = reader.name()
        column = _column(reader)
        return ("change", name, column, _place(reader))
    if reader.has("RENAME", "COLUMN"):
        name = reader.name()
        reader.need("TO")
        return ("rename column", name, reader.name())
    if reader.has("RENAME"):
        reader.has("TO")
        return ("rename", reader.table())
    raise reader.fail()


# -- definitions ------------------------------------------------------------------------------------------------------


def collation_in(options: dict[str, Any], default: str) -> str:
    """Returns the collation that options name."""
    if "collate" in options:
        return str(options["collate"])
    return DEFAULTS[options["charset"]] if "charset" in options else default


def _type(facts: dict[str, Any], collation: str) -> Type:
    named = collation_in(facts, collation)
    return make_type(facts["kind"], facts["arguments"], unsigned=facts.get("unsigned", False), collation=named)


def _made(column: tuple[str, dict[str, Any]], collation: str) -> Column:
    name, facts = column
    kind = _type(facts, collation)
    default = facts.get("default")
    if default is not None and default is not NOW:
        default = kind.take(Decimal(default) if kind.numeric else default)
    nullable = facts.get("nullable", facts.get("key") != "PRIMARY")
    return Column(name, kind, nullable, default, facts.get("auto_increment", False), facts.get("comment", ""))


def create_definition(ddl: Ddl, schema: str, collation: str) -> Definition:
    """Returns the table that CREATE TABLE makes, in a database with this collation. Raises SqlError."""
    made = Definition(schema, ddl.name[1], (), (), collation_in(ddl.options, collation))
    for action in ddl.actions:
        made, _ = _acted(made, action)
    return _key_not_null(made)


def altered(definition: Definition, ddl: Ddl) -> tuple[Definition, list[int | None]]:
    """Returns the table after ALTER TABLE, and for each of its columns the number that it had before; None for a new
    one. Raises SqlError."""
    sources: list[int | None] = list(range(len(definition.columns)))
    for action in ddl.actions:
        before = {column.name: source for column, source in zip(definition.columns, sources, strict=True)}
        definition, renamed = _acted(definition, action)
        sources = [before.get(renamed.get(column.name, column.name)) for column in definition.columns]
    return _key_not_null(definition), sources


def _key_not_null(made: Definition) -> Definition:
    columns = tuple(
        replace(column, nullable=False) if number in made.primary else column
        for number, column in enumerate(made.columns)
    )
    return replace(made, columns=columns)


def _acted(made: Definition, action: tuple[Any, ...]) -> tuple[Definition, dict[str, str]]:
    """Returns the table after one action, and the former names of renamed columns."""
    kind, columns = action[0], list(made.columns)
    if kind == "add":
        name, facts = action[1]
        if name.lower() in made.numbers:
            raise SqlError(1060, f"Duplicate column name '{name}'")
        columns.insert(_at(made, action[2]), _made(action[1], made.collation))
        indexes = made.indexes
        if "key" in facts:
            index_name = "PRIMARY" if facts["key"] == "PRIMARY" else name
            indexes = (*indexes, Index(index_name, True, (name,)))
        return replace(made, columns=tuple(columns), indexes=indexes), {}
    if kind == "index":
        for name in action[1].columns:
            _number(made, name)
        return replace(made, indexes=(*made.indexes, action[1])), {}
    if kind == "drop index":
        if all(index.name != action[1] for index in made.indexes):
            raise SqlError(1091, f"Can't DROP '{action[1]}'; check that column/key exists")
        return replace(made, indexes=tuple(index for index in made.indexes if index.name != action[1])), {}
    if kind == "drop":
        return _without(made, action[1]), {}
    if kind == "rename column":
        number = _number(made, action[1])
        columns[number] = replace(columns[number], name=action[2])
        return _renamed(made, columns, action[1], action[2])
    if kind == "change":
        number = _number(made, action[1])
        former = columns.pop(number)
        column = _made(action[2], made.collation)
        rest = replace(made, columns=tuple(columns))
        columns.insert(number if action[3] is None else _at(rest, action[3]), column)
        return _renamed(made, columns, former.name, column.name)
    schema, name = action[1]
    return replace(made, schema=schema or made.schema, name=name), {}


def _number(made: Definition, name: str) -> int:
    if name.lower() not in made.numbers:
        raise no_column(name, made.name)
    return made.numbers[name.lower()]


def _at(made: Definition, place: str | None) -> int:
    """Returns where a column is put: at the end, first (""), or after another."""
    if place is None:
        return len(made.columns)
    return _number(made, place) + 1 if place else 0


def _without(made: Definition, name: str) -> Definition:
    if name.lower() not in made.numbers:
        raise SqlError(1091, f"Can't DROP '{name}'; check that column/key exists")
    columns = tuple(column for column in made.columns if column.name.lower() != name.lower())
    indexes = (
        replace(index, columns=tuple(one for one in index.columns if one.lower() != name.lower()))
        for index in made.indexes
    )
    return replace(made, columns=columns, indexes=tuple(index for index in indexes if index.columns))


def _renamed(made: Definition, columns: list[Column], before: str, after: str) -> tuple[Definition, dict[str, str]]:
    indexes = tuple(
        replace(index, columns=tuple(after if one.lower() == before.lower() else one for one in index.columns))
        for index in made.indexes
    )
    return replace(made, columns=tuple(columns), indexes=indexes), {after: before}


def declaration(definition: Definition) -> str:
    """Returns what SHOW CREATE TABLE prints."""
    lines = []
    for column in definition.columns:
        parts = [f"  `{column.name}` {column.type.text}"]
        if column.type.character and column.type.collation not in (definition.collation, "binary"):
            parts.append(f"CHARACTER SET {column.type.charset} COLLATE {column.type.collation}")
        if not column.nullable:
            parts.append("NOT NULL")
        if column.auto_increment:
            parts.append("AUTO_INCREMENT")
        elif column.default is NOW:
            parts.append("DEFAULT CURRENT_TIMESTAMP")
        elif column.default is not None:
            parts.append(f"DEFAULT '{column.default}'")
        elif column.nullable:
            parts.append("DEFAULT NULL")
        lines.append(" ".join(parts))
    for index in definition.indexes:
        listed = ",".join(f"`{name}`" for name in index.columns)
        kind = "PRIMARY KEY" if index.name == "PRIMARY" else f"{'UNIQUE ' if index.unique else ''}KEY `{index.name}`"
        lines.append(f"  {kind} ({listed})")
    charset = charset_of(definition.collation)
    end = f") ENGINE=InnoDB DEFAULT CHARSET={charset} COLLATE={definition.collation}"
    return f"CREATE TABLE `{definition.name}` (\n" + ",\n".join(lines) + "\n" + end
