"""The syntax tree of statements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Expression = tuple[Any, ...]
"""(kind, ...): literal, column, system, user, op, not, negative, in, between, null, like, call, cast, star."""
Name = tuple[str, str]
"""Schema, "" for the session's, and table."""


@dataclass(frozen=True, slots=True)
class Item:
    """An expression of a SELECT list, and its name in the result."""

    expression: Expression
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """SELECT. `more` are those that UNION ALL appends."""

    items: tuple[Item, ...]
    table: Name | None = None
    where: Expression | None = None
    order: tuple[tuple[Expression, bool], ...] = ()
    """Expressions, and whether descending."""
    limit: int | None = None
    offset: int = 0
    locks: bool = False
    more: tuple[Select, ...] = ()


@dataclass(frozen=True, slots=True)
class Insert:
    table: Name
    columns: tuple[str, ...]
    rows: tuple[tuple[Expression, ...], ...]
    ignore: bool = False
    update: tuple[tuple[str, Expression], ...] = ()
    """ON DUPLICATE KEY UPDATE."""
    replace: bool = False


@dataclass(frozen=True, slots=True)
class Update:
    table: Name
    values: tuple[tuple[str, Expression], ...]
    where: Expression | None = None
    order: tuple[tuple[Expression, bool], ...] = ()
    limit: int | None = None
    plans: dict[Any, Any] = field(default_factory=dict, compare=False)
    """Of a template: how it is run, by the table's definition."""


@dataclass(frozen=True, slots=True)
class Delete:
    table: Name
    where: Expression | None = None
    order: tuple[tuple[Expression, bool], ...] = ()
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Set:
    """SET: (scope, name, value); scope is global, persist, session or user."""

    values: tuple[tuple[str, str, Expression], ...]


@dataclass(frozen=True, slots=True)
class Show:
    """SHOW: what is shown, by its words; `like` is a pattern, `names` are those of WHERE Variable_name IN."""

    what: str
    like: str | None = None
    names: tuple[str, ...] | None = None
    table: Name | None = None


@dataclass(frozen=True, slots=True)
class Control:
    """A statement about transactions, sessions or binlogs, by its words in capitals."""

    words: str
    name: str = ""
    xid: tuple[int, bytes, bytes] | None = None


@dataclass(frozen=True, slots=True)
class Explain:
    statement: Select | Insert | Update | Delete


@dataclass(frozen=True, slots=True)
class Ddl:
    """A statement about databases or tables. `action` is read by `definitions`; `text` is as it is logged, if the
    server words it again."""

    kind: str
    name: Name
    guarded: bool = False
    """IF EXISTS or IF NOT EXISTS."""
    options: dict[str, Any] = field(default_factory=dict)
    actions: tuple[tuple[Any, ...], ...] = ()
    others: tuple[tuple[Name, Name], ...] = ()
    """Of RENAME TABLE: names before and after. Of DROP TABLE: the names in `before`."""


Statement = Select | Insert | Update | Delete | Set | Show | Control | Explain | Ddl
