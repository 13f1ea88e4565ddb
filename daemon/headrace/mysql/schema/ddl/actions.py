"""What a statement does, as the parser understood it, in the terms of the schema history."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model import DdlKind

TableName = tuple[str, str]
"""(schema, table) as written; a name without a schema has the session's."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A declared type, synonyms resolved, before the character set of its table is known."""

    kind: str
    """The bare name as information_schema has it; for texts by their declared size class."""
    length: int | None = None
    scale: int | None = None
    unsigned: bool = False
    zerofill: bool = False
    labels: tuple[str | bytes, ...] = ()
    charset: str = ""
    """The declared character set, "" for the table's default."""
    compressed: bool = False
    client_charset: str = ""
    """The character set of the statement that declares the labels."""


OVERLAPS = -1
"""The prefix of a part of an index that is the name of a period."""
PRIMARY = "PRIMARY"
"""The name of every primary key."""


@dataclass(frozen=True, slots=True)
class Index:
    """A key of a table; `name` is "" if the statement has none. `parts` are its columns' names, each with the length of
    its prefix, 0 for the whole column; an expression has the name ""."""

    name: str
    unique: bool
    parts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ColumnDef:
    """One column as a statement declares it. `nullable` is None if it says neither NULL nor NOT NULL."""

    name: str
    type: ColumnType
    nullable: bool | None = None
    default: str | None = None
    comment: str = ""
    auto_increment: bool = False
    generated: bool = False
    invisible: bool = False
    primary: bool = False
    unique: bool = False
    virtual: bool = False
    row_time: str = ""
    """START or END of MariaDB's GENERATED ALWAYS AS ROW START or END."""
    versioned: bool = False
    """MariaDB's WITH SYSTEM VERSIONING of a column, which makes a new table one with system versioning."""


def indexes_of(column: ColumnDef) -> list[Index]:
    """Returns the indexes that a column's own attributes create."""
    asked = [(PRIMARY, column.primary), ("", column.unique)]
    return [Index(name, True, ((column.name, 0),)) for name, wanted in asked if wanted]


@dataclass(frozen=True, slots=True)
class CreateTable:
    """CREATE TABLE. `columns` is empty for LIKE; `charset` is "" if the statement has none."""

    name: TableName
    columns: tuple[ColumnDef, ...] = ()
    indexes: tuple[Index, ...] = ()
    """In the order of the statement."""
    charset: str = ""
    like: TableName | None = None
    if_not_exists: bool = False
    atomic_select: bool = False
    """CREATE ... SELECT as MySQL writes it: rows follow in the same transaction."""
    versioned: bool = False
    """MariaDB's WITH SYSTEM VERSIONING."""


@dataclass(frozen=True, slots=True)
class AddColumn:
    """ADD COLUMN. `after` is None for the end, "" for FIRST, else a column's name."""

    column: ColumnDef
    after: str | None = None
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class ChangeColumn:
    """CHANGE and MODIFY COLUMN. `after` as in AddColumn, None for staying in place."""

    old: str
    column: ColumnDef
    after: str | None = None
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropColumn:
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    old: str
    new: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterColumn:
    """ALTER COLUMN: what is not None is set."""

    name: str
    default: str | None = None
    drop_default: bool = False
    invisible: bool | None = None
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AddIndex:
    index: Index
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True, slots=True)
class DropIndex:
    """DROP INDEX, DROP CONSTRAINT, and DROP PRIMARY KEY; an index of the name may not exist."""

    name: str


@dataclass(frozen=True, slots=True)
class RenameIndex:
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class TableCharset:
    """The table option DEFAULT CHARACTER SET, or CONVERT TO CHARACTER SET; `charset` "" is the schema's default."""

    charset: str
    converts: bool = False


@dataclass(frozen=True, slots=True)
class RenameTo:
    """RENAME TO within ALTER TABLE."""

    name: TableName


@dataclass(frozen=True, slots=True)
class Versioning:
    """MariaDB's ADD and DROP SYSTEM VERSIONING."""

    add: bool


@dataclass(frozen=True, slots=True)
class ConvertPartition:
    """MariaDB's CONVERT PARTITION ... TO TABLE, which makes a table of the same schema, or CONVERT TABLE ... TO
    PARTITION, after which the table is gone."""

    name: TableName
    to_table: bool


AlterSpec = (
    AddColumn
    | ChangeColumn
    | DropColumn
    | RenameColumn
    | AlterColumn
    | AddIndex
    | DropIndex
    | RenameIndex
    | TableCharset
    | RenameTo
    | Versioning
    | ConvertPartition
)


@dataclass(frozen=True, slots=True)
class AlterTable:
    """ALTER TABLE, CREATE INDEX, DROP INDEX. Parts that do not change the table schema are not in `specs`; `others` are
    tables that those name."""

    name: TableName
    specs: tuple[AlterSpec, ...]
    if_exists: bool = False
    others: tuple[TableName, ...] = ()
    kind: DdlKind = DdlKind.ALTER
    """Canal's word for an ALTER TABLE: that of its first part, or RENAME."""
    unlogged: bool = False
    """Whether rows appear or disappear without events: EXCHANGE PARTITION, IMPORT and DISCARD TABLESPACE."""


@dataclass(frozen=True, slots=True)
class DropTables:
    names: tuple[TableName, ...]


@dataclass(frozen=True, slots=True)
class RenameTables:
    """RENAME TABLE: pairs from, to, in order."""

    pairs: tuple[tuple[TableName, TableName], ...]
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class Truncate:
    """TRUNCATE TABLE: the table schema does not change."""

    name: TableName


@dataclass(frozen=True, slots=True)
class CreateDatabase:
    """CREATE DATABASE; `charset` "" is the server's default."""

    schema: str
    charset: str = ""
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class AlterDatabase:
    """ALTER DATABASE; `charset` "" for no change of it."""

    schema: str
    charset: str = ""


@dataclass(frozen=True, slots=True)
class DropDatabase:
    schema: str


DatabaseAction = CreateDatabase | AlterDatabase | DropDatabase
Action = CreateTable | AlterTable | DropTables | RenameTables | Truncate | DatabaseAction


@dataclass(frozen=True, slots=True)
class StatementInfo:
    """The kind of a statement, and what it names."""

    kind: DdlKind
    category: str
    """ddl (tables, schemas, indexes, views, routines), dcl (accounts and rights), dml, or other."""
    tables: tuple[TableName, ...] | None = ()
    """The tables that it names, first the one it is about; None if unknown."""
    schema: str = ""
    """The schema that it is about: its first table's, the database's, else the session's."""
    action: Action | None = None
    """Its effect on table schemas; None if it has none."""
    problem: str = ""
    """Why a statement that may change table schemas was not understood; "" if it was."""
    temporary: bool = False
    """Whether it is about temporary tables: then it changes nothing that is in the binlog's rows."""
    alters: bool = False
    """Whether its first word is ALTER."""
    view: bool = False
    """Whether it is about a view."""
    secret: bool = False
    """Whether it contains a password, or an equivalent: its text is published nowhere."""
