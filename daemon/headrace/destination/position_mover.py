"""Moves of a position by an operator; the same whether a daemon runs the destination or not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headrace import runtime
from headrace.destination.requests import RequestRefused
from headrace.model import Gap, Position
from headrace.ports.source import ProgressCallback, Source
from headrace.ports.state import WHOLE_HISTORY, StateChange, StateStore, Stored
from headrace.settings.values import Start, start_text
from headrace.times import time_text


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A move that nothing has been written for. `to` is the requested position, "" if the position is removed."""

    to: str
    stored: Stored
    position: Position | None
    gap: Gap
    entries: tuple[dict[str, Any], ...]
    notes: tuple[str, ...] = ()
    found: Any = None
    """See Move."""

    @property
    def nothing(self) -> bool:
        """Returns whether there is nothing to do: no position is stored that could be removed."""
        return not self.to and self.stored.position is None

    def shown(self) -> dict[str, Any]:
        """Returns what the operator is shown, JSON types only: `from`, `after` (the commit time of the last transaction
        before it), `to`, `gap` and `notes`."""
        before, gap = self.stored.position, self.gap
        return {
            "from": gap.start or "nothing stored",
            "after": time_text(before.commit_time_us) if before is not None and before.commit_time_us else "",
            "to": gap.end if self.to else f"nothing stored: it begins by {gap.end}",
            "gap": gap.to_dict() if self.to else None,
            "notes": list(self.notes),
        }

    def change(self, who: str, why: str = "") -> StateChange:
        """Returns what must be stored. A paused destination stays paused. `why` is written to the history instead of
        `to`."""
        position, before = self.position, self.stored.position
        if position is not None and before is not None:
            position = replace(position, paused=before.paused)
        details = {"gap": self.gap.to_dict(), "where": why or self.to or "reset", "by": who}
        return StateChange(position, self.entries, actor="operator", details=details)


class PositionMover:
    """Plans moves of one destination's position. `start` is its [source] start."""

    def __init__(self, name: str, source: Source, store: StateStore, start: Start) -> None:
        self._name, self._source, self._store, self._start = name, source, store, start_text(start)

    async def plan(
        self,
        stored: Stored,
        to: str,
        *,
        read_schemas: bool = False,
        events_done: int = 0,
        planned: PlannedMove | None = None,
        on_progress: ProgressCallback = lambda *_: None,
    ) -> PlannedMove:
        """Plans a move from what is stored to `to`; see Source.move_by_hand. `to` "" removes the position. `planned` is
        an earlier plan of the same move, which avoids a second search. Raises RequestRefused, SourceError or
        StateStoreError."""
        if not to:
            return self._reset(stored)
        entries = await self._store.schema_entries(self._name)
        history = await self._store.history(self._name, WHOLE_HISTORY)
        found = planned.found if planned is not None else None
        try:
            move = await self._source.move_by_hand(
                to,
                stored,
                entries,
                history,
                read_schemas=read_schemas,
                events_done=events_done,
                found=found,
                on_progress=on_progress,
            )
        except ValueError as error:
            raise RequestRefused(f"'{to}' {error}") from None
        return PlannedMove(to, stored, move.position, move.gap, move.entries, move.notes, move.found)

    def _reset(self, stored: Stored) -> PlannedMove:
        before = stored.position
        if before is not None and before.paused:
            raise RequestRefused(
                "the destination is paused, and the pause is stored with its position",
                remedy="headrace resume DESTINATION; or give it a position with headrace position set, which keeps the "
                "pause",
            )
        gap = Gap("operator", str(before or ""), f"[source] start ({self._start})", at_us=runtime.now_us())
        return PlannedMove("", stored, None, gap, self._source.again())
