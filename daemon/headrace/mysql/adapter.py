"""MySQL and MariaDB as a kind of source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.mysql.archive.commands import MysqlArchiveCommands
from headrace.mysql.archive.feed import Feed
from headrace.mysql.decode import read_archive, read_files, read_server
from headrace.mysql.inspection import MysqlInspection
from headrace.mysql.position.move import parse_where
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.snapshot.select import among, between
from headrace.mysql.source import MysqlSource
from headrace.mysql.undo import SESSION, undo
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.native import find
from headrace.ports.archive import ArchiveCommands
from headrace.ports.inspection import Captures, Conditions, Inspection, SourceAdapter, StoredTables, Undo
from headrace.ports.source import Source
from headrace.settings.archive import ArchiveSettings
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings, SourceSettings

_OURS = {"mysql", "sys", "information_schema", "performance_schema", "headrace"}


class MysqlAdapter(SourceAdapter):
    """See SourceAdapter."""

    conditions = Conditions(among, between)
    undo = Undo(undo, SESSION, {"enum": "index", "time_zone": "UTC"})
    read_files = staticmethod(read_files)
    read_archive = staticmethod(read_archive)
    read_server = staticmethod(read_server)

    def source(
        self,
        settings: DestinationSettings,
        daemon: DaemonSettings,
        captures: Captures,
        ahead: Callable[[], int],
        shared: dict[str, Any],
    ) -> Source:
        feed = None
        if settings.archive is not None:
            feed = shared.setdefault(settings.archive.place, Feed(find(daemon.native).module))
        return MysqlSource(settings, daemon, captures, ahead=ahead, feed=feed)

    def inspection(self, settings: DestinationSettings, daemon: DaemonSettings, captures: Captures) -> Inspection:
        return MysqlInspection(settings, daemon, captures)

    def archive(self, settings: ArchiveSettings, node: str) -> ArchiveCommands:
        return MysqlArchiveCommands(settings, node)

    def check_place(self, text: str) -> None:
        parse_where(text)

    async def schemas(self, source: SourceSettings) -> dict[str, int]:
        async with await SourceConnection.open(address_of(source)) as connection:
            rows = await connection.query(
                "SELECT schema_name AS s, COUNT(table_name) AS c FROM information_schema.schemata LEFT JOIN"
                " information_schema.tables ON table_schema = schema_name AND table_type = 'BASE TABLE'"
                " GROUP BY schema_name ORDER BY schema_name"
            )
        return {str(row["s"]): int(row["c"]) for row in rows if str(row["s"]).lower() not in _OURS}

    def stored_tables(self, entries: Sequence[dict[str, Any]], last_pos: int) -> StoredTables:
        # The kind of server matters only to further statements, and none is applied here.
        history = SchemaHistory(lambda _schema, _table: True, mariadb=False, version="8.0.0", lower_case_table_names=0)
        history.restore(entries, last_pos)
        found = {name: table for name in sorted(history.known()) if (table := history.table(*name)) is not None}
        return StoredTables(found, history.unknown_because)
