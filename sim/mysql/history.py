"""What was committed: the truth that a reader of the binlog is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from sim.mysql.events import Part
from sim.mysql.schema import Definition, Key, Row

Xid = tuple[int, bytes, bytes]
"""Format, global part, branch part."""


class Kind(StrEnum):
    """What a transaction does."""

    ROWS = "rows"
    DDL = "ddl"
    XA_PREPARE = "xa prepare"
    """Its rows take effect with the XA_COMMIT of the same xid."""
    XA_COMMIT = "xa commit"
    XA_ROLLBACK = "xa rollback"


@dataclass(frozen=True, slots=True)
class Change:
    """The change of a row: `before` is None for an INSERT, `after` for a DELETE. Keys are those of Table.rows."""

    definition: Definition
    before: Row | None
    after: Row | None
    key_before: Key | None
    key_after: Key | None

    @property
    def schema(self) -> str:
        return self.definition.schema

    @property
    def table(self) -> str:
        return self.definition.name

    @property
    def operation(self) -> str:
        """Returns INSERT, UPDATE or DELETE."""
        return "INSERT" if self.before is None else "DELETE" if self.after is None else "UPDATE"

    def values(self, row: Row) -> dict[str, object]:
        """Returns the values of `before` or `after` by the names of columns."""
        return {column.name: value for column, value in zip(self.definition.columns, row, strict=True)}


@dataclass(frozen=True, slots=True)
class Committed:
    """One transaction, or statement, as a server has committed it. Times are in microseconds since 1970: on the server
    that first committed it, and on this one. `changes` took effect with it; those of XA_PREPARE are in `prepared`."""

    uuid: str
    number: int
    kind: Kind
    original_us: int
    commit_us: int
    changes: tuple[Change, ...] = ()
    prepared: tuple[Change, ...] = ()
    schema: str = ""
    """The default schema of a statement."""
    sql: str = ""
    xid: Xid | None = None
    file: str = ""
    server_id: int = 0
    """The server that first committed it."""
    offset: int = 0
    """Where it begins in this server's binlog."""
    parts: tuple[Part, ...] = ()
    """The events between its begin and its end; of XA_COMMIT those of the transaction that was prepared."""
    undo: Callable[[], None] | None = None
    """Undoes a statement about tables."""

    @property
    def gtid(self) -> str:
        return f"{self.uuid}:{self.number}"
