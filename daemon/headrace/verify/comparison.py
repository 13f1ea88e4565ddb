"""Compares one table with one consumer, from the first pass to the result."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from headrace.verify.first_pass import first_pass
from headrace.verify.hashes import GONE
from headrace.verify.image import Image
from headrace.verify.keyless import compare_keyless
from headrace.verify.pending import ABSENT_FORMS
from headrace.verify.ranges import Ranges, text
from headrace.verify.result import TableFound
from headrace.verify.second_pass import SecondPass
from headrace.verify.table import TableNow
from headrace.verify.views import TopicView, View

ProgressCallback = Callable[[str, int, int | None], None]
"""Receives what was read (messages, documents or rows), how many more, and the approximate total, if known."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that an operator may set."""

    max_rows: int = 5_000_000
    """Maximum rows of a consumer that are kept in memory, and maximum rows that may differ."""
    range_rows: int = 10_000
    """Rows of a range."""
    settle: float = 10.0
    """Seconds without news of a row after which a difference counts."""


async def compare(
    destination: str,
    table: TableNow,
    view: View,
    limits: Limits,
    now_ms: Callable[[], Awaitable[int]],
    on_progress: ProgressCallback,
) -> TableFound:
    """Compares one table. `now_ms` is the source's clock. Raises SourceError, SinkError, NotUnderstood, TooManyRows."""
    name = table.source.name
    found = TableFound(name)
    if not table.keyed:
        if not isinstance(view, TopicView):
            found.notes = ["it has no key, so consumers make no documents of its rows: it was not compared"]
            return found
        await compare_keyless(table, view, found, limits.settle, on_progress)
        found.notes = view.notes()
        return found
    image = Image(limits.max_rows)
    what = "messages" if isinstance(view, TopicView) else "documents"
    await view.load(image, partial(on_progress, what))
    known = found.consumer_rows = image.count()  # about as many as the source has
    first = await first_pass(
        table, image, Ranges(limits.range_rows), limits.max_rows, lambda n: on_progress("rows", n, known)
    )
    found.source_rows, found.rechecked = first.rows, len(first.pending)
    if first.pending:
        lost = await SecondPass(table, view, first.pending, await now_ms(), limits.settle).run()
        extra = [key for key, one in lost.items() if one.wanted == ABSENT_FORMS and one.held != GONE]
        found.extra, found.extra_keys = len(extra), sorted(map(text, extra))
        here = [(key, one) for key, one in lost.items() if one.wanted != ABSENT_FORMS]
        found.ranges = first.ranges.found(here, None if table.projection.hides_key else table.between)
        for one in found.ranges:
            one.command = resync_command(destination, name, one.where)
    found.notes = [*view.notes()]
    if found.source_rows - found.missing + found.extra != found.consumer_rows:
        found.notes.append("the two counts are of two moments: rows came or went in between")
    return found


def resync_command(destination: str, table: str, where: str) -> str:
    """Returns the command that publishes rows again, for a shell. A name with a dot or a star is escaped for a
    regex."""
    words = ["headrace", "resync", destination, table]
    return shlex.join([*words, "--where", where] if where else words)
