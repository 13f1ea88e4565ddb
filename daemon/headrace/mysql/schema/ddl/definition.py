"""What CREATE and ALTER TABLE make of a table's columns and primary key, as the servers do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.model import Column
from headrace.mysql.schema.ddl.actions import (
    AddColumn,
    AddPrimary,
    AlterColumn,
    AlterTable,
    ChangeColumn,
    ColumnDef,
    ColumnType,
    CreateTable,
    DropColumn,
    DropPrimary,
    RenameColumn,
    TableCharset,
    Versioning,
)
from headrace.mysql.schema.ddl.types import TEXT_BYTES, by_bytes, make_column, parse_type
from headrace.mysql.sql.dialect import Dialect
from headrace.mysql.sql.tokens import NotParsed
from headrace.mysql.values.charsets import WIDTHS


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """Columns, the indexes of the primary key's in key order, and the table's default character set ("" when it is
    not known)."""

    columns: tuple[Column, ...]
    keys: tuple[int, ...]
    charset: str


def difference(ours: TableDefinition, shown: TableDefinition) -> str:
    """The first thing by which rows of `ours` mean something else than those of `shown`, the server's, in words; ""
    when there is none. Defaults, comments and the width in which a number is shown do not count."""
    if len(ours.columns) != len(shown.columns):
        return f"it has {len(ours.columns)} columns by the schema history and {len(shown.columns)} on the server"
    for i, (mine, theirs) in enumerate(zip(ours.columns, shown.columns, strict=True), 1):
        if _meaning(mine) != _meaning(theirs):
            return f"column {i} is {_in_words(mine)} by the schema history and {_in_words(theirs)} on the server"
    if ours.keys != shown.keys:
        keys = [" and ".join(one.columns[i].name for i in one.keys) or "nothing" for one in (ours, shown)]
        return f"its key is {keys[0]} by the schema history and {keys[1]} on the server"
    return ""


def _meaning(column: Column) -> tuple[object, ...]:
    size = column.length, column.scale, column.nullable
    return column.name, column.kind, column.unsigned, column.charset, column.labels, *size


def _in_words(column: Column) -> str:
    charset = f" in {column.charset}" if column.charset else ""
    return f"`{column.name}` {column.mysql_type}{charset}{'' if column.nullable else ' NOT NULL'}"


def created(action: CreateTable, schema_charset: str, dialect: Dialect) -> TableDefinition:
    """The schema of a new table. Raises NotParsed when it can't be told exactly."""
    charset = action.charset or schema_charset
    columns = [make_column(column, charset, dialect) for column in action.columns]
    primary = action.primary
    if action.versioned:
        ends = tuple(column.name for column in action.columns if column.row_time == "END")
        if not ends:
            columns += row_times(dialect)
        primary += (ends or ("row_end",)) if primary else ()  # old rows need a key of their own
    return _finish(columns, primary, charset)


def row_times(dialect: Dialect) -> list[Column]:
    """The two columns that MariaDB adds, unseen, to a table WITH SYSTEM VERSIONING."""
    stamp = ColumnType("timestamp", 6)
    return [
        make_column(ColumnDef(name, stamp, False, generated=True, invisible=True), "", dialect)
        for name in ("row_start", "row_end")
    ]


def has_row_times(columns: Sequence[Column]) -> bool:
    """Whether the table ends in the columns that row_times() gives."""
    return [c.name for c in columns[-2:] if c.invisible and c.generated] == ["row_start", "row_end"]


def _finish(columns: list[Column], primary: Sequence[str], charset: str) -> TableDefinition:
    indexes = {column.name.lower(): i for i, column in enumerate(columns)}
    if len(indexes) != len(columns):
        raise NotParsed("two columns have one name")
    if not columns:
        raise NotParsed("no column is left")
    try:
        keys = tuple(indexes[name.lower()] for name in primary)
    except KeyError as error:
        raise NotParsed(f"the primary key's column {error} is not there") from None
    for i in keys:
        columns[i] = replace(columns[i], nullable=False)
    return TableDefinition(tuple(columns), keys, charset)


def altered(definition: TableDefinition, action: AlterTable, schema_charset: str, dialect: Dialect) -> TableDefinition:
    """The schema after an ALTER TABLE. Raises NotParsed for what does not fit the table schema that is known."""
    return _Change(definition, action, schema_charset, dialect).run()


class _Change:
    """The order of steps is the servers' own (mysql_prepare_alter_table): old columns keep their order while they are
    dropped, changed and renamed by their old names, and then new and moved ones take their places in the order of the
    statement."""

    def __init__(self, definition: TableDefinition, action: AlterTable, schema_charset: str, dialect: Dialect) -> None:
        self._old, self._dialect = definition, dialect
        self._specs = list(action.specs)
        self._columns: list[Column] = []
        self._charset, self._convert = definition.charset, ""
        self._primary = [definition.columns[i].name for i in definition.keys]
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
        self._keys()
        for spec in self._specs:
            if isinstance(spec, Versioning):
                self._version(spec, hidden)
        return _finish(self._columns, self._primary, self._charset)

    def _by_old_name(self) -> dict[str, list[object]]:
        """The parts about columns that are there, by the old name in lower case."""
        found: dict[str, list[object]] = {}
        for spec in self._specs:
            if isinstance(spec, ChangeColumn | RenameColumn):
                found.setdefault(spec.old.lower(), []).append(spec)
            elif isinstance(spec, DropColumn | AlterColumn):
                found.setdefault(spec.name.lower(), []).append(spec)
        # A column that this ALTER itself makes may be altered too; its default is all that changes.
        new = {spec.column.name.lower() for spec in self._specs if isinstance(spec, AddColumn | ChangeColumn)}
        old = {column.name.lower() for column in self._old.columns}
        for name in [name for name in found if name in new - old]:
            if all(isinstance(spec, AlterColumn) for spec in found[name]):
                raise NotParsed(f"`{name}` is made and altered in one statement")
        return found

    def _carry(self, column: Column, specs: list[object]) -> str | None:
        """Takes an old column over; its new name, None when it is dropped."""
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
        """Which column stands for a part of the primary key: the first that was it, or that has its name and is new.
        So a column that is dropped and made again stays in the key."""
        was = {new.lower(): name for name, new in names.items()}
        found = (c.name for c in self._columns if was.get(c.name.lower(), c.name.lower()) == old)
        return next(found, "")

    def _version(self, spec: Versioning, hidden: bool) -> None:
        if spec.add:
            if any(c.generated and c.mysql_type == "timestamp(6)" for c in self._columns):
                raise NotParsed("versioning with columns of its own")
            self._columns += row_times(self._dialect)
            if self._primary:
                self._primary.append("row_end")
        elif hidden:
            del self._columns[-2:]
            self._primary = [name for name in self._primary if name != "row_end"]
        elif self._primary and any(c.generated and c.mysql_type == "timestamp(6)" for c in self._columns):
            raise NotParsed("the end of versioning with columns of its own")

    def _keys(self) -> None:
        """The primary key after drops, which the servers make before they add."""
        if any(isinstance(spec, DropPrimary) for spec in self._specs):
            self._primary = []
        for spec in self._specs:
            if isinstance(spec, AddPrimary) and not (spec.if_not_exists and self._primary):
                self._primary = list(spec.columns)
            elif isinstance(spec, AddColumn | ChangeColumn) and spec.column.primary:
                self._primary = [spec.column.name]


def _alter(column: Column, spec: AlterColumn) -> Column:
    if spec.invisible is not None:
        return replace(column, invisible=spec.invisible)
    return replace(column, default=None if spec.drop_default else spec.default)


def converted(column: Column, charset: str, dialect: Dialect) -> Column:
    """A column after CONVERT TO CHARACTER SET: a text grows when its characters would need more bytes."""
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
    )
    return make_column(definition, charset, dialect)
