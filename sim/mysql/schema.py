"""Tables: what is declared of them, and their rows."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sim.mysql.collations import charset_of
from sim.mysql.errors import SqlError
from sim.mysql.types import Type

Row = tuple[Any, ...]
Key = tuple[Any, ...]
"""The parts of a primary key as they are compared; the number of a row in a table without one."""
NOW = object()
"""The default CURRENT_TIMESTAMP."""


@dataclass(frozen=True, eq=False)
class Column:
    """A column as declared. `default` is canonical, None for NULL or for none, or NOW."""

    name: str
    type: Type
    nullable: bool = True
    default: Any = None
    auto_increment: bool = False
    comment: str = ""


@dataclass(frozen=True)
class Index:
    """An index on columns, by their names. `name` is PRIMARY for the primary key."""

    name: str
    unique: bool
    columns: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Definition:
    """A table as declared; never changed: a statement that alters a table makes another one."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    indexes: tuple[Index, ...]
    collation: str

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Returns the columns' numbers by their names in lower case."""
        return {column.name.lower(): number for number, column in enumerate(self.columns)}

    @cached_property
    def primary(self) -> tuple[int, ...]:
        """Returns the numbers of the primary key's columns."""
        found = next((index for index in self.indexes if index.name == "PRIMARY"), None)
        return tuple(self.numbers[name.lower()] for name in found.columns) if found else ()

    @cached_property
    def identity(self) -> tuple[int, ...]:
        """Returns the key by which the server tells rows apart: the primary key, or the first unique one without
        NULLs."""
        if self.primary:
            return self.primary
        return next((key for _, key in self.uniques if not any(self.columns[one].nullable for one in key)), ())

    @cached_property
    def uniques(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Returns the other unique indexes with their columns' numbers."""
        return tuple(
            (index.name, tuple(self.numbers[name.lower()] for name in index.columns))
            for index in self.indexes
            if index.unique and index.name != "PRIMARY"
        )

    @cached_property
    def orders(self) -> tuple[Any, ...]:
        """Returns the functions that make the parts of a key."""
        return tuple(self.columns[number].type.order for number in self.primary)

    @property
    def charset(self) -> str:
        return charset_of(self.collation)

    def key_of(self, row: Row) -> Key:
        """Returns the key of a row; () without a primary key."""
        return tuple(order(row[number]) for order, number in zip(self.orders, self.primary, strict=True))

    def key_from(self, values: Sequence[Any]) -> Key:
        """Returns the key with these values, as a client gives them. Raises SqlError."""
        if len(values) != len(self.primary):
            raise SqlError(1054, f"the key of {self.schema}.{self.name} has {len(self.primary)} columns")
        types = [self.columns[number].type for number in self.primary]
        return tuple(one.order(one.take(value)) for one, value in zip(types, values, strict=True))

    def unique_value(self, numbers: tuple[int, ...], row: Row) -> Key | None:
        """Returns what a unique index compares of a row; None if a part is NULL."""
        parts = [row[number] for number in numbers]
        if None in parts:
            return None
        return tuple(self.columns[number].type.order(part) for number, part in zip(numbers, parts, strict=True))


@dataclass(eq=False)
class Table:
    """The committed rows of a table, by key. `begun` is the number of the commit that made it."""

    definition: Definition
    begun: int = 0
    rows: dict[Key, Row] = field(default_factory=dict)
    locks: dict[Key, object] = field(default_factory=dict)
    """The transactions that have changed a row and are not over."""
    next_id: int = 1
    """The next AUTO_INCREMENT."""
    next_row: int = 1
    """The number of the next row without a key."""
    changed: int = 0
    """The number of the last commit that changed it."""
    _sorted: list[Key] | None = None
    _uniques: list[dict[Key, Key]] | None = None

    @property
    def sorted(self) -> list[Key]:
        """Returns all keys in order."""
        if self._sorted is None:
            self._sorted = sorted(self.rows)
        return self._sorted

    @property
    def uniques(self) -> list[dict[Key, Key]]:
        """Returns, for each unique index besides the primary key, the keys of rows by their values."""
        if self._uniques is None:
            self._uniques = [{} for _ in self.definition.uniques]
            for key, row in self.rows.items():
                self._note(key, row)
        return self._uniques

    def _note(self, key: Key, row: Row) -> None:
        for known, (_, numbers) in zip(self.uniques, self.definition.uniques, strict=True):
            value = self.definition.unique_value(numbers, row)
            if value is not None:
                known[value] = key

    def set(self, key: Key, row: Row | None) -> None:
        """Stores a row, or removes it."""
        before = self.rows.get(key)
        if self.definition.uniques:
            if before is not None:
                for known, (_, numbers) in zip(self.uniques, self.definition.uniques, strict=True):
                    value = self.definition.unique_value(numbers, before)
                    if value is not None and known.get(value) == key:
                        del known[value]
            else:
                _ = self.uniques
            if row is not None:
                self._note(key, row)
        if row is None:
            del self.rows[key]
            if self._sorted is not None:
                del self._sorted[bisect_left(self._sorted, key)]
        else:
            if self._sorted is not None and before is None:
                insort(self._sorted, key)
            self.rows[key] = row

    def copy(self) -> Table:
        """Returns an independent table with the same rows, without locks."""
        made = Table(self.definition, self.begun, dict(self.rows), next_id=self.next_id, next_row=self.next_row)
        made.changed = self.changed
        return made


@dataclass(eq=False)
class Schema:
    """A database: its tables by name, and its default collation."""

    name: str
    collation: str
    tables: dict[str, Table] = field(default_factory=dict)


@dataclass(eq=False)
class Catalog:
    """All databases, by name."""

    schemas: dict[str, Schema] = field(default_factory=dict)

    def find(self, schema: str, table: str) -> Table | None:
        known = self.schemas.get(schema)
        return None if known is None else known.tables.get(table)

    def tables(self) -> Iterator[Table]:
        """Yields all tables, by the names of databases and tables."""
        for name in sorted(self.schemas):
            tables = self.schemas[name].tables
            for table in sorted(tables):
                yield tables[table]

    def copy(self) -> Catalog:
        made = Catalog()
        for name, schema in self.schemas.items():
            tables = {table: one.copy() for table, one in schema.tables.items()}
            made.schemas[name] = Schema(name, schema.collation, tables)
        return made
