"""What a QUERY event is about: kind, category, the tables it names, and its effect on their schemas."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.model import DdlKind
from headrace.mysql.events.query_event import QueryEvent
from headrace.mysql.schema.ddl.actions import (
    Action,
    AlterTable,
    ConvertPartition,
    CreateTable,
    DatabaseAction,
    DropTables,
    RenameTables,
    RenameTo,
    StatementInfo,
    TableName,
    Truncate,
)
from headrace.mysql.schema.ddl.alter import alter_table
from headrace.mysql.schema.ddl.create import create_table
from headrace.mysql.schema.ddl.cursor import Cursor
from headrace.mysql.schema.ddl.dml import named_by_dml
from headrace.mysql.schema.ddl.objects import (
    alter_database,
    create_database,
    create_sequence,
    drop,
    drop_database,
    index,
    rename,
    truncate,
)
from headrace.mysql.sql.dialect import Dialect, dialect_of
from headrace.mysql.sql.tokens import NotParsed, Token, tokenize
from headrace.mysql.values.charsets import NO_CHARACTER, UnknownType, charset_of, replaced

LONG = 64 << 10
"""Bytes of a statement that would block other tasks: up to a second for two million characters."""
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
_ACCOUNT = r"://[^/\s]*@"
"""`scheme://user:x@host`."""
_CREDENTIALS = re.compile(rf"(?:passw(?:or)?d|pwd)\s*[\"'=]|{_ACCOUNT}", re.IGNORECASE)
"""In an option's value: `password "x"` as in SPIDER, `PWD=x` as in ODBC."""
_SERVER = re.compile(r"[\w$.-]+(?:/[\w$.-]+)?")
"""A CONNECTION that names a server, and a table there: its password is in CREATE SERVER."""
_ACCOUNTS = frozenset({"USER", "ROLE"})
_HARMLESS = frozenset(
    {
        "VIEW", "PROCEDURE", "FUNCTION", "TRIGGER", "EVENT", "SERVER", "TABLESPACE", "LOGFILE", "UNDO", "RESOURCE",
        "INSTANCE", "PACKAGE", "LIBRARY", "PREPARE", "REFERENCE", "SONAME", "CATALOG",
        "MASKING",
    }
)  # fmt: skip
"""Objects whose DDL changes no table's schema."""
_BEFORE_OBJECT = (
    "AGGREGATE", "ONLINE", "OFFLINE", "IGNORE", "UNIQUE", "FULLTEXT", "SPATIAL", "JSON", "RELATIONAL", "DUALITY",
    "MATERIALIZED", "EXTERNAL", "VECTOR", "LOCAL", "BODY",
)  # fmt: skip
_READERS: dict[tuple[str, str], tuple[DdlKind, Callable[[Cursor], Action]]] = {
    ("CREATE", "TABLE"): (DdlKind.CREATE, create_table),
    ("ALTER", "TABLE"): (DdlKind.ALTER, alter_table),
    ("DROP", "TABLE"): (DdlKind.ERASE, drop),
    ("RENAME", "TABLE"): (DdlKind.RENAME, rename),
    ("TRUNCATE", "TABLE"): (DdlKind.TRUNCATE, truncate),
    ("CREATE", "INDEX"): (DdlKind.CREATE_INDEX, index),
    ("DROP", "INDEX"): (DdlKind.DROP_INDEX, index),
    ("CREATE", "SEQUENCE"): (DdlKind.QUERY, create_sequence),
    ("DROP", "SEQUENCE"): (DdlKind.QUERY, drop),
    ("CREATE", "DATABASE"): (DdlKind.QUERY, create_database),
    ("ALTER", "DATABASE"): (DdlKind.QUERY, alter_database),
    ("DROP", "DATABASE"): (DdlKind.QUERY, drop_database),
}
"""Canal's word for each statement that may change table schemas, and its parser."""


def classify(query: QueryEvent, *, mariadb: bool, version: str) -> StatementInfo:
    """Returns what the statement is. Never raises: a statement that is not understood has a `problem`, and `tables`
    None if it may be about any table.

    `version` is the server's version as @@version prints it; executable comments and defaults depend on it."""
    if query.text in _CONTROL:
        return StatementInfo(DdlKind.QUERY, "other", (), query.schema)
    dialect = dialect_of(
        version,
        mariadb=mariadb,
        sql_mode=query.sql_mode,
        server_charset=_charset(query.server_collation),
        client_charset=_charset(query.client_collation),
    )
    try:
        sql = decode(query)
        return _classify(sql, query.schema, dialect)
    except (NotParsed, RecursionError) as error:
        secret = _may_hold_a_secret(query.text.decode("latin-1"))
        return StatementInfo(DdlKind.QUERY, "ddl", None, query.schema, problem=str(error), secret=secret)


def _may_hold_a_secret(sql: str) -> bool:
    """Checks a text that is not read as tokens."""
    upper = sql.upper()
    words = ("PASSW", "PWD", "IDENTIFIED", "CONNECTION", "OPTION_LIST")
    return any(word in upper for word in words) or re.search(_ACCOUNT, sql.replace("\\", "")) is not None


def _options_hold_a_secret(sql: str, dialect: Dialect) -> bool:
    """Returns whether a statement about a table, or with options of one, may contain the password of a table elsewhere:
    FEDERATED, CONNECT, SPIDER, or an unknown engine."""
    try:
        tokens = tokenize(sql, dialect)
    except NotParsed:
        return _may_hold_a_secret(sql)
    # Comments are published too, with the escapes in them.
    return _hold_a_secret(tokens) or _CREDENTIALS.search(sql.replace("\\", "")) is not None


def _hold_a_secret(tokens: Sequence[Token]) -> bool:
    """Returns whether a string value may be a secret."""
    spider = any(token.value.upper() == "SPIDER" for token in tokens)
    for i, token in enumerate(tokens):
        if token.kind in ("string", "bits") and _CREDENTIALS.search(token.value):
            return True
        if token.kind not in ("word", "name"):
            continue
        option, rest = token.value.upper(), tokens[i + 1 : i + 3]
        given = len(rest) == 2 and (rest[0].kind, rest[0].value) == ("op", "=")
        value = rest[-1] if given else rest[0] if rest else None
        named = "PASSW" in option or "PWD" in option
        if named and given:  # such a value may be unquoted
            return True
        if value is None or value.kind not in ("string", "bits"):
            continue
        if named or option == "OPTION_LIST" or (spider and option == "COMMENT"):
            return True
        if option == "CONNECTION" and not _SERVER.fullmatch(value.value):
            return True
    return False


def decode(query: QueryEvent) -> str:
    """Returns the statement's text by the session's character set, as rows are decoded, with NO_CHARACTER for bytes
    that are no character of it."""
    charset = _charset(query.client_collation)
    return replaced(query.text, "utf8mb4" if charset in ("", "binary") else charset, NO_CHARACTER)[0]


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
    if dialect.mariadb and c.takes("SET", "STATEMENT"):  # variables for one statement, which follows
        while not c.takes("FOR"):
            if c.done:
                raise NotParsed("SET STATEMENT without FOR")
            c.i += 1
    token = c.peek()
    other = StatementInfo(DdlKind.QUERY, "other", (), schema)
    if token.kind == "end":
        return other  # only comments
    word = token.upper
    if word in ("GRANT", "REVOKE") or (word == "SET" and c.peek(1).upper in ("PASSWORD", "ROLE", "DEFAULT")):
        return replace(other, category="dcl", secret=_may_hold_a_secret(sql))
    if word in _OTHER:
        return other
    if word in _DML:
        return replace(other, category="dml", tables=named_by_dml(c))
    if word == "IMPORT" or word not in ("CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE"):
        problem = f"'{token.value[:40]}' begins no known statement"
        return StatementInfo(DdlKind.QUERY, "ddl", None, schema, problem=problem, secret=_may_hold_a_secret(sql))
    c.i += 1
    thing, temporary = _object(c)
    # the hash of a password is one too
    secret = word in ("CREATE", "ALTER") and thing in ("USER", "SERVER")
    secret = secret or (thing not in _HARMLESS and _options_hold_a_secret(sql, dialect))
    if thing in _ACCOUNTS:
        return replace(other, category="dcl", secret=secret)
    ddl = replace(other, category="ddl", alters=word == "ALTER", secret=secret)
    retyped = any(token.upper == "AS" for token in c.tokens)
    if thing in _HARMLESS or (thing == "SEQUENCE" and word == "ALTER" and not retyped):
        return replace(ddl, tables=_one_table(c), view=True) if thing == "VIEW" else replace(ddl, tables=())
    kind = _READERS[word, thing][0] if (word, thing) in _READERS else DdlKind.QUERY
    return _ddl(c, sql, replace(ddl, kind=kind, temporary=temporary), (word, thing))


def _object(c: Cursor) -> tuple[str, bool]:
    """Returns the word for what is created, altered or dropped, and whether TEMPORARY is before it."""
    if c.tokens[c.i - 1].upper == "TRUNCATE":
        c.takes("TABLE")
        return "TABLE", False
    temporary = False
    while True:
        if c.takes("TEMPORARY"):
            temporary = True
        elif c.takes("DEFINER"):
            _definer(c)
        elif c.takes("ALGORITHM"):
            c.expect("=")
            c.name()
        elif c.takes("SQL", "SECURITY"):
            c.name()
        elif not c.takes("OR", "REPLACE") and not c.takes_any(*_BEFORE_OBJECT):
            break
    word = c.peek().upper
    c.i += 1
    return {"TABLES": "TABLE", "SCHEMA": "DATABASE"}.get(word, word), temporary


def _definer(c: Cursor) -> None:
    c.expect("=")
    if c.takes_any("CURRENT_USER", "CURRENT_ROLE"):
        if c.sees("("):
            c.parens()
        return
    c.i += 1  # a name or a string, which may be empty
    if c.peek().kind == "variable":
        c.i += 2 if c.peek().value == "@" else 1


def _one_table(c: Cursor) -> tuple[TableName, ...] | None:
    try:
        c.takes("IF", "NOT", "EXISTS")
        c.takes("IF", "EXISTS")
        return (c.table(),)
    except NotParsed:
        return None


def _ddl(c: Cursor, sql: str, base: StatementInfo, what: tuple[str, str]) -> StatementInfo:
    """Reads a statement about tables, indexes or schemas completely; if that fails, only what it is about. `c` is after
    the word for what it is about, and may end early."""
    if base.temporary:
        return replace(base, tables=_one_table(c))
    try:
        if what not in _READERS:
            raise NotParsed(f"{' '.join(what)} is not known")
        whole = Cursor(tokenize(sql, c.dialect), c.dialect, c.schema)
        whole.i = c.i
        action = _READERS[what][1](whole)
    except (NotParsed, RecursionError) as error:
        return _doubtful(c, sql, replace(base, tables=None, problem=str(error)), what)
    if isinstance(action, DatabaseAction):
        return replace(base, action=action, schema=action.schema)
    tables = _tables_of(action)
    if what == ("ALTER", "TABLE") and isinstance(action, AlterTable):
        base = replace(base, kind=action.kind)
    return replace(base, action=action, tables=tables, schema=tables[0][0])


def _doubtful(c: Cursor, sql: str, base: StatementInfo, what: tuple[str, str]) -> StatementInfo:
    """Returns what a statement that was not understood is about, without missing anything."""
    verb, thing = what
    about_one = thing in ("TABLE", "SEQUENCE") and verb in ("CREATE", "ALTER", "TRUNCATE")
    names = _one_table(c) if about_one else None
    if not names:
        return base
    more = verb == "ALTER" and any(word in sql.upper() for word in ("RENAME", "CONVERT", "EXCHANGE"))
    return replace(base, tables=None if more else names, schema=names[0][0])


def _tables_of(action: Action) -> tuple[TableName, ...]:
    """Returns the tables that a statement names, first the one it is about."""
    if isinstance(action, DropTables):
        return action.names
    if isinstance(action, RenameTables):
        return tuple(name for pair in action.pairs for name in pair)
    if isinstance(action, CreateTable):
        return (action.name, action.like) if action.like else (action.name,)
    if isinstance(action, AlterTable):
        targets = [spec.name for spec in action.specs if isinstance(spec, RenameTo | ConvertPartition)]
        return (action.name, *targets, *action.others)
    assert isinstance(action, Truncate)
    return (action.name,)
