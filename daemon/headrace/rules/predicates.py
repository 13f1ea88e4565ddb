"""Conditions on rows: which rows of a table are published.

predicate_parser.py defines the language. Comparisons are SQL's, with three values: a comparison with NULL is neither
true nor false but None, and only True counts as a match. How types compare:

- numbers and DECIMAL exactly; FLOAT and DOUBLE as numbers;
- DATE, DATETIME, TIMESTAMP, TIME and YEAR as times; `"2026-01-31"` is that day's midnight. A TIMESTAMP has the time
  zone of messages;
- CHAR, VARCHAR, TEXT, ENUM and SET as texts, character by character: unlike in most of MySQL's collations the case of
  letters counts, and so do spaces at the end;
- JSON, binary strings and geometries allow only `is null`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from decimal import Decimal
from math import ceil, floor
from typing import Any

from headrace.errors import HeadraceError
from headrace.model import ABSENT, Column, Row
from headrace.rules.likes import like, pieces
from headrace.rules.predicate_parser import Comparison, Literal, Many, Node, Not
from headrace.rules.predicate_types import DECIMALS, FLOATS, INTEGERS, Family, family_of

Match = Callable[[Row], bool | None]
# Truth as two bits, so that "and" is &, "or" is | and both can stop early: 0 false, 1 unknown, 3 true
_NOT = (3, 1, None, 0)
_TRUTH = (False, None, None, True)


class ColumnAbsent(HeadraceError):
    """The row image lacks a column of the condition, so it is unknown whether the row is wanted."""

    reason = "row_image"
    retriable = False

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the row image has no column {name}, which a condition of [[filter.where]] asks for",
            remedy="SET GLOBAL binlog_row_image = FULL on the source, or leave the column out of the condition",
        )
        self.name = name


def bind(condition: Node, columns: Sequence[Column]) -> Match:
    """Returns the condition for rows with these columns: True, False or None (unknown).

    Raises ValueError if it does not fit them. The function raises ColumnAbsent for a row that lacks one of the
    condition's columns, whatever the others contain."""
    return _Binder(columns).bind(condition)


def compared_columns(condition: Node) -> set[str]:
    """Returns the columns whose values a condition reads, beyond whether they are NULL."""
    if isinstance(condition, Many):
        return {name for part in condition.parts for name in compared_columns(part)}
    if isinstance(condition, Not):
        return compared_columns(condition.part)
    return set() if condition.operator == "is null" else {condition.column}


_LARGEST = 10**30
"""Above every value of an integer column. Larger literals compare in the same way."""
_LONGEST = 1000
"""Maximum digits of a literal that native code compares."""


def native_condition(condition: Node, columns: Sequence[Column], *, enum_index: bool) -> tuple[Any, ...] | None:
    """Returns a condition that bind() has accepted as native code reads it (`native/src/specs.rs`); None if it can't.
    `enum_index`: whether values of ENUM and SET are numbers."""
    if isinstance(condition, Many):
        parts = [native_condition(part, columns, enum_index=enum_index) for part in condition.parts]
        return None if None in parts else ("every" if condition.every else "any", parts)
    if isinstance(condition, Not):
        part = native_condition(condition.part, columns, enum_index=enum_index)
        return None if part is None else ("not", part)
    index = next(i for i, one in enumerate(columns) if one.name.lower() == condition.column.lower())
    column, operator = columns[index], condition.operator
    if operator == "is null":
        return operator, index
    family = family_of(column)
    if family is None or (column.kind in ("enum", "set") and (enum_index or not column.labels)):
        return None
    if operator == "like":
        return operator, index, pieces(str(condition.literals[0].value))
    values = [family.literal(literal.value) for literal in condition.literals]
    if column.kind in FLOATS:
        return "float", index, operator, [repr(value) for value in values]
    if column.kind in DECIMALS:
        texts = [f"{value:f}" for value in values if abs(value.adjusted()) < _LONGEST]
        fits = len(texts) == len(values) and max(map(len, texts)) < _LONGEST
        return ("decimal", index, operator, texts) if fits else None
    if column.kind in INTEGERS or column.kind in ("year", "time"):
        return _native_int(index, operator, values)
    return "text", index, operator, values


def _native_int(index: int, operator: str, values: Sequence[int | Decimal]) -> tuple[Any, ...]:
    """Returns a comparison of whole numbers; a literal that is none is replaced by the next one."""
    whole = [int(value) for value in values if value == int(value)]
    literals = [str(max(-_LARGEST, min(value, _LARGEST))) for value in whole]
    if operator == "in" or whole:
        return "int", index, operator, literals
    never: tuple[Any, ...] = ("int", index, "in", [])
    if operator in ("==", "!="):
        return never if operator == "==" else ("not", never)
    return "int", index, operator[0], [str(ceil(values[0]) if operator[0] == "<" else floor(values[0]))]


class _Binder:
    """Writes one Python function for a condition. Its source has numbers and names of our own; the user's texts and the
    columns' names come in as bound values."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._indexes = {column.name.lower(): index for index, column in enumerate(columns)}
        self._used: dict[int, None] = {}
        self._bound: dict[str, Any] = {"absent": ABSENT, "not_": _NOT, "truth": _TRUTH}
        self._temporaries = 0

    def bind(self, root: Node) -> Match:
        expression = self._code(root)
        used = tuple(self._used)
        names = [self._columns[index].name for index in used]

        def missing(row: Row) -> None:
            raise ColumnAbsent(next(name for i, name in zip(used, names, strict=True) if row[i] is ABSENT))

        self._bound["missing"] = missing
        lines = ["def match(row):"]
        lines += [f"    v{index} = row[{index}]" for index in used]
        lines += [f"    if {' or '.join(f'v{index} is absent' for index in used)}: missing(row)"]
        lines += [f"    return truth[{expression}]"]
        exec("\n".join(lines), self._bound)
        match: Match = self._bound["match"]
        return match

    def _code(self, node: Node) -> str:
        """Returns an expression for 0, 1 or 3, in parentheses."""
        if isinstance(node, Many):
            return self._many(node)
        if isinstance(node, Not):
            return self._opposite(node.part)
        return self._leaf(node, "3", "0")

    def _many(self, node: Many) -> str:
        first, *others = [self._code(part) for part in node.parts]
        self._temporaries += 1
        t = f"t{self._temporaries}"
        if node.every:
            return "(" + " and ".join([f"({t} := {first})", *(f"({t} := {t} & {part})" for part in others)]) + ")"
        steps = [f"({t} := {first}) == 3", *(f"({t} := {t} | {part}) == 3" for part in others)]
        return f"(3 if {' or '.join(steps)} else {t})"

    def _opposite(self, part: Node) -> str:
        if isinstance(part, Not):
            return self._code(part.part)
        if isinstance(part, Many):
            return f"not_[{self._many(part)}]"
        return self._leaf(part, "0", "3")

    def _leaf(self, node: Comparison, yes: str, no: str) -> str:
        index = self._index(node.column)
        if node.operator == "is null":
            return f"({yes} if v{index} is None else {no})"
        return f"(1 if v{index} is None else {yes} if {self._test(node, index)} else {no})"

    def _test(self, node: Comparison, index: int) -> str:
        """Returns the test of a value that is not NULL."""
        column, literal = self._columns[index], node.literals[0]
        family = family_of(column)
        if family is None:
            raise ValueError(
                f"{column.name} ({column.kind}) can't be compared with {literal.text[:60]}, only be asked for null"
            )
        value = f"v{index}"
        if family.value is not None:
            value = f"{self._constant(family.value)}(v{index})"
        if node.operator == "like":
            if not family.likes:
                raise ValueError(f"{column.name} ({column.kind}) is {family.said}, and like is for texts")
            return f"{self._constant(like(str(literal.value)))}({value})"
        values = [self._literal(column, family, each) for each in node.literals]
        return f"{value} {node.operator} {self._constant(frozenset(values) if node.operator == 'in' else values[0])}"

    def _literal(self, column: Column, family: Family, literal: Literal) -> Any:
        try:
            return family.literal(literal.value)
        except ValueError as error:
            raise ValueError(
                f"{literal.text[:60]} at character {literal.at + 1}, compared with {column.name} ({column.kind}), "
                f"{error}"
            ) from None

    def _constant(self, value: Any) -> str:
        name = f"c{len(self._bound)}"
        self._bound[name] = value
        return name

    def _index(self, name: str) -> int:
        index = self._indexes.get(name.lower())
        if index is None:
            near = difflib.get_close_matches(name.lower(), self._indexes, 3)
            names = [self._columns[self._indexes[each]].name for each in near]
            hint = f"did you mean {' or '.join(names)}?" if names else f"it has {', '.join(list(self._indexes)[:10])}"
            raise ValueError(f"the table has no column {name}; {hint}")
        self._used[index] = None
        return index
