"""The first pass: compares every row of the table with what the consumer had when the pass began."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.verify.image import Image, TooManyRows
from headrace.verify.pending import ABSENT_FORMS, Pending
from headrace.verify.ranges import Ranges
from headrace.verify.table import TableNow

_RAW_KEPT = 20_000
"""Number of rows whose keys are kept in the source's form, to be read again by key. Beyond it the table is read again
as a whole."""


@dataclass(slots=True)
class FirstPass:
    """The result of the first pass."""

    ranges: Ranges
    rows: int = 0
    """Rows of the table, without filtered ones."""
    pending: dict[bytes, Pending] = field(default_factory=dict)
    """The differences so far."""


async def first_pass(
    table: TableNow, image: Image, ranges: Ranges, limit: int, on_progress: Callable[[int], None]
) -> FirstPass:
    """Compares, and empties the image meanwhile. Raises SourceError, NotUnderstood, and TooManyRows if more than
    `limit` rows differ."""
    found = FirstPass(ranges)
    pending = found.pending
    async for rows in table.rows():
        for row in rows:
            number = found.rows
            found.rows += 1
            range_ = ranges.note(row.key, row.raw)
            held, version = image.pop(row.key)
            if held not in row.forms:
                if len(pending) >= limit:
                    raise TooManyRows("there are differences in", limit)
                raw = row.raw if len(pending) < _RAW_KEPT else None
                pending[row.key] = Pending(row.forms, held, version, range_, number, raw)
        on_progress(len(rows))
    for key, held, version in image.drain():
        # A key that moved while the table was read may come twice: the first result stays.
        pending.setdefault(key, Pending(ABSENT_FORMS, held, version))
    return found
