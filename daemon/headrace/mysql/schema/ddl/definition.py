"""The effect of CREATE and ALTER TABLE on a table's columns and primary key, as in the servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from headrace.model import Column
from headrace.mysql.schema.ddl.actions import (
    OVERLAPS,
    PRIMARY,
    AddColumn,
    AddIndex,
    AlterColumn,
    AlterTable,
    ChangeColumn,
    ColumnDef,
    ColumnType,
    CreateTable,
    DropColumn,
    DropIndex,
    Index,
    RenameColumn,
    RenameIndex,
    TableCharset,
    Versioning,
    indexes_of,
)
from headrace.mysql.schema.ddl.types import TEXT_BYTES, by_bytes, make_column, parse_type
from headrace.mysql.sql.dialect import Dialect
from headrace.mysql.sql.tokens import NotParsed
from headrace.mysql.values.charsets import WIDTHS


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A table as its statements declare it."""

    columns: tuple[Column, ...]
    primary: tuple[int, ...]
    """The numbers of the primary key's columns, in key order."""
    charset: str
    """The table's default character set; "" if unknown."""
    indexes: tuple[Index, ...] = ()
    """All but the primary key, in the server's order: see in_order()."""

    @property
    def keys(self) -> tuple[int, ...]:
        """Returns the primary key's columns, or those of the unique key that the server uses in its place: of the first
        index, if it is unique and its columns are NOT NULL, not virtual, and whole."""
        if self.primary or not self.indexes or any(_rank(self.indexes[0], self.columns)):
            return self.primary
        numbers = {column.name.lower(): i for i, column in enumerate(self.columns)}
        keys = tuple(numbers[name.lower()] for name, _ in self.indexes[0].parts)
        return (*keys, len(self.columns) - 1) if has_row_times(self.columns) else keys


def in_order(indexes: Iterable[Index], columns: Sequence[Column]) -> tuple[Index, ...]:
    """Returns indexes in the servers' order (MySQL's sort_keys): unique ones first, of those the ones without NULL, and
    of those the ones without prefixes; else as they were."""
    return tuple(sorted(indexes, key=lambda index: _rank(index, columns)))


def _rank(index: Index, columns: Sequence[Column]) -> tuple[bool, bool, bool]:
    by_name = {column.name.lower(): column for column in columns}
    parts = [(by_name.get(name.lower()), prefix) for name, prefix in index.parts]
    nullable = any(column is None or column.nullable or column.virtual for column, _ in parts)
    partial = any(column is None or _in_part(column, prefix) for column, prefix in parts)
    return not index.unique, nullable, partial


def _in_part(column: Column, prefix: int) -> bool:
    """Returns whether a key has only a part of the column's values. Of the types that need a prefix, 255 bytes are a
    whole TINYBLOB."""
    if not column.kind.endswith(("text", "blob", "json")):
        return bool(prefix)
    return not (column.kind in ("tinyblob", "tinytext") and prefix == 255 and WIDTHS.get(column.charset) == 1)


class Difference(Enum):
    """The differences in rows of two definitions of a table. Defaults, comments and the display width of a number do
    not count."""

    NONE = 0
    KEY = 1
    COLUMNS = 2


def difference(ours: TableDefinition, shown: TableDefinition) -> Difference:
    """Returns the difference between our definition and the server's."""
    if list(map(_meaning, ours.columns)) != list(map(_meaning, shown.columns)):
        return Difference.COLUMNS
    return Difference.KEY if ours.keys != shown.keys else Difference.NONE


def in_words(ours: TableDefinition, shown: TableDefinition) -> str:
    """Returns the first difference of columns, "" for none."""
    if len(ours.columns) != len(shown.columns):
        return f"it has {len(ours.columns)} columns by the schema history and {len(shown.columns)} on the server"
    for i, (mine, theirs) in enumerate(zip(ours.columns, shown.columns, strict=True), 1):
        if _meaning(mine) != _meaning(theirs):
            return (
                f"column {i} is {_column_words(mine)} by the schema history and {_column_words(theirs)} on the server"
            )
    return ""


def _meaning(column: Column) -> tuple[object, ...]:
    size = column.length, column.scale, column.nullable
    return column.name, column.kind, column.unsigned, column.charset, column.labels, *size


def _column_words(column: Column) -> str:
    charset = f" in {column.charset}" if column.charset else ""
    return f"`{column.name}` {column.mysql_type}{charset}{'' if column.nullable else ' NOT NULL'}"


def created(action: CreateTable, schema_charset: str, dialect: Dialect) -> TableDefinition:
    """Returns the schema of a new table. Raises NotParsed if it can't be determined exactly."""
    charset = action.charset or schema_charset
    columns = [make_column(column, charset, dialect) for column in action.columns]
    primary, indexes = _added((), [], (_whole(index, columns) for index in action.indexes))
    if action.versioned:
        ends = tuple(column.name for column in action.columns if column.row_time == "END")
        if not ends:
            columns += row_times(dialect)
        named = {name.lower() for name in primary}
        primary += tuple(end for end in ends or ("row_end",) if primary and end.lower() not in named)  # for old rows
    return _finish(columns, primary, in_order(indexes, columns), charset)


def _added(
    primary: tuple[str, ...], indexes: Sequence[Index], new: Iterable[Index]
) -> tuple[tuple[str, ...], list[Index]]:
    """Returns the primary key's columns and the other indexes after new ones were added, each with the name that the
    server gives it: that of its first column, with a number if an earlier index has that."""
    found = list(indexes)
    for index in new:
        if index.name == PRIMARY:
            primary = tuple(name for name, _ in index.parts)
            continue
        taken = {one.name.lower() for one in found} | {PRIMARY.lower()}
        name = base = index.name or index.parts[0][0] or "functional_index"
        number = 2
        while not index.name and name.lower() in taken:
            name, number = f"{base}_{number}", number + 1
        found.append(replace(index, name=name))
    return primary, found


def row_times(dialect: Dialect) -> list[Column]:
    """Returns the two hidden columns that MariaDB adds to a table WITH SYSTEM VERSIONING."""
    stamp = ColumnType("timestamp", 6)
    return [
        make_column(ColumnDef(name, stamp, False, generated=True, invisible=True), "", dialect)
        for name in ("row_start", "row_end")
    ]


def is_row_time(column: Column) -> bool:
    """Returns whether it is a ROW START or ROW END: other generated columns of MariaDB can't be NOT NULL."""
    return column.generated and not column.nullable and column.mysql_type == "timestamp(6)"


def has_row_times(columns: Sequence[Column]) -> bool:
    """Returns whether the table ends in the columns of row_times()."""
    return [c.name for c in columns[-2:] if c.invisible and c.generated] == ["row_start", "row_end"]


def _finish(columns: list[Column], primary: Sequence[str], indexes: Iterable[Index], charset: str) -> TableDefinition:
    numbers = {column.name.lower(): i for i, column in enumerate(columns)}
    if len(numbers) != len(columns):
        raise NotParsed("two columns have one name")
    if not columns:
        raise NotParsed("no column is left")
    try:
        keys = tuple(numbers[name.lower()] for name in primary)
    except KeyError as error:
        raise NotParsed(f"the primary key's column {error} is not there") from None
    for i in keys:
        columns[i] = replace(columns[i], nullable=False)
    return TableDefinition(tuple(columns), keys, charset, tuple(indexes))


def _whole(index: Index, columns: Sequence[Column]) -> Index:
    """Returns the index without prefixes that are as long as their columns. Raises NotParsed for a period, whose
    columns are known only within CREATE TABLE."""
    if any(prefix == OVERLAPS for _, prefix in index.parts):
        raise NotParsed("a key without overlaps is added")
    if not any(prefix for _, prefix in index.parts):
        return index
    lengths = {column.name.lower(): column.length for column in columns if column.length}
    parts = ((name, 0 if prefix >= lengths.get(name.lower(), prefix + 1) else prefix) for name, prefix in index.parts)
    return replace(index, parts=tuple(parts))


def altered(definition: TableDefinition, action: AlterTable, schema_charset: str, dialect: Dialect) -> TableDefinition:
    """Returns the schema after an ALTER TABLE. Raises NotParsed for what does not fit the known table schema."""
    return _Change(definition, action, schema_charset, dialect).run()


class _Change:
    """Applies an ALTER TABLE in the servers' own order of steps (mysql_prepare_alter_table): old columns keep their
    order while they are dropped, changed and renamed by their old names; then new and moved ones get their positions in
    the order of the statement."""

    def __init__(self, definition: TableDefinition, action: AlterTable, schema_charset: str, dialect: Dialect) -> None:
        self._old, self._dialect = definition, dialect
        self._specs = list(action.specs)
        self._columns: list[Column] = []
        self._charset, self._convert = definition.charset, ""
        self._primary = [definition.columns[i].name for i in definition.primary]
        self._indexes = list(definition.indexes)
        self._nullable: set[str] = set()
        """The names of those that had a nullable column."""
        for spec in self._specs:
            if isinstance(spec, TableCharset):
                self._charset = spec.charset or schema_charset
                if not self._charset:
                    raise NotParsed("the default character set of the schema is not known")
                if spec.converts:
                    self._convert = self._charset
        defaults = [spec.charset for spec in self._specs if isinstance(spec, TableCharset)]
        if self._convert and len(set(defaults)) > 1:
            raise NotParsed("a conversion to one character set with another as the default")
        if self._convert == "binary":
            raise NotParsed("CONVERT TO CHARACTER SET binary")

    def run(self) -> TableDefinition:
        by_old = self._by_old_name()
        names: dict[str, str] = {}
        hidden = has_row_times(self._old.columns)
        others = [spec for spec in self._specs if not isinstance(spec, AlterColumn | Versioning | TableCharset)]
        if hidden and (others or self._convert):
            raise NotParsed("a change of a table with system versioning")
        for column in self._old.columns:
            kept = self._carry(column, by_old.pop(column.name.lower(), []))
            if kept is not None:
                names[column.name.lower()] = kept
        for name, specs in by_old.items():
            if not all(getattr(spec, "if_exists", False) for spec in specs):
                raise NotParsed(f"column `{name}` is not known")
        for spec in self._specs:
            if isinstance(spec, AddColumn):
                self._add(spec)
            elif isinstance(spec, ChangeColumn) and spec.after is not None and spec.old.lower() in names:
                moved = next(c for c in self._columns if c.name.lower() == spec.column.name.lower())
                self._columns.remove(moved)
                self._insert(moved, spec.after)
        self._primary = [self._key_part(name.lower(), names) for name in self._primary]
        self._primary = [name for name in self._primary if name]
        self._drop_indexes(names)
        self._add_indexes()
        for spec in self._specs:
            if isinstance(spec, Versioning):
                self._version(spec, hidden)
        return _finish(self._columns, self._primary, self._indexes, self._charset)

    def _by_old_name(self) -> dict[str, list[object]]:
        """Returns the parts about existing columns, by the old name in lower case."""
        found: dict[str, list[object]] = {}
        for spec in self._specs:
            if isinstance(spec, ChangeColumn | RenameColumn):
                found.setdefault(spec.old.lower(), []).append(spec)
            elif isinstance(spec, DropColumn | AlterColumn):
                found.setdefault(spec.name.lower(), []).append(spec)
        # A column that this ALTER itself adds may be altered too; only its default changes.
        new = {spec.column.name.lower() for spec in self._specs if isinstance(spec, AddColumn | ChangeColumn)}
        old = {column.name.lower() for column in self._old.columns}
        for name in [name for name in found if name in new - old]:
            if all(isinstance(spec, AlterColumn) for spec in found[name]):
                raise NotParsed(f"`{name}` is made and altered in one statement")
        return found

    def _carry(self, column: Column, specs: list[object]) -> str | None:
        """Carries an old column over; returns its new name, None if it is dropped."""
        name = column.name
        changed: ChangeColumn | None = None
        if sum(isinstance(spec, DropColumn | ChangeColumn | RenameColumn) for spec in specs) > 1:
            raise NotParsed(f"`{name}` is dropped or changed twice in one statement")
        if self._convert:
            column = converted(column, self._convert, self._dialect)
        for spec in specs:
            if isinstance(spec, DropColumn):
                return None
            if isinstance(spec, ChangeColumn):
                changed, name = spec, spec.column.name
            elif isinstance(spec, RenameColumn):
                name = spec.new
                column = replace(column, name=name)
            elif isinstance(spec, AlterColumn):
                column = _alter(column, spec)
        if changed is not None and self._convert and changed.column.type.kind.endswith(("text", "blob")):
            raise NotParsed(f"`{name}` is changed in a statement that converts the table's character set")
        self._columns.append(column if changed is None else self._made(changed.column))
        return name

    def _made(self, column: ColumnDef) -> Column:
        if self._convert and column.type.kind == "json" and self._dialect.mariadb:
            raise NotParsed(f"`{column.name}` is made JSON in a statement that converts the table's character set")
        if self._convert and column.type.charset not in ("", "binary"):
            column = replace(column, type=replace(column.type, charset=self._convert))
        return make_column(column, self._charset, self._dialect)

    def _add(self, spec: AddColumn) -> None:
        name = spec.column.name.lower()
        if spec.if_not_exists and any(column.name.lower() == name for column in (*self._old.columns, *self._columns)):
            return
        self._insert(self._made(spec.column), spec.after)

    def _insert(self, column: Column, after: str | None) -> None:
        if after is None:
            self._columns.append(column)
        elif not after:
            self._columns.insert(0, column)
        else:
            indexes = [i for i, there in enumerate(self._columns) if there.name.lower() == after.lower()]
            if not indexes:
                raise NotParsed(f"column `{after}` is not known")
            self._columns.insert(indexes[0] + 1, column)

    def _key_part(self, old: str, names: dict[str, str]) -> str:
        """Returns the column for a part of the primary key: the first that was it, or that has its name and is new. So
        a column that is dropped and added again stays in the key."""
        was = {new.lower(): name for name, new in names.items()}
        found = (c.name for c in self._columns if was.get(c.name.lower(), c.name.lower()) == old)
        return next(found, "")

    def _version(self, spec: Versioning, hidden: bool) -> None:
        if spec.add:
            if any(map(is_row_time, self._columns)):
                raise NotParsed("versioning with columns of its own")
            self._columns += row_times(self._dialect)
            if self._primary:
                self._primary.append("row_end")
        elif hidden:
            del self._columns[-2:]
            self._primary = [name for name in self._primary if name != "row_end"]
        elif self._primary and any(map(is_row_time, self._columns)):
            raise NotParsed("the end of versioning with columns of its own")

    def _drop_indexes(self, names: dict[str, str]) -> None:
        """Leaves the remaining indexes, under the present names of their columns. The servers drop before they add."""
        dropped = {spec.name.lower() for spec in self._specs if isinstance(spec, DropIndex)}
        dropped |= {spec.index.name.lower() for spec in self._specs if isinstance(spec, AddIndex) and spec.or_replace}
        renamed = {spec.old.lower(): spec.new for spec in self._specs if isinstance(spec, RenameIndex)}
        if PRIMARY.lower() in dropped:
            self._primary = []
        kept = []
        for index in self._indexes:
            if index.name.lower() in dropped:
                continue
            moved = [(self._key_part(name.lower(), names) if name else "", n, not name) for name, n in index.parts]
            parts = tuple((name, prefix) for name, prefix, expression in moved if name or expression)
            if parts:
                kept.append(Index(renamed.get(index.name.lower(), index.name), index.unique, parts))
                if _rank(index, self._old.columns)[1]:
                    self._nullable.add(kept[-1].name)
        self._indexes = kept

    def _add_indexes(self) -> None:
        there = {index.name.lower() for index in self._indexes} | ({PRIMARY.lower()} if self._primary else set())
        new: list[Index] = []
        for spec in self._specs:
            if isinstance(spec, AddIndex) and not (spec.if_not_exists and spec.index.name.lower() in there):
                new.append(spec.index)
            elif isinstance(spec, AddColumn | ChangeColumn):
                new += indexes_of(spec.column)
        primary, indexes = _added(tuple(self._primary), self._indexes, new)
        indexes = [_whole(index, self._columns) for index in indexes]
        self._primary, self._indexes = list(primary), indexes
        only_indexes = all(isinstance(spec, DropIndex | AddIndex) for spec in self._specs)
        if only_indexes and not self._dialect.mariadb and set(indexes) == set(self._old.indexes):
            self._indexes = list(self._old.indexes)  # MySQL keeps what is dropped and added again unchanged
        elif new or not self._dialect.mariadb:
            self._indexes = list(in_order(indexes, self._columns))
        else:  # observed: MariaDB then keeps the order of prefixes and of formerly nullable columns
            self._indexes.sort(
                key=lambda index: (not index.unique, index.name in self._nullable or _rank(index, self._columns)[1])
            )


def _alter(column: Column, spec: AlterColumn) -> Column:
    if spec.invisible is not None:
        return replace(column, invisible=spec.invisible)
    return replace(column, default=None if spec.drop_default else spec.default)


def converted(column: Column, charset: str, dialect: Dialect) -> Column:
    """Returns a column after CONVERT TO CHARACTER SET: a text grows if its characters would need more bytes."""
    if not column.charset or column.charset == "binary":
        return column
    made = parse_type(column.mysql_type, dialect)
    if column.labels and column.charset != charset:
        # MySQL sometimes keeps the members' bytes, and then they may be other characters.
        ascii_sets = not {column.charset, charset} & {"ucs2", "utf16", "utf16le", "utf32"}
        same = {column.charset, charset} <= {"utf8mb3", "utf8mb4"}
        if not same and not (ascii_sets and all(label.isascii() for label in column.labels)):
            raise NotParsed(f"the members of `{column.name}` go into another character set")
    if made.kind.endswith("text"):
        size = TEXT_BYTES[made.kind.removesuffix("text")] // WIDTHS[column.charset] * WIDTHS[charset]
        made = replace(made, kind=by_bytes("text", size))
    definition = ColumnDef(
        column.name,
        replace(made, charset=charset),
        column.nullable,
        column.default,
        column.comment,
        column.auto_increment,
        column.generated,
        column.invisible,
        virtual=column.virtual,
    )
    return make_column(definition, charset, dialect)
