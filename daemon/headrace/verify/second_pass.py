"""The second pass: compares differing rows again while changes continue, so that a consumer's lag is no difference.

The row that was read was valid at that moment, and a consumer that misses nothing gets exactly that row sooner or
later. So a row agrees once the consumer has it, or has had it; also one that changes all the time."""

from __future__ import annotations

import asyncio

from headrace.runtime import monotonic
from headrace.verify.pending import ABSENT_FORMS, Pending
from headrace.verify.table import SourceRow, TableNow
from headrace.verify.views import View

_POLL = 0.25
"""Seconds between two checks of the consumer."""
_ROUNDS = 5
"""How many times a row that keeps changing is read again."""
_OVERDUE = 3
"""A row that the consumer keeps getting, and never as it was read, is read again after this many times `seconds`."""


class SecondPass:
    """Compares `pending`, the rows that differed at the first pass, which ended at `read_ms` by the source's clock.
    While a consumer gets changes from before that, it is behind, and nothing counts."""

    def __init__(
        self, table: TableNow, view: View, pending: dict[bytes, Pending], read_ms: int, seconds: float
    ) -> None:
        self._table, self._view, self._pending = table, view, pending
        self._read_ms, self._seconds = read_ms, seconds
        self._lost: dict[bytes, Pending] = {}
        self._floor = monotonic()
        """Since when the consumer is not behind."""

    async def run(self) -> dict[bytes, Pending]:
        """Waits, and returns the remaining differences. Raises what table and view raise."""
        for one in self._pending.values():
            one.since = one.began = self._floor
        took = await self._take_news()
        while self._pending:
            due = self._due()
            if due:
                await self._judge(due)
                continue
            await asyncio.sleep(max(min(_POLL, self._seconds), took))
            took = await self._take_news()
        return self._lost

    async def _take_news(self) -> float:
        """Takes new messages; returns how many seconds it took."""
        pending, began = self._pending, monotonic()
        news, behind = await self._view.news(pending.keys(), self._read_ms)
        now = monotonic()
        if behind:
            self._floor = now
        for key, hashed, version in news:
            one = pending.get(key)
            if one is None or (version is not None and version < one.version):
                continue
            if hashed != one.held or version is not None:
                one.touched, one.since = True, now
            one.held, one.version = hashed, one.version if version is None else version
            if one.agrees:
                del pending[key]
        return now - began

    def _due(self) -> dict[bytes, Pending]:
        """Returns the rows without messages for long enough; or without matching ones, for longer."""
        now, quiet = monotonic(), self._seconds
        if now - self._floor < quiet:
            return {}
        return {
            key: one
            for key, one in self._pending.items()
            if now - max(one.since, self._floor) >= quiet or now - max(one.began, self._floor) >= _OVERDUE * quiet
        }

    async def _judge(self, due: dict[bytes, Pending]) -> None:
        """Reads them once more: rows that have changed at the source get another chance, the others count."""
        again = {key: one for key, one in due.items() if not one.extra or one.touched}
        rows = await self._read(again) if again else {}
        changed = set[bytes]()
        for key, one in due.items():
            row = rows.get(key)
            wanted = row.forms if row is not None else ABSENT_FORMS
            if wanted != one.wanted:
                changed.add(key)
                one.wanted, one.raw = wanted, row.raw if row is not None else one.raw
            if one.agrees:
                del self._pending[key]
        await self._take_news()
        now = monotonic()
        for key, one in due.items():
            if key not in self._pending:
                continue
            if key in changed and one.rounds < _ROUNDS:
                one.rounds += 1
                one.since = one.began = now
                one.touched = False
            else:
                self._lost[key] = self._pending.pop(key)

    async def _read(self, due: dict[bytes, Pending]) -> dict[bytes, SourceRow]:
        """Returns the rows that the source has for these keys."""
        known = [one.raw for one in due.values() if one.raw is not None]
        # Else there are too many of them, or keys that only the consumer had at the first pass.
        rows = self._table.with_keys(known) if len(known) == len(due) else self._table.rows()
        found: dict[bytes, SourceRow] = {}
        async for block in rows:
            found |= {row.key: row for row in block if row.key in due}
        return found
