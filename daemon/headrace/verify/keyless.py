"""Compares a table without a key: the number of rows, and one checksum over all, which does not depend on their
order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headrace.runtime import monotonic
from headrace.verify.hashes import row_hash
from headrace.verify.result import TableFound
from headrace.verify.table import TableNow
from headrace.verify.views import ProgressCallback, TopicView, hash_of

_POLL = 0.25
_ROUNDS = 5
"""How many times a table that keeps changing is read again."""


@dataclass(slots=True)
class Bag:
    """Rows that can't be distinguished: their number, and the sum of their hashes."""

    rows: int = 0
    checksum: int = 0

    def add(self, hashed: int, count: int = 1) -> None:
        """Adds one row, or with -1 removes one."""
        self.rows += count
        self.checksum = (self.checksum + count * hashed) % (1 << 64)


async def compare_keyless(
    table: TableNow,
    view: TopicView,
    found: TableFound,
    seconds: float,
    on_progress: Callable[[str, int, int | None], None],
) -> None:
    """Compares until both sides agree, or the consumer got nothing for `seconds`. Raises what table and view raise."""
    theirs = Bag()
    await _read_on(view, theirs, partial(on_progress, "messages"))
    found.consumer_rows = theirs.rows

    def report_rows(count: int) -> None:
        on_progress("rows", count, theirs.rows)

    ours, rounds = await _read(table, report_rows), 0
    since = monotonic()
    while True:
        found.source_rows, found.consumer_rows = ours.rows, theirs.rows
        if ours == theirs:
            return
        if monotonic() - since >= seconds:
            again = await _read(table, report_rows)
            if again == ours or rounds >= _ROUNDS:
                found.keyless_differs = True
                return
            ours, rounds, since = again, rounds + 1, monotonic()
        await asyncio.sleep(min(_POLL, seconds))
        if await _read_on(view, theirs, lambda *_: None):
            since = monotonic()


async def _read(table: TableNow, on_progress: Callable[[int], None]) -> Bag:
    bag = Bag()
    async for rows in table.rows():
        for row in rows:
            bag.add(row.forms[0])
        on_progress(len(rows))
    return bag


async def _read_on(view: TopicView, bag: Bag, on_progress: ProgressCallback) -> bool:
    """Takes new messages; returns whether there were any."""
    came = False
    async for block in view.row_states(on_progress):
        for one in block:
            came = True
            if one.before is not None:
                bag.add(row_hash(one.before), -1)
            if one.row is not None:
                bag.add(hash_of(one))
    return came
