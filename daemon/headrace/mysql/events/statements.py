"""The effect of a QUERY event on its transaction, determined by its first words; package ddl handles DDL."""

from __future__ import annotations

from enum import Enum, auto

from headrace.mysql.sql.dialect import Dialect
from headrace.mysql.sql.tokens import NotParsed, Token, first_tokens, tokenize


class Statement(Enum):
    """Kinds of QUERY events. OTHER (DDL, account statements) is a group of its own, unless one is open."""

    XA_START = auto()
    XA_END = auto()
    """XA COMMIT or XA ROLLBACK of a prepared transaction."""
    SAVEPOINT = auto()
    ROLLBACK_TO = auto()
    INSIDE = auto()
    """Within a transaction, without an effect on its rows: RELEASE SAVEPOINT, XA END."""
    COMMIT = auto()
    ROLLBACK = auto()
    DML = auto()
    ATOMIC_DDL = auto()
    OTHER = auto()


_WHOLE = {b"COMMIT": Statement.COMMIT, b"ROLLBACK": Statement.ROLLBACK}
"""As the servers write them at the end of groups."""
_FIRST = {
    **dict.fromkeys(("INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL"), Statement.DML),
    "SAVEPOINT": Statement.SAVEPOINT,
    "RELEASE": Statement.INSIDE,
    "COMMIT": Statement.COMMIT,
}
_XA = {"START": Statement.XA_START, "BEGIN": Statement.XA_START, "END": Statement.INSIDE}


def classify(text: bytes, dialect: Dialect) -> Statement:
    """Returns the kind of a statement."""
    if (whole := _WHOLE.get(text)) is not None:
        return whole
    first, second = (token.upper for token in _tokens(text, dialect, 2))
    if (first, second) == ("SET", "STATEMENT") and dialect.mariadb:  # variables for one statement, which follows
        words = [token.upper for token in _tokens(text, dialect, 60)]
        first = words[words.index("FOR") + 1] if "FOR" in words[:-1] else ""
    if first == "XA":
        return _XA.get(second, Statement.XA_END)
    if first == "ROLLBACK":
        words = [token.upper for token in _tokens(text, dialect, 3)]
        return Statement.ROLLBACK_TO if "TO" in words else Statement.ROLLBACK
    if (
        (first, second) == ("CREATE", "TABLE")
        and not dialect.mariadb
        and text[-100:].rstrip().upper().endswith(b"START TRANSACTION")
    ):
        return _created(text, dialect)
    return _FIRST.get(first, Statement.OTHER)


def savepoint_name(text: bytes, dialect: Dialect) -> str:
    """Returns the name in SAVEPOINT or ROLLBACK TO SAVEPOINT, in the form in which the servers compare names: without
    case. Raises ValueError if there is none."""
    tokens = [token for token in _tokens(text, dialect, 6) if token.kind != "end"]
    if len(tokens) < 2 or tokens[-1].kind not in ("word", "name", "string"):
        raise ValueError("a savepoint without a name")
    return tokens[-1].value.encode("latin-1").decode("utf-8", "surrogateescape").casefold()


def _tokens(text: bytes, dialect: Dialect, count: int) -> list[Token]:
    """Returns the first tokens, missing ones as empty. Keywords are the same in every character set."""
    found = first_tokens(text.decode("latin-1"), dialect, count)
    return found + [Token("end", "", "", -1)] * (count - len(found))


def _created(text: bytes, dialect: Dialect) -> Statement:
    """Handles CREATE TABLE ... START TRANSACTION, which MySQL writes for CREATE TABLE ... SELECT: its rows follow in
    the same group. The words may also be a comment, or a routine's body."""
    try:
        words = [token.upper for token in tokenize(text.decode("latin-1"), dialect)]
    except NotParsed:
        return Statement.OTHER
    return Statement.ATOMIC_DDL if words[-2:] == ["START", "TRANSACTION"] else Statement.OTHER
