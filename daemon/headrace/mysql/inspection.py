"""The queries of commands to a MySQL or MariaDB source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from headrace.errors import StateStoreError
from headrace.model import Position, RowsChange
from headrace.mysql.archive.archive import Archive
from headrace.mysql.checks import Wanted, check_source
from headrace.mysql.decode import read_files
from headrace.mysql.position.report import report
from headrace.mysql.schema.current import captured_names, schemas_now, unreadable_now
from headrace.mysql.second_opinion import second_opinion
from headrace.mysql.source import MysqlSource, addresses
from headrace.ports.finding import Finding, failed
from headrace.ports.inspection import Captures, Inspection, Opinion, Output, PositionReport, Schemas, Window
from headrace.ports.state import Stored
from headrace.ports.tables import TableReader
from headrace.rules.patterns import named_schemas, named_tables
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings


class MysqlInspection(Inspection):
    """See Inspection."""

    def __init__(self, settings: DestinationSettings, daemon: DaemonSettings, captures: Captures) -> None:
        self._settings, self._daemon, self._captures = settings, daemon, captures
        self._source = MysqlSource(settings, daemon, captures, named=False)
        self._archive = Archive.of(settings.archive, daemon.native) if settings.archive is not None else None
        self._servers = addresses(settings.source)
        self.addresses = [f"{one.host}:{one.port}" for one in self._servers]

    async def check(
        self, number: int, stored: Stored | None, entries: Sequence[dict[str, Any]], *, reads_rows: bool
    ) -> list[Finding]:
        server, filters = self._servers[number], self._settings.filter
        try:
            named = captured_names(filters.include, self._captures, entries)
        except StateStoreError as error:
            return [failed("schemas", error)]
        wanted = Wanted(
            schemas=named_schemas(filters.include),
            reads_rows=reads_rows,
            heartbeat=self._settings.heartbeat,
            position=stored.position if stored is not None else None,
            captures=self._captures if filters.rows else None,
            tables=named,
            only_these=named_tables(filters.include)[1],
            archive=self._archive,
        )
        node = self._daemon.node
        return await check_source(server, server.server_id, node=node, destination=self._settings.name, wanted=wanted)

    async def tables(self, wanted: Captures) -> Schemas:
        return await schemas_now(self._source.settings, wanted)

    async def unreadable(self, wanted: Captures, entries: Sequence[dict[str, Any]]) -> Mapping[tuple[str, str], str]:
        named = captured_names(self._settings.filter.include, self._captures, entries)
        return await unreadable_now(self._source.settings, wanted, named)

    async def reader(self, *, of_snapshots: bool = False) -> TableReader:
        return await self._source.reader_now(of_snapshots=of_snapshots)

    async def now_ms(self) -> int:
        return await self._source.now_ms()

    async def position(self, position: Position | None) -> PositionReport:
        return await report(self._settings.name, self._servers, position, self._archive)

    async def second_opinion(self, count: int, plain: DestinationSettings, folder: Path) -> Opinion:
        decode = partial(decode_file, plain, folder)
        return await second_opinion(self._settings.source, self._captures, count, decode, folder)


class _Changes(Output):
    """Collects the changes of rows."""

    def __init__(self) -> None:
        self.changes: list[RowsChange] = []

    def emit(self, change: RowsChange) -> None:
        self.changes.append(change)


def decode_file(settings: DestinationSettings, spool: Path, path: Path) -> Sequence[RowsChange]:
    """Returns the changes in a binlog file, of all tables. Raises NotUnderstood and OSError."""
    output = _Changes()
    read_files([path], settings, lambda *_: True, spool, Window([path.name]), output)
    return output.changes
