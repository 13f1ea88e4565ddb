"""The progress of a snapshot, its rate, and its remaining time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from headrace import runtime
from headrace.ports.tables import TableFacts
from headrace.snapshots import Snapshot, TableName

_SPAN = 15.0
"""Seconds over which the rate is measured."""


class SnapshotRate:
    """The rate of the running snapshot. Numbers of remaining rows are the source's estimates."""

    def __init__(self) -> None:
        self._id = ""
        self._estimates: dict[TableName, int] = {}
        self._seen: deque[tuple[float, int]] = deque()

    def begin(self, snapshot: Snapshot, facts: Sequence[TableFacts]) -> None:
        """Starts to measure a snapshot; `facts` are of all its tables."""
        self._estimates = {(one.schema, one.table): one.rows for one in facts}
        if snapshot.id != self._id:
            self._id = snapshot.id
            self._seen.clear()

    def facts(self, snapshots: Sequence[Snapshot], waits: str = "") -> dict[str, Any] | None:
        """Returns the facts of the first snapshot for people, JSON types only; None without one. `waits`: why reading
        waits."""
        if not snapshots:
            return None
        snapshot, now = snapshots[0], runtime.monotonic()
        if snapshot.id != self._id:
            self._seen.clear()
        self._seen.append((now, snapshot.rows))
        while len(self._seen) > 2 and now - self._seen[0][0] > _SPAN:
            self._seen.popleft()
        (since, before), open_tables = self._seen[0], {one.name: one.rows for one in snapshot.open}
        speed = max(0, snapshot.rows - before) / (now - since) if now > since else 0.0
        left = sum(
            max(0, rows - open_tables.get(name, 0))
            for name, rows in self._estimates.items()
            if name > snapshot.begun or name in open_tables
        )
        # It is unknown how many rows meet a condition, or are left in a table that has more than estimated.
        more = any(rows and rows >= self._estimates.get(name, 0) for name, rows in open_tables.items())
        known = snapshot.id == self._id and not snapshot.where and not more
        total = snapshot.rows + left
        state = "paused" if snapshot.paused else "held back" if waits else "reading"
        return {
            "id": snapshot.id,
            "kind": snapshot.kind,
            "state": state,
            "reason": waits,
            "tables": [f"{schema}.{table}" for schema, table in open_tables],
            "tables_done": snapshot.tables_done,
            "tables_left": sum(name > snapshot.begun for name in self._estimates) if snapshot.id == self._id else None,
            "rows": snapshot.rows,
            "rows_left": left if known else None,
            "percent": min(99.9, round(100 * snapshot.rows / total, 1)) if known and total else None,
            "rows_per_second": round(speed, 1),
            "eta_seconds": round(left / speed, 1) if known and speed > 0 and state == "reading" else None,
            "waiting": len(snapshots) - 1,
            "queue": [
                {"id": one.id, "kind": one.kind, "only": one.tables, "where": one.where, "paused": one.paused}
                for one in snapshots
            ],
        }
