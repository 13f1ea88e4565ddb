"""What a QUERY event is about: kind, category, the tables it names, and what it does to their schemas."""

from __future__ import annotations

from dataclasses import replace

from headrace.model import DdlKind
from headrace.mysql.events.query_event import QueryEvent
from headrace.mysql.schema.ddl import actions
from headrace.mysql.schema.ddl.actions import NotParsed, StatementInfo, TableName
from headrace.mysql.schema.ddl.alter import Alter
from headrace.mysql.schema.ddl.create import create_table
from headrace.mysql.schema.ddl.cursor import Cursor
from headrace.mysql.schema.ddl.dialect import CODECS, Dialect, dialect_of
from headrace.mysql.schema.ddl.dml import named_by_dml
from headrace.mysql.schema.ddl.objects import (
    alter_database,
    create_database,
    create_sequence,
    drop,
    index,
    rename,
    truncate,
)
from headrace.mysql.schema.ddl.tokens import tokenize
from headrace.mysql.values.charsets import UnknownType, charset_of

_CONTROL = frozenset({b"BEGIN", b"COMMIT", b"ROLLBACK"})
_DML = frozenset(
    {"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "SELECT", "CALL", "DO", "VALUES", "HANDLER", "("}
)
_OTHER = frozenset(
    {
        "BEGIN", "START", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "XA", "SET", "USE", "FLUSH", "ANALYZE",
        "OPTIMIZE", "REPAIR", "CHECK", "CHECKSUM", "LOCK", "UNLOCK", "CACHE", "KILL", "INSTALL", "UNINSTALL", "PURGE",
        "RESET", "SHUTDOWN", "RESTART", "BACKUP", "CHANGE", "STOP", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "HELP",
        "PREPARE", "DEALLOCATE", "BINLOG", "CLONE", "SIGNAL", "RESIGNAL", "GET", "END",
    }
)  # fmt: skip
_ACCOUNTS = frozenset({"USER", "ROLE"})
_HARMLESS = frozenset(
    {
        "VIEW", "PROCEDURE", "FUNCTION", "TRIGGER", "EVENT", "SERVER", "TABLESPACE", "LOGFILE", "UNDO", "RESOURCE",
        "INSTANCE", "PACKAGE", "LIBRARY", "PREPARE", "REFERENCE", "SONAME", "CATALOG",
    }
)  # fmt: skip
"""Objects whose DDL changes no table's schema."""
_BEFORE_OBJECT: tuple[str, ...] = (
    "AGGREGATE",
    "ONLINE",
    "OFFLINE",
    "IGNORE",
    "UNIQUE",
    "FULLTEXT",
    "SPATIAL",
    "JSON",
    "RELATIONAL",
)
_BEFORE_OBJECT += ("DUALITY", "MATERIALIZED", "EXTERNAL", "VECTOR", "LOCAL", "BODY")


def classify(query: QueryEvent, *, mariadb: bool, version: str) -> StatementInfo:
    """What the statement is. Never raises: what is not understood has a `problem`, and `tables` None when it may be
    about any table.

    `version` is the server's version as @@version prints it; executable comments and defaults depend on it.
    """
    if query.text in _CONTROL:
        return StatementInfo(DdlKind.QUERY, "other", (), query.schema)
    dialect = dialect_of(
        version, mariadb=mariadb, sql_mode=query.sql_mode, server_charset=_charset(query.server_collation)
    )
    try:
        sql = decode(query)
        return _classify(sql, query.schema, dialect)
    except (NotParsed, RecursionError) as error:
        return StatementInfo(DdlKind.QUERY, "ddl", None, query.schema, problem=str(error))


def decode(query: QueryEvent) -> str:
    """The statement's text by the session's character set; bytes that are none become lone surrogates."""
    codec = CODECS.get(_charset(query.client_collation), "utf-8")
    return query.text.decode(codec, "surrogateescape")


def _charset(collation: int) -> str:
    try:
        return charset_of(collation) if collation else ""
    except UnknownType:
        return ""


def _classify(sql: str, schema: str, dialect: Dialect) -> StatementInfo:
    head = tokenize(sql, dialect, 60)
    c = Cursor(head, dialect, schema)
    while c.takes("("):
        pass
    token = c.peek()
    other = StatementInfo(DdlKind.QUERY, "other", (), schema)
    if token.kind == "end":
        return other  # nothing but comments
    word = token.upper
    if word in ("GRANT", "REVOKE") or (word == "SET" and c.peek(1).upper in ("PASSWORD", "ROLE", "DEFAULT")):
        return replace(other, category="dcl")
    if word in _OTHER:
        return other
    if word in _DML:
        return replace(other, category="dml", tables=named_by_dml(c))
    if word == "IMPORT" or word not in ("CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE"):
        return StatementInfo(
            DdlKind.QUERY, "ddl", None, schema, problem=f"'{token.value[:40]}' begins no known statement"
        )
    c.i += 1
    thing, flags = _object(c)
    if thing in _ACCOUNTS:
        return replace(other, category="dcl")
    ddl = replace(other, category="ddl")
    if thing in _HARMLESS or (thing == "SEQUENCE" and word == "ALTER"):
        return replace(ddl, tables=_named(c) if thing == "VIEW" else ())
    return _Ddl(sql, dialect, ddl, word, thing, flags, c).read()


def _object(c: Cursor) -> tuple[str, frozenset[str]]:
    """The word for what is created, altered or dropped, and the flags before it."""
    if c.tokens[c.i - 1].upper == "TRUNCATE" and not c.takes_any("TABLE", "TABLES"):
        return "TABLE", frozenset()
    flags = set()
    while True:
        if c.tokens[c.i - 1].upper == "TABLE":
            return "TABLE", frozenset()
        if c.takes("OR", "REPLACE"):
            flags.add("REPLACE")
        elif c.takes("TEMPORARY"):
            flags.add("TEMPORARY")
        elif c.takes("DEFINER"):
            _definer(c)
        elif c.takes("ALGORITHM"):
            c.expect("=")
            c.name()
        elif c.takes("SQL", "SECURITY"):
            c.name()
        elif not c.takes_any(*_BEFORE_OBJECT):
            break
    word = c.peek().upper
    c.i += 1
    return {"TABLES": "TABLE", "SCHEMA": "DATABASE"}.get(word, word), frozenset(flags)


def _definer(c: Cursor) -> None:
    c.expect("=")
    if c.takes_any("CURRENT_USER", "CURRENT_ROLE"):
        if c.sees("("):
            c.parens()
        return
    c.word_or_string()
    if c.peek().kind == "variable":
        c.i += 1
        if c.tokens[c.i - 1].value == "@":
            c.word_or_string()


def _named(c: Cursor) -> tuple[TableName, ...] | None:
    try:
        c.takes("IF", "NOT", "EXISTS")
        c.takes("IF", "EXISTS")
        return (c.table(),)
    except NotParsed:
        return None


class _Ddl:
    """A statement about tables, indexes or schemas: read as a whole, and when that fails, what it is about."""

    def __init__(
        self, sql: str, dialect: Dialect, base: StatementInfo, verb: str, thing: str, flags: frozenset[str], c: Cursor
    ) -> None:
        self._sql, self._dialect, self._base = sql, dialect, base
        self._verb, self._thing, self._flags, self._head = verb, thing, flags, c

    def read(self) -> StatementInfo:
        what, base = (self._verb, self._thing), self._base
        kind = {
            ("CREATE", "TABLE"): DdlKind.CREATE,
            ("ALTER", "TABLE"): DdlKind.ALTER,
            ("DROP", "TABLE"): DdlKind.ERASE,
            ("RENAME", "TABLE"): DdlKind.RENAME,
            ("TRUNCATE", "TABLE"): DdlKind.TRUNCATE,
            ("CREATE", "INDEX"): DdlKind.CREATE_INDEX,
            ("DROP", "INDEX"): DdlKind.DROP_INDEX,
        }.get(what, DdlKind.QUERY)
        base = replace(base, kind=kind, temporary="TEMPORARY" in self._flags)
        start = self._head.i
        if base.temporary:
            return replace(base, tables=_named(self._head))
        try:
            c = Cursor(tokenize(self._sql, self._dialect), self._dialect, base.schema)
            c.i = start
            return self._read(c, what, base)
        except (NotParsed, RecursionError) as error:
            return replace(base, **self._about(what, start), problem=str(error))  # type: ignore[arg-type]

    def _read(self, c: Cursor, what: tuple[str, str], base: StatementInfo) -> StatementInfo:
        if what == ("CREATE", "TABLE"):
            made = create_table(c, replaces="REPLACE" in self._flags)
            return _about_tables(base, (made.name, made.like) if made.like else (made.name,), action=made)
        if what == ("ALTER", "TABLE"):
            alter = Alter(c)
            action = alter.parse()
            renamed_or_split = actions.RenameTo | actions.PartitionToTable | actions.TableToPartition
            targets = [spec.name for spec in action.specs if isinstance(spec, renamed_or_split)]
            return _about_tables(base, (action.name, *targets, *alter.others), action=action, kind=alter.kind)
        if what == ("DROP", "TABLE") or what == ("DROP", "SEQUENCE"):
            dropped = drop(c)
            return _about_tables(base, dropped.names, action=dropped)
        if what == ("RENAME", "TABLE"):
            renamed = rename(c)
            return _about_tables(base, tuple(name for pair in renamed.pairs for name in pair), action=renamed)
        if what == ("TRUNCATE", "TABLE"):
            emptied = truncate(c)
            return _about_tables(base, (emptied.name,), action=emptied)
        if self._thing == "INDEX":
            indexed = index(c)
            return _about_tables(base, (indexed.name,), action=indexed)
        if what == ("CREATE", "SEQUENCE"):
            sequence = create_sequence(c, replaces="REPLACE" in self._flags)
            return _about_tables(base, (sequence.name,), action=sequence)
        if self._thing == "DATABASE":
            if self._verb == "DROP":
                c.takes("IF", "EXISTS")
                gone = actions.DropDatabase(c.name())
                return replace(base, action=gone, schema=gone.schema, names=(gone.schema,))
            creates = self._verb == "CREATE"
            database = create_database(c, "REPLACE" in self._flags) if creates else alter_database(c)
            return replace(base, action=database, schema=database.schema, names=(database.schema,))
        raise NotParsed(f"{self._verb} {self._thing} is not known")

    def _about(self, what: tuple[str, str], start: int) -> dict[str, object]:
        """What a statement that was not understood is about: nothing that could be missed."""
        about: dict[str, object] = {"tables": None}
        if what[1] != "TABLE" or what[0] not in ("CREATE", "ALTER", "TRUNCATE"):
            return about
        self._head.i = start
        names = _named(self._head)
        if not names:
            return about
        upper = self._sql.upper()
        about["schema"] = names[0][0]
        if what[0] != "ALTER" or not any(word in upper for word in ("RENAME", "CONVERT", "EXCHANGE")):
            about["tables"] = names
        return about


def _about_tables(base: StatementInfo, names: tuple[TableName, ...], **more: object) -> StatementInfo:
    return replace(base, tables=names, schema=names[0][0], **more)  # type: ignore[arg-type]
