"""The stored state of snapshots in a position: the progress of each, so that any daemon can continue from there."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

TableName = tuple[str, str]
"""Schema and name."""


@dataclass(frozen=True, slots=True)
class TableProgress:
    """A table of which some rows were published."""

    schema: str
    table: str
    key: tuple[str, ...] | None = None
    """The key of the last published row, in its reader's form (ports/tables.py), or encrypted
    (snapshot/stored_keys.py); None before the first."""
    rows: int = 0
    """Rows passed: published, or left to the stream, which had changed them meanwhile."""
    order: str = ""
    """What the order of its keys depends on, in the reader's form: `key` has no meaning in another one."""

    @property
    def name(self) -> TableName:
        return self.schema, self.table


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that is running or waiting. Tables are read in the order of their names: those up to `begun` are done,
    except the ones in `open`."""

    id: str
    kind: Literal["initial", "resync"]
    """initial: all captured tables, for a destination that has begun, or has lost its position; resync: an operator's
    request, alongside the stream."""
    tables: str = ""
    """A filter like [filter] include; "" for all captured tables."""
    where: str = ""
    """A condition in SQL; "" for all rows."""
    columns: tuple[str, ...] = ()
    """Names in lower case; none for all columns."""
    paused: bool = False
    begun: TableName = ("", "")
    open: tuple[TableProgress, ...] = ()
    tables_done: int = 0
    rows: int = 0
    """Rows passed in all tables."""
    asked_us: int = 0
    """When it was requested, in microseconds since 1970 UTC."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the stored form: JSON types only."""
        return asdict(self)

    def shown(self) -> dict[str, Any]:
        """Returns the same without the keys of rows, which a mask may hide."""
        return {**self.to_dict(), "open": [{**asdict(one), "key": None} for one in self.open]}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Snapshot:
        """Reads what to_dict() returned. Raises KeyError, TypeError or ValueError if it is invalid."""
        kind = raw["kind"]
        if kind not in ("initial", "resync"):
            raise ValueError(f"a snapshot is of the kind {kind!r}")
        schema, table = raw["begun"]
        return cls(
            id=str(raw["id"]),
            kind=kind,
            tables=str(raw["tables"]),
            where=str(raw["where"]),
            columns=tuple(map(str, raw["columns"])),
            paused=bool(raw["paused"]),
            begun=(str(schema), str(table)),
            open=tuple(
                TableProgress(
                    str(one["schema"]),
                    str(one["table"]),
                    None if one["key"] is None else tuple(map(str, one["key"])),
                    int(one["rows"]),
                    str(one["order"]),
                )
                for one in raw["open"]
            ),
            tables_done=int(raw["tables_done"]),
            rows=int(raw["rows"]),
            asked_us=int(raw["asked_us"]),
        )
