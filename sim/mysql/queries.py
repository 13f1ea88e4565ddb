"""Runs SELECT, INSERT, UPDATE and DELETE."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sim.mysql.engine import View
from sim.mysql.errors import SqlError, no_column
from sim.mysql.result import Column, Result, column_of
from sim.mysql.schema import Definition, Key, Row, Table
from sim.mysql.sql.expressions import Compiled, Facts, Scope, compile_expression
from sim.mysql.sql.tree import Delete, Expression, Insert, Item, Select, Update
from sim.mysql.transactions import Transaction, filled, taken
from sim.mysql.types import Type

if TYPE_CHECKING:
    from sim.mysql.session import Session

Order = Sequence[tuple[Expression, bool]]


# -- which rows -------------------------------------------------------------------------------------------------------


def conditions(where: Expression | None) -> Iterator[Expression]:
    """Yields the parts that AND joins."""
    if where is None:
        return
    if where[:2] == ("op", "AND"):
        yield from conditions(where[2])
        yield from conditions(where[3])
    else:
        yield where


def _bounds(definition: Definition, where: Expression | None, facts: Facts) -> tuple[dict[int, Any], Any, Any]:
    """Returns what the condition says of the key: values of its columns, and the limits of the first one."""
    equal: dict[int, Any] = {}
    low = high = None
    scope = Scope(facts, {})
    for part in conditions(where):
        if part[0] != "op" or part[1] not in ("=", "<", ">", "<=", ">=") or part[2][0] != "column":
            continue
        number = definition.numbers.get(part[2][1].lower(), -1)
        if number not in definition.primary or part[3][0] not in ("literal", "negative", "user", "call"):
            continue
        kind = definition.columns[number].type
        try:
            value = compile_expression(part[3], scope).value
            limit = kind.order(kind.take(value)) if value is not None else None
        except (SqlError, KeyError):
            continue  # it is compared as another type, so that the key does not help
        if limit is None:
            continue
        if part[1] == "=":
            equal[number] = limit
        elif number == definition.primary[0]:
            low = limit if part[1][0] == ">" else low
            high = limit if part[1][0] == "<" else high
    return equal, low, high


def candidates(view: View, where: Expression | None, facts: Facts) -> Iterator[tuple[Key, Row]]:
    """Yields the rows that may meet a condition, in the order of the key."""
    definition = view.table.definition
    equal, low, high = _bounds(definition, where, facts) if definition.primary else ({}, None, None)
    if definition.primary and len(equal) == len(definition.primary):
        key = tuple(equal[number] for number in definition.primary)
        row = view.get(key)
        if row is not None:
            yield key, row
        return
    first = equal.get(definition.primary[0]) if definition.primary else None
    low, high = (first, first) if first is not None else (low, high)
    if low is None and high is None:
        yield from view
        return
    keys = view.keys
    begin = bisect_left(keys, low, key=lambda key: key[0]) if low is not None else 0
    end = bisect_right(keys, high, key=lambda key: key[0]) if high is not None else len(keys)
    at = begin
    while at < end:
        part = keys[at : min(end, at + 256)]  # most readers stop early
        at += len(part)
        for key in part:
            row = view.get(key)
            if row is not None:
                yield key, row


def _scope(definition: Definition, facts: Facts, inserted: Callable[[int], Any] | None = None) -> Scope:
    return Scope(facts, definition.numbers, [column.type for column in definition.columns], inserted)


def _where(where: Expression, scope: Scope) -> Callable[[Row], Any]:
    return compile_expression(where, replace(scope, clause="where clause")).function


def matching(
    view: View, where: Expression | None, order: Order, limit: int | None, facts: Facts
) -> Iterator[tuple[Key, Row]]:
    """Yields the rows that meet a condition, in order, at most `limit`."""
    scope = _scope(view.table.definition, facts)
    test = _where(where, scope) if where is not None else None
    found: Iterator[tuple[Key, Row]] = candidates(view, where, facts)
    if test is not None:
        found = ((key, row) for key, row in found if test(row))
    if order and not _by_key(view.table.definition, order):
        found = iter(sorted(found, key=_sorter(order, scope, lambda pair: pair[1])))
    for _, pair in zip(range(limit), found, strict=False) if limit is not None else enumerate(found):
        yield pair


def _by_key(definition: Definition, order: Order) -> bool:
    """Returns whether the order is that of the key."""
    numbers = [
        definition.numbers.get(one[1].lower()) if one[0] == "column" and not descending else None
        for one, descending in order
    ]
    return tuple(numbers) == definition.primary[: len(numbers)] and None not in numbers


class _Descending:
    """Turns an order around."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Descending) -> bool:
        return bool(other.value < self.value)


def _sorter(order: Order, scope: Scope, row_of: Callable[[Any], Row]) -> Callable[[Any], Any]:
    scope = replace(scope, clause="order clause")
    parts = [(compile_expression(one, scope), descending) for one, descending in order]

    def key(item: Any) -> Any:
        row, made = row_of(item), []
        for compiled, descending in parts:
            value = compiled.function(row)
            ordered = compiled.type.order(value) if compiled.type is not None and value is not None else value
            comparable = (ordered is not None, ordered if ordered is not None else 0)  # NULL first
            made.append(_Descending(comparable) if descending else comparable)
        return made

    return key


# -- SELECT -----------------------------------------------------------------------------------------------------------


def select(session: Session, statement: Select) -> Result:
    """Runs SELECT. Raises SqlError."""
    made = _select(session, statement)
    for one in statement.more:
        made.rows = [*made.rows, *_select(session, one).rows]
    return made


def _select(session: Session, statement: Select) -> Result:
    if statement.table is None:
        return _select_values(session, statement)
    schema, name = statement.table[0] or session.schema, statement.table[1]
    if schema.lower() in ("information_schema", "performance_schema"):
        kinds, rows = session.virtual(schema.lower(), name.lower())
        numbers = {one.lower(): at for at, one in enumerate(kinds)}
        scope = Scope(session, numbers, [None] * len(kinds), kinds=tuple(kinds.values()))
        return _shaped(session, statement, scope, list(kinds), _of_virtual(statement, scope, rows))
    table = session.table(schema, name, "SELECT")
    definition = table.definition
    locking = session.locking() if statement.locks else None
    if locking is not None:  # it sees and locks the present rows
        view = _own_view(locking, table)
    else:
        view = session.engine.view(table, session.read_view(table), session.transaction)
    most = None if statement.limit is None else statement.offset + statement.limit
    pairs: Iterable[tuple[Key, Row]] = (
        [] if statement.limit == 0 else matching(view, statement.where, statement.order, most, session)
    )
    if locking is not None:
        pairs = list(pairs)
        for key, _ in pairs:
            locking.lock(table, key)
    found = (row for _, row in pairs)
    scope = _scope(definition, session)
    if statement.where is not None:
        _where(statement.where, scope)  # names are checked also if no row is read
    return _shaped(session, statement, scope, [column.name for column in definition.columns], found)


def _select_values(session: Session, statement: Select) -> Result:
    scope = Scope(session, {})
    compiled = [compile_expression(item.expression, scope) for item in statement.items]
    form = (*(one.kind for one in compiled), *(one.decimals for one in compiled), session.raw_results)
    columns = session.server.columns.get((statement.items, form))
    if columns is None:
        columns = [_column(session, item, one) for item, one in zip(statement.items, compiled, strict=True)]
        session.server.columns[statement.items, form] = columns
    return Result(columns, [[one.value for one in compiled]])


def _of_virtual(statement: Select, scope: Scope, rows: Sequence[Row]) -> Iterator[Row]:
    found: Iterator[Row] = iter(rows)
    if statement.where is not None:
        test = _where(statement.where, scope)
        found = (row for row in found if test(row))
    if statement.order:
        found = iter(sorted(found, key=_sorter(statement.order, scope, lambda row: row)))
    if statement.limit is not None:
        found = (row for _, row in zip(range(statement.offset + statement.limit), found, strict=False))
    return found


def _shaped(session: Session, statement: Select, scope: Scope, names: Sequence[str], found: Iterator[Row]) -> Result:
    """Returns the columns that are wanted of the rows."""
    items: list[Item] = []
    for item in statement.items:
        every = item.expression == ("star",)
        items += [Item(("column", name), name) for name in names] if every else [item]
    if any(item.expression[:2] == ("call", "COUNT") for item in items):
        rows: list[Row] = [(sum(1 for _ in found),) * len(items)]
        return Result([_column(session, item, Compiled(tuple, "int")) for item in items], rows)
    compiled = [compile_expression(item.expression, scope) for item in items]
    gets = [one.function for one in compiled]
    rows = [tuple(get(row) for get in gets) for row in found]
    rows = rows[statement.offset :]
    table = statement.table or ("", "")
    columns: list[Column] = []
    for item, one in zip(items, compiled, strict=True):
        if one.kind == "any":
            sample = rows[0][len(columns)] if rows else ""
            one = Compiled(one.function, "int" if isinstance(sample, int) else "text")
        columns.append(_column(session, item, one, *table))
    return Result(columns, rows)


def _column(session: Session, item: Item, compiled: Compiled, schema: str = "", table: str = "") -> Column:
    return column_of(item.name, compiled, raw=session.raw_results, schema=schema, table=table)


# -- changes ----------------------------------------------------------------------------------------------------------


def insert(session: Session, statement: Insert, transaction: Transaction) -> Result:
    """Runs INSERT, REPLACE and INSERT ... ON DUPLICATE KEY UPDATE. Raises SqlError."""
    schema, name = statement.table[0] or session.schema, statement.table[1]
    table = session.table(schema, name, "INSERT")
    if statement.update:
        session.table(schema, name, "UPDATE")
    definition = table.definition
    numbers = [_number(definition, name) for name in statement.columns] or list(range(len(definition.columns)))
    affected, insert_id = 0, 0
    for expressions in statement.rows:
        if len(expressions) != len(numbers):
            raise SqlError(1136, "Column count doesn't match value count at row 1")
        scope = Scope(session, {})
        given = {
            number: compile_expression(one, scope).value
            for number, one in zip(numbers, expressions, strict=True)
            if one != ("default",)
        }
        row = filled(table, given, session.now)
        affected += _insert_row(session, statement, transaction, table, row)
        generated = next((at for at, column in enumerate(definition.columns) if column.auto_increment), None)
        if generated is not None and not insert_id:
            insert_id = row[generated]
    return Result(affected=affected, insert_id=insert_id)


def _number(definition: Definition, name: str) -> int:
    if name.lower() not in definition.numbers:
        raise no_column(name)
    return definition.numbers[name.lower()]


def _insert_row(session: Session, statement: Insert, transaction: Transaction, table: Table, row: Row) -> int:
    definition = table.definition
    key = definition.key_of(row) if definition.primary else (table.next_row,)
    try:
        transaction.add(table, None, (key, row))
        table.next_row += not definition.primary
        return 1
    except SqlError as error:
        if error.errno != 1062 or not (statement.ignore or statement.update or statement.replace):
            raise
    if statement.ignore:
        return 0
    old, last = _conflicting(transaction, table, key, row)
    if statement.replace:
        if last:  # the server changes the row
            if old[1] != row:
                transaction.add(table, old, (key, row))
            return 1 + (old[1] != row)
        transaction.add(table, old, None)
        return 1 + _insert_row(session, statement, transaction, table, row)
    scope = _scope(definition, session, lambda number: row[number])
    return 2 * _change(transaction, table, old, _assignments(statement.update, scope))


def _conflicting(transaction: Transaction, table: Table, key: Key, row: Row) -> tuple[tuple[Key, Row], bool]:
    """Returns the row that has the key, or a value of a unique index, of another, and whether that is the last one."""
    definition = table.definition
    present = transaction.get(table, key)
    if present is not None:
        return (key, present), not definition.uniques
    others = {**table.rows, **transaction.overlay.get(table, {})}
    for at, (_, numbers) in enumerate(definition.uniques, 1):
        value = definition.unique_value(numbers, row)
        for other, one in others.items():
            if one is not None and value is not None and definition.unique_value(numbers, one) == value:
                return (other, one), at == len(definition.uniques)
    raise AssertionError("a duplicate has a row")


Assignments = list[tuple[int, Callable[[Row], Any]]]


def _assignments(values: Sequence[tuple[str, Expression]], scope: Scope) -> Assignments:
    made = []
    for name, expression in values:
        number = scope.columns.get(name.lower())
        if number is None:
            raise no_column(name)
        made.append((number, compile_expression(expression, scope).function))
    return made


def _change(transaction: Transaction, table: Table, old: tuple[Key, Row], assignments: Assignments) -> int:
    """Changes one row; returns whether it differs afterwards."""
    key, row = old
    values = list(row)
    for number, value in assignments:  # from left to right: a later one sees the earlier ones
        values[number] = taken(table.definition, number, value(tuple(values)))
    after = tuple(values)
    if after == row:
        return 0
    new = table.definition.key_of(after) if table.definition.primary else key
    transaction.add(table, old, (new, after))
    return 1


def _own_view(transaction: Transaction, table: Table) -> View:
    """Returns the present rows, which a change refers to, whatever a snapshot shows."""
    return View(table, dict(transaction.overlay.get(table, {})))


def update(session: Session, statement: Update, transaction: Transaction) -> Result:
    """Runs UPDATE. Raises SqlError."""
    schema, name = statement.table[0] or session.schema, statement.table[1]
    table = session.table(schema, name, "UPDATE")
    assignments = _assignments(statement.values, _scope(table.definition, session))
    view = _own_view(transaction, table)
    found = list(matching(view, statement.where, statement.order, statement.limit, session))
    return Result(affected=sum(_change(transaction, table, old, assignments) for old in found))


@dataclass(slots=True)
class PointUpdate:
    """A template of an UPDATE of one row, compiled. `params` has the literals of the present run; `key` are, for each
    part of the key, the number of its literal and its type."""

    params: list[Any]
    assignments: Assignments
    test: Callable[[Row], Any]
    key: list[tuple[int, Type]]


def _point_plan(session: Session, statement: Update, definition: Definition) -> PointUpdate | None:
    """Returns the plan of a template; None if its condition does not name one row by its key."""
    given = {
        definition.numbers.get(part[2][1].lower()): part[3][1]
        for part in conditions(statement.where)
        if part[:2] == ("op", "=") and part[2][0] == "column" and part[3][0] == "param"
    }
    if not definition.primary or statement.where is None or any(one not in given for one in definition.primary):
        return None
    params: list[Any] = []
    scope = replace(_scope(definition, session), params=params)
    key = [(given[number], definition.columns[number].type) for number in definition.primary]
    return PointUpdate(params, _assignments(statement.values, scope), _where(statement.where, scope), key)


def point_update(session: Session, statement: Update, literals: list[Any], transaction: Transaction) -> Result | None:
    """Runs a template of an UPDATE; None if it is no update of one row, and nothing was done."""
    schema, name = statement.table[0] or session.schema, statement.table[1]
    table = session.table(schema, name, "UPDATE")
    definition = table.definition
    if definition not in statement.plans:
        statement.plans.clear()
        statement.plans[definition] = _point_plan(session, statement, definition)
    plan: PointUpdate | None = statement.plans[definition]
    if plan is None:
        return None
    plan.params[:] = literals
    key = tuple(kind.order(kind.take(literals[at])) for at, kind in plan.key)
    row = transaction.get(table, key)
    if row is None or not plan.test(row):
        return Result()
    return Result(affected=_change(transaction, table, (key, row), plan.assignments))


def delete(session: Session, statement: Delete, transaction: Transaction) -> Result:
    """Runs DELETE. Raises SqlError."""
    schema, name = statement.table[0] or session.schema, statement.table[1]
    table = session.table(schema, name, "DELETE")
    view = _own_view(transaction, table)
    found = list(matching(view, statement.where, statement.order, statement.limit, session))
    for old in found:
        transaction.add(table, old, None)
    return Result(affected=len(found))


def kinds(definition: Definition) -> list[Type]:
    """Returns the types of a table's columns."""
    return [column.type for column in definition.columns]
