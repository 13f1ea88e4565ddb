"""Compares the schema history with what the source shows, to notice changes that are in no statement of the binlog."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from time import monotonic as _now

import structlog

from headrace.errors import SchemaDiffers, SourceError
from headrace.model import Position
from headrace.mysql.schema.ddl.actions import TableName
from headrace.mysql.schema.gap import DdlScan
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.schema.reader import TRIES, read_whole
from headrace.mysql.schema.states import FilePosition, reached
from headrace.mysql.schema.tables import read_tables
from headrace.mysql.sql.dialect import dialect_of
from headrace.mysql.wire.connection import Server, SourceConnection, address_of

log = structlog.get_logger(__name__)

_EVERY = 300.0
"""Seconds until each table has been compared again."""
_AT_ONCE = 500
"""Tables of one such comparison, for which the stream waits."""
_PAUSE = 10
"""Seconds for each second of comparing: so the stream waits for a tenth of the time at most,"""
_BURST = 10.0
"""but comparisons whose pauses are no longer than this come at once."""
_AGAIN = 10.0
"""Seconds until the next attempt when the source could not be asked."""


class SchemaComparison:
    """Says when tables are compared, and does it. A table whose rows bring no names is to be compared

    - when a stream begins: begin();
    - when its rows have a new table id, which it gets when it was altered, unless they have agreed() already. When too
      many ask for that, may_run() does not hold for a while, and the table is put into `due`;
    - every few minutes.

    run() is to be called when is_due().
    """

    def __init__(self, destination: str, server: Server, history: SchemaHistory) -> None:
        self._server, self._history = server, history
        self._log = log.bind(destination=destination)
        self._agreed: dict[TableName, FilePosition] = {}
        """Up to where rows of a table were written with the schema that the history has."""
        self.due: set[TableName] = set()
        self._nameless: dict[TableName, None] = {}
        """Tables whose rows bring no names, in the order they came."""
        self._next = 0
        """The number of the table whose turn is next."""
        self._paused_until = 0.0
        self._next_round = _now() + _EVERY

    async def begin(self, position: Position) -> None:
        """Compares all that is known. Where rows bring their names a difference is only logged. Raises as run(), and
        SourceError."""
        if names := self._history.known():
            await self._compare(names, position, at_start=True)

    def looked_at(self, name: TableName, here: FilePosition) -> None:
        """The source has just been asked about the table whose rows stand at `here`."""
        if not self.agreed(name, here):
            self._agreed[name] = here

    def agreed(self, name: TableName, here: FilePosition) -> bool:
        """Whether the rows at `here` were written before a comparison that found no difference."""
        self._nameless[name] = None
        agreed = self._agreed.get(name)
        return agreed is not None and reached(agreed, here)

    def may_run(self) -> bool:
        """Whether there were not too many comparisons of late."""
        return self._paused_until < _now() + _BURST

    def is_due(self) -> bool:
        """Whether run() is to be called."""
        return bool(self.due or _now() >= self._next_round) and self.may_run()

    async def run(self, position: Position, name: TableName | None = None) -> None:
        """Compares what is due, or a part of all, and the table `name`.

        `position` is that of the stream. Raises SchemaDiffers; when the source can't be asked, that is logged and tried
        again later.
        """
        names, self.due = self.due, set()
        if name is not None:
            names.add(name)
        elif not names:
            names = set(list(self._nameless)[self._next : self._next + _AT_ONCE])
            self._next = self._next + _AT_ONCE if self._next + _AT_ONCE < len(self._nameless) else 0
            self._next_round = _now() + _EVERY / (len(self._nameless) // _AT_ONCE + 1)
        if not names:
            return
        began = _now()
        try:
            await self._compare(names, position)
        except SourceError as error:
            self._log.warning("table schemas can't be compared", error=str(error))
            self.due = names
            self._paused_until = _now() + _BURST + _AGAIN
            return
        finally:
            now = _now()
            self._paused_until = max(self._paused_until, now) + _PAUSE * (now - began)

    async def _compare(self, names: Iterable[TableName], position: Position, *, at_start: bool = False) -> None:
        history, dialect = self._history, dialect_of(self._server.version, mariadb=self._server.mariadb)
        async with await SourceConnection.open(address_of(self._server.settings)) as connection:
            before = (await connection.binlog_end())[:2]
            suspects = set()
            async for name, shown in read_tables(connection.query, names, dialect):
                if not isinstance(shown, str) and history.difference(name, shown):
                    suspects.add(name)
                await asyncio.sleep(0)  # other destinations share the loop
            differing = await self._unexplained(connection, suspects, position) if suspects else {}
            named = False
            if differing and at_start:
                variables = await connection.load_variables()
                named = variables.get("binlog_row_metadata", "").upper() == "FULL"
        for name, why in sorted(differing.items()):
            what = f"table {'.'.join(name)} was changed without a statement in the binlog: {why}"
            if not named:
                raise SchemaDiffers(what)
            self._log.warning(what)
        self._agreed |= dict.fromkeys(names, before)

    async def _unexplained(
        self, connection: SourceConnection, suspects: set[TableName], position: Position
    ) -> dict[TableName, str]:
        """Those tables that differ also from what the statements behind the position make of them, and in what."""
        dialect = dialect_of(self._server.version, mariadb=self._server.mariadb)
        later = self._history.fork()
        async with contextlib.aclosing(DdlScan(self._server, position, self._log, later)) as scan:
            for attempt in range(TRIES):
                await asyncio.sleep(0.3 * attempt)
                before = (await connection.binlog_end())[:2]
                reading = await read_whole(connection, suspects, dialect)
                await scan.run_to((await connection.binlog_end())[:2])
                last = {name: scan.last_of_table(*name) for name in reading.tables}
                torn = {name for name, behind in last.items() if behind is not None and not reached(before, behind)}
                if not torn:
                    break
        shown = {name: definition for name, (definition, _) in reading.tables.items() if name not in torn}
        return {name: why for name, one in shown.items() if (why := later.difference(name, one))}
