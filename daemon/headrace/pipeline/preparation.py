"""Lets a format prepare for each table schema before its first row."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from headrace.errors import FormatError, HeadraceError
from headrace.model import TableSchema
from headrace.ports.format import Format

LIMIT = 30.0
"""Maximum time for one table schema, in seconds."""
_TABLES = 16_000
"""For how many tables the prepared schemas are remembered."""


class Preparation:
    """The preparation of one format. `published` returns the published form of a table schema, and raises HeadraceError
    if there is none."""

    def __init__(self, fmt: Format, published: Callable[[TableSchema], TableSchema]) -> None:
        self._format, self._published = fmt, published
        self._ready: dict[tuple[str, str], tuple[TableSchema, ...]] = {}
        """The last two schemas of each table: the stream's, and that of a snapshot."""
        self._turn = asyncio.Lock()

    def unprepared(self, schema: TableSchema) -> Callable[[], Awaitable[None]] | None:
        """Returns None if rows of this table schema may come; else a function to await first, which raises
        HeadraceError."""
        try:
            published = self._published(schema)
        except HeadraceError:  # raised again when rows arrive
            return None
        return None if self._is_ready(published) else partial(self._run, published)

    def _is_ready(self, published: TableSchema) -> bool:
        return published in self._ready.get((published.schema, published.table), ())

    async def _run(self, published: TableSchema) -> None:
        async with self._turn:
            if self._is_ready(published):
                return
            await prepare(self._format, published)
            if len(self._ready) > _TABLES:
                self._ready.clear()
            name = published.schema, published.table
            self._ready[name] = (*self._ready.get(name, ())[-1:], published)


async def prepare(fmt: Format, published: TableSchema) -> None:
    """Lets a format prepare for a table schema as it is published, within the limit. Raises HeadraceError."""
    try:
        async with asyncio.timeout(LIMIT) as limit:
            await fmt.prepare(published)
    except HeadraceError:
        raise
    except Exception as error:  # foreign code may raise anything
        why = f"no answer within {LIMIT:g} s" if limit.expired() else f"{type(error).__name__}: {error}"
        raise FormatError(
            f"[message] format can't prepare for the table {published.name} ({why})",
            remedy="check what this format needs, such as a schema registry",
        ) from error
