"""What a QUERY event does to the transaction it stands in, told by its first words; DDL is the ddl package's."""

from __future__ import annotations

import re
from enum import Enum, auto


class Statement(Enum):
    """Kinds of QUERY events. OTHER (DDL, account statements) is a group of its own, unless one is open."""

    XA_START = auto()
    XA_END = auto()
    """XA COMMIT or XA ROLLBACK of a prepared transaction."""
    INSIDE = auto()
    """Within a transaction: SAVEPOINT, XA END."""
    COMMIT = auto()
    ROLLBACK = auto()
    DML = auto()
    ATOMIC_DDL = auto()
    OTHER = auto()


_COMMENT = re.compile(rb"(?:\s+|--[ \t][^\n]*\n|#[^\n]*\n|/\*(?!M?!)(?:[^*]|\*(?!/))*\*/|/\*M?!\d*|\*/)+")
_WORDS = re.compile(rb"([A-Za-z]+)(?:\s+([A-Za-z]+))?")
_DML = frozenset({b"INSERT", b"UPDATE", b"DELETE", b"REPLACE", b"LOAD", b"WITH", b"CALL"})


def classify(text: bytes) -> Statement:
    """The kind of a statement; leading comments and executable comments are passed over."""
    start = 0
    comment = _COMMENT.match(text)
    if comment:
        start = comment.end()
    words = _WORDS.match(text, start)
    if not words:
        return Statement.OTHER
    first, second = words[1].upper(), (words[2] or b"").upper()
    if first in _DML:
        return Statement.DML
    if first == b"XA":
        kinds = {b"START": Statement.XA_START, b"BEGIN": Statement.XA_START, b"END": Statement.INSIDE}
        return kinds.get(second, Statement.XA_END)
    if first == b"SAVEPOINT" or (
        first == b"ROLLBACK" and second in (b"TO", b"WORK") and b"TO" in text[:40].upper().split()
    ):
        return Statement.INSIDE
    if first == b"COMMIT":
        return Statement.COMMIT
    if first == b"ROLLBACK":
        return Statement.ROLLBACK
    if first == b"CREATE" and text.rstrip().upper().endswith(b"START TRANSACTION"):
        return Statement.ATOMIC_DDL
    return Statement.OTHER
