"""Captured tables that the account may not read: snapshots leave them out, although their changes are published."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from headrace.destination.dependencies import Context
from headrace.errors import SourceError
from headrace.ports.tables import Lacks, TableReader, in_short
from headrace.settings.snapshot import READS_ROWS
from headrace.snapshots import TableName
from headrace.tasks import set_within

_TROUBLE = "unreadable_tables"
_AGAIN = 5.0
"""Seconds between two queries whether the account may read them by now."""
_KEPT = 1_000
"""Maximum number of tables that are kept by name."""
_REMEDIES = 3


class UnreadableTables:
    """The unreadable tables of one run. Tables come from the stream, by seen(), and from the list that a snapshot
    begins with."""

    def __init__(self, context: Context, new_reader: Callable[[], TableReader]) -> None:
        self.wanted = context.settings.source.snapshot_mode in READS_ROWS and context.settings.filter.rows
        """Whether the existing rows of tables are expected; what a resync leaves out is reported in any case."""
        self._status, self._log, self._new_reader = context.status, context.log, new_reader
        self._lacks: Lacks | None = None
        self._unasked: set[TableName] = set()
        self._tables: dict[TableName, str] = {}
        """Each with the statement that grants the right."""
        self._came = asyncio.Event()

    def seen(self, schema: str, table: str) -> None:
        """Records a table with changes; called from within the stream's read()."""
        if self._lacks is not None:
            self._note(self._lacks, [(schema, table)])
        elif len(self._unasked) < _KEPT:
            self._unasked.add((schema, table))
            self._came.set()

    def left_out(self, lacks: Lacks, tables: Iterable[TableName]) -> None:
        """Records tables that a snapshot leaves out because of missing rights."""
        self._lacks = lacks
        self._note(lacks, [*tables, *self._unasked])
        self._unasked.clear()

    async def run(self) -> None:
        """Queries which tables the account may not read when a table comes, and repeatedly while there is one; until it
        is cancelled."""
        self._status.clear(_TROUBLE)
        while True:
            if await set_within(self._came, _AGAIN if self._tables else None) or self._tables:
                self._came.clear()
                await self._ask()

    async def _ask(self) -> None:
        reader = self._new_reader()
        try:
            lacks = await reader.lacks()
        except SourceError as error:
            self._log.debug("what the account may read can't be asked", error=error.operator_text())
            await asyncio.sleep(_AGAIN)
            self._came.set()
            return
        finally:
            await reader.close()
        readable = [name for name in self._tables if not lacks(*name)]
        for name in readable:
            del self._tables[name]
            self._log.info(
                "the account may read the table by now, and the rows that it had before are not published",
                table=".".join(name),
                remedy=f"headrace resync {self._status.name} {'.'.join(name)}",
            )
        self.left_out(lacks, ())
        if readable:
            self._report()

    def _note(self, lacks: Lacks, tables: Iterable[TableName]) -> None:
        new = [name for name in tables if name not in self._tables and lacks(*name)][: _KEPT - len(self._tables)]
        for name in new:
            grant = self._tables[name] = lacks(*name)
            self._log.warning(
                "the account may not read whole rows of a table: snapshots leave it out, its changes are published",
                table=".".join(name),
                remedy=f"{grant} then headrace resync {self._status.name} {'.'.join(name)}",
            )
        if new:
            self._came.set()  # from now on it is queried again
            self._report()

    def _report(self) -> None:
        if not self._tables:
            self._status.clear(_TROUBLE)
            return
        names = sorted(self._tables)
        grants = " ".join(self._tables[name] for name in names[:_REMEDIES])
        self._status.trouble(
            _TROUBLE,
            f"the account may not read whole rows of {in_short(names)}: snapshots leave them out, while their changes "
            "are published",
            remedy=f"{grants} Then headrace resync DESTINATION {'.'.join(names[0])}; or leave them out by [filter]",
        )
