"""Compares the schema history with the source's tables, to notice changes without a statement in the binlog."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

import structlog

from headrace.errors import SchemaDiffers, SourceError
from headrace.model import Position
from headrace.mysql.schema.ddl.actions import TableName
from headrace.mysql.schema.ddl.definition import Difference
from headrace.mysql.schema.gap import DdlScan
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.schema.reader import TRIES, prepare, read_whole
from headrace.mysql.schema.states import ALWAYS, FilePosition, reached
from headrace.mysql.schema.tables import read_tables
from headrace.mysql.sql.dialect import dialect_of
from headrace.mysql.wire.binlog_file import file_number
from headrace.mysql.wire.connection import QueryFailed, Server, SourceConnection, address_of
from headrace.mysql.wire.grants import ask_lacks
from headrace.runtime import monotonic as _now

log = structlog.get_logger(__name__)

_EVERY = 300.0
"""Seconds until each table has been compared again."""
_AT_ONCE = 500
"""Tables of one such comparison, for which the stream waits."""
_PAUSE = 10
"""Seconds of pause for each second of comparing: so the stream waits for a tenth of the time at most,"""
_BURST = 10.0
"""but comparisons whose pauses are no longer than this run at once."""
_FORGET_FROM = 1_000
"""Names of dropped tables are searched for when there are this many more than twice those that were left last time."""
_AGAIN = 10.0
"""Seconds until the next attempt if the source could not be queried."""


class SchemaComparison:
    """Decides when tables are compared, and compares them. A table whose rows have no column names is compared

    - when a stream begins: begin();
    - when its rows have a new table id, which it gets when it was altered, unless they have agreed() already. When too
      many need that, may_run() is false for a while, and the table is put into `due`;
    - every few minutes.

    run() must be called when is_due()."""

    def __init__(self, destination: str, server: Server, history: SchemaHistory) -> None:
        self._server, self._history = server, history
        self._log = log.bind(destination=destination)
        self._agreed: dict[TableName, FilePosition] = {}
        """Up to where rows of a table were written with the schema in the history."""
        self.due: set[TableName] = set()
        self._nameless: dict[TableName, None] = {}
        """Tables whose rows have no column names, in the order they came."""
        self._most = _FORGET_FROM
        self._next = 0
        """The number of the next table to compare."""
        self._paused_until = 0.0
        self._next_round = _now() + _EVERY

    async def begin(self, position: Position) -> None:
        """Compares all that is known. If rows have column names, a difference is only logged. A table that the source
        can't show is compared before its first row. Raises SchemaDiffers and SourceError."""
        if names := self._history.known():
            try:
                await self._compare(names, position, at_start=True)
            except QueryFailed as error:
                self._log.warning("table schemas can't be compared at the start", error=error.operator_text())

    def compare_often(self, name: TableName) -> None:
        """Records a table whose rows have no column names."""
        self._nameless[name] = None
        self._forget_dropped()

    def examined(self, name: TableName, here: FilePosition) -> None:
        """Records that the source was just asked about the table whose rows are at `here`."""
        if not self.agreed(name, here):
            self._agreed[name] = here
            self._forget_dropped()

    def _forget_dropped(self) -> None:
        if max(len(self._nameless), len(self._agreed)) <= self._most:
            return
        known = set(self._history.known())
        self._nameless = {name: None for name in self._nameless if name in known}
        self._agreed = {name: place for name, place in self._agreed.items() if name in known}
        self.due &= known
        self._most = _FORGET_FROM + 2 * len(known)

    def agreed(self, name: TableName, here: FilePosition) -> bool:
        """Returns whether the rows at `here` were written before a comparison that found no difference."""
        agreed = self._agreed.get(name)
        return agreed is not None and reached(agreed, here)

    def agreed_until(self, name: TableName, file: str) -> int:
        """Returns up to which offset of a file the rows of a table have agreed; 0 if this is not known."""
        agreed_file, offset = self._agreed.get(name, ("", 0))
        here, there = file_number(file), file_number(agreed_file)
        return ALWAYS if here < there else offset if here == there else 0

    def agree(self, names: Collection[TableName], here: FilePosition) -> None:
        """Records tables whose schemas were read, and are valid up to `here` at least, if statements in the binlog are
        followed."""
        self._agreed |= dict.fromkeys(names, here)

    def may_run(self) -> bool:
        """Returns whether there were not too many comparisons recently."""
        return self._paused_until < _now() + _BURST

    def is_due(self) -> bool:
        """Returns whether run() must be called."""
        return bool(self.due or _now() >= self._next_round) and self.may_run()

    async def run(self, position: Position, name: TableName | None = None) -> None:
        """Compares what is due, or a part of all, and the table `name`.

        `position` is that of the stream. Raises SchemaDiffers, and SourceError if the source can't be asked about
        `name`; else that is logged and retried later."""
        names, self.due = self.due, set()
        if name is not None:
            names.add(name)
        elif not names:
            names = self._next_part(position)
        if not names:
            return
        began = _now()
        try:
            await self._compare(names, position)
        except SourceError as error:
            if name is not None:
                raise
            self._log.warning("table schemas can't be compared", error=error.operator_text())
            self.due = names
            self._paused_until = _now() + _BURST + _AGAIN
            return
        finally:
            now = _now()
            self._paused_until = max(self._paused_until, now) + _PAUSE * (now - began)

    def _next_part(self, position: Position) -> set[TableName]:
        """Returns the next tables, without those that agreed as of a time that the stream has not reached."""
        names, end = list(self._nameless), self._next + _AT_ONCE
        part, self._next = names[self._next : end], end if end < len(names) else 0
        self._next_round = _now() + _EVERY / (len(names) // _AT_ONCE + 1)
        here = position.file, position.offset
        return {name for name in part if name not in self._agreed or reached(here, self._agreed[name])}

    async def _compare(self, names: Collection[TableName], position: Position, *, at_start: bool = False) -> None:
        history, dialect = self._history, dialect_of(self._server.version, mariadb=self._server.mariadb)
        async with await SourceConnection.open(address_of(self._server.settings)) as connection:
            await prepare(connection, dialect, wait=1)
            before = (await connection.binlog_end())[:2]
            suspects, lacks = set(), await ask_lacks(connection)
            whole = [name for name in names if not lacks(*name)]
            async for name, shown in read_tables(connection.query, whole, dialect):
                if not isinstance(shown, str) and history.difference(name, shown) is not Difference.NONE:
                    suspects.add(name)
                await asyncio.sleep(0)  # other destinations share the loop
            if suspects:
                await self._settle(connection, suspects, position, at_start=at_start)
        self._agreed |= {name: before for name in names if name not in self.due}

    async def _settle(
        self, connection: SourceConnection, suspects: set[TableName], position: Position, *, at_start: bool
    ) -> None:
        """Finds which differences the statements after the position explain."""
        dialect = dialect_of(self._server.version, mariadb=self._server.mariadb)
        later = self._history.fork()
        await prepare(connection, dialect)
        async with contextlib.aclosing(DdlScan(self._server, position, self._log, later)) as scan:
            for attempt in range(TRIES):
                await asyncio.sleep(0.3 * attempt)
                before = (await connection.binlog_end())[:2]
                reading = await read_whole(connection, suspects, dialect)
                await scan.run_to((await connection.binlog_end())[:2])
                last = {name: scan.last_of_table(*name) for name in suspects}
                torn = {name for name, behind in last.items() if behind is not None and not reached(before, behind)}
                if not torn:
                    break
        self.due |= torn
        for name in sorted(suspects - torn):
            table = f"table {'.'.join(name)}"
            if name in reading.unknown:
                if last[name] is not None and later.table(*name) is None and later.knows(*name):
                    continue  # the scanned statements dropped it
                raise SourceError(f"{table} may have changed, and can't be read: {reading.unknown[name]}")
            shown = reading.tables[name][0]
            difference = later.difference(name, shown)
            if difference is Difference.COLUMNS:
                what = f"{table} was changed without a statement in the binlog: {later.in_words(name, shown)}"
                if not at_start or not await _rows_bring_names(connection):
                    raise SchemaDiffers(what)
                self._log.warning(what)
            elif difference is Difference.KEY and last[name] is None:
                self._log.warning(f"the key of {table} is taken as the source shows it")
                self._history.correct(name, shown)


async def _rows_bring_names(connection: SourceConnection) -> bool:
    await connection.load_variables()
    return connection.rows_bring_names
