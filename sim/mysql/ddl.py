"""Statements about databases and tables: what they change, how they are logged, and how that is undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from sim.mysql import events
from sim.mysql.engine import Engine, Logged
from sim.mysql.errors import Locked, SqlError, no_schema, no_table
from sim.mysql.schema import NOW, Definition, Row, Schema, Table
from sim.mysql.sql.definitions import altered, collation_in, create_definition
from sim.mysql.sql.tree import Ddl, Name
from sim.mysql.transactions import taken

DEFAULT_COLLATION = "utf8mb4_0900_ai_ci"


class _Undo:
    """Collects how changes of the catalog are undone."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], object]] = []

    def __call__(self) -> None:
        for step in reversed(self.steps):
            step()


def apply(engine: Engine, ddl: Ddl, current: str, sql: str) -> tuple[Logged, Callable[[], None]]:
    """Runs a statement in a session whose database is `current`; returns how it is logged, and what undoes it. Raises
    SqlError."""
    undo = _Undo()
    runs = {
        "create database": _create_database,
        "drop database": _drop_database,
        "create": _create,
        "drop table": _drop,
        "rename": _rename,
        "truncate": _truncate,
        "alter": _alter,
    }
    text, schema = runs[ddl.kind](engine, ddl, current, undo)
    timestamps = any(action[0] in ("add", "change") and _kind_of(action) == "timestamp" for action in ddl.actions)
    logged = Logged(current, text or sql, schema, timestamps=timestamps, last=_LAST.get(ddl.kind, b""))
    logged = replace(logged, effect=bool(undo.steps))
    if ddl.kind.endswith("database"):
        return replace(logged, schema=schema, flags=events.NO_USE), undo
    if ddl.kind == "drop table":
        return replace(logged, flags=events.THREAD), undo
    return replace(logged, updated="") if ddl.kind == "truncate" else logged, undo


_LAST = {"create database": b"\x14\0", "create": b"\x13\0", "alter": b"\x13\0"}
"""Status variables: whether the database is encrypted, and whether tables need a primary key."""


def _kind_of(action: tuple[Any, ...]) -> str:
    column = action[1] if action[0] == "add" else action[2]
    return str(column[1]["kind"])


def _schema(engine: Engine, name: Name, current: str) -> Schema:
    wanted = name[0] or current
    if not wanted:
        raise SqlError(1046, "No database selected")
    if wanted not in engine.catalog.schemas:
        raise no_schema(wanted)
    return engine.catalog.schemas[wanted]


def _table(engine: Engine, name: Name, current: str) -> tuple[Schema, Table]:
    schema = _schema(engine, name, current)
    table = schema.tables.get(name[1])
    if table is None:
        raise no_table(schema.name, name[1])
    if table.locks:
        raise Locked
    return schema, table


def _put(schema: Schema, name: str, table: Table | None, undo: _Undo) -> None:
    """Sets or removes a table of a database."""
    before = schema.tables.get(name)
    if before is None:
        undo.steps.append(lambda: schema.tables.pop(name))
    else:
        undo.steps.append(partial(schema.tables.__setitem__, name, before))
    if table is None:
        del schema.tables[name]
    else:
        schema.tables[name] = table


def _create_database(engine: Engine, ddl: Ddl, current: str, undo: _Undo) -> tuple[str, str]:
    name, schemas = ddl.name[0], engine.catalog.schemas
    if name in schemas:
        if not ddl.guarded:
            raise SqlError(1007, f"Can't create database '{name}'; database exists")
        return "", name
    schemas[name] = Schema(name, collation_in(ddl.options, DEFAULT_COLLATION))
    undo.steps.append(lambda: schemas.pop(name))
    return "", name


def _drop_database(engine: Engine, ddl: Ddl, current: str, undo: _Undo) -> tuple[str, str]:
    name, schemas = ddl.name[0], engine.catalog.schemas
    if name not in schemas:
        if not ddl.guarded:
            raise SqlError(1008, f"Can't drop database '{name}'; database doesn't exist")
        return "", name
    if any(table.locks for table in schemas[name].tables.values()):
        raise Locked
    undo.steps.append(partial(schemas.__setitem__, name, schemas[name]))
    del schemas[name]
    return "", name


def _create(engine: Engine, ddl: Ddl, current: str, undo: _Undo) -> tuple[str, str]:
    schema = _schema(engine, ddl.name, current)
    if ddl.name[1] in schema.tables:
        if not ddl.guarded:
            raise SqlError(1050, f"Table '{ddl.name[1]}' already exists")
        return "", schema.name
    definition = create_definition(ddl, schema.name, schema.collation)
    _put(schema, ddl.name[1], Table(definition, engine.number + 1), undo)
    return "", schema.name


def _drop(engine: Engine, ddl: Ddl, current: str, undo: _Undo) -> tuple[str, str]:
    listed = []
    for name, _ in ddl.others:
        schema = _schema(engine, name, current)
        if name[1] in schema.tables:
            _table(engine, name, current)
        elif not ddl.guarded:
            raise SqlError(1051, f"Unknown table '{schema.name}.{name[1]}'")
        listed.append((schema, name[1]))
    for schema, table in listed:
        if table in schema.tables:
            _put(schema, table, None, undo)
    names = (f"`{table}`" if schema.name == current else f"`{schema.name}`.`{table}`" for schema, table in listed)
    guard = "IF EXISTS " if ddl.guarded else ""
    return f"DROP TABLE {guard}{','.join(names)} /* generated by server */", listed[0][0].name


def _moved(engine: Engine, table: Table, definition: Definition) -> Table:
    """Returns the same rows under another definition with the same columns."""
    engine.forget_table(table.definition)
    made = table.copy()
    made.definition, made.begun = definition, engine.number + 1
    return made


def _rename(engine: Engine, ddl: Ddl, current: str, undo: _Undo) -> tuple[str, str]:
    schema = _schema(engine, ddl.name, current)
    try:
        for before, after in ddl.others:
            old, table = _table(engine, before, current)
            new = _schema(engine, after, current)
            if after[1] in new.tables:
                raise SqlError(1050, f"Table '{after[1]}' already exists")
            _put(old, before[1], None, undo)
            _put(new, after[1], _moved(engine, table, replace(table.definition, schema=new.name, name=after[1])), undo)
    except SqlError:
        undo()
        raise
    return "", schema.name


def _truncate(engine: Engine, ddl: Ddl, current: str, undo: _Undo) -> tuple[str, str]:
    schema, table = _table(engine, ddl.name, current)
    engine.forget_table(table.definition)
    _put(schema, ddl.name[1], Table(table.definition, engine.number + 1), undo)
    return "", schema.name


def _alter(engine: Engine, ddl: Ddl, current: str, undo: _Undo) -> tuple[str, str]:
    schema, table = _table(engine, ddl.name, current)
    former = table.definition
    definition, sources = altered(former, ddl)
    target = engine.catalog.schemas.get(definition.schema)
    if target is None:
        raise no_schema(definition.schema)
    if (definition.schema, definition.name) != (former.schema, former.name) and definition.name in target.tables:
        raise SqlError(1050, f"Table '{definition.name}' already exists")
    engine.forget_table(former)
    made = Table(definition, engine.number + 1, next_id=table.next_id, next_row=table.next_row)
    for key, row in table.rows.items():
        values = _converted(definition, former, row, sources, engine.now)
        new = definition.key_of(values) if definition.primary else key if not former.primary else (made.next_row,)
        made.next_row += not definition.primary
        if new in made.rows:
            raise SqlError(1062, f"Duplicate entry for key '{definition.name}.PRIMARY'")
        made.rows[new] = values
    _put(schema, ddl.name[1], None, undo)
    _put(target, definition.name, made, undo)
    return "", schema.name


def _converted(
    definition: Definition, former: Definition, row: Row, sources: list[int | None], now: Callable[[], int]
) -> Row:
    """Returns a row for a changed table."""
    from sim.mysql.sql.expressions import time_text

    values = []
    for number, (column, source) in enumerate(zip(definition.columns, sources, strict=True)):
        if source is not None:
            value = row[source]
            values.append(taken(definition, number, value) if column is not former.columns[source] else value)
        elif column.default is NOW:
            values.append(time_text(now(), column.type.decimals))
        elif column.default is None and not column.nullable:
            values.append(column.type.take(0 if column.type.numeric else _empty(column.type.name)))
        else:
            values.append(column.default)
    return tuple(values)


def _empty(kind: str) -> str:
    """Returns what a new NOT NULL column without a default has."""
    zero = {"date": "0000-00-00", "datetime": "0000-00-00 00:00:00", "timestamp": "0000-00-00 00:00:00", "json": "null"}
    return zero.get(kind, "")
