"""The schema history of one destination's run: restored from the store, completed from the source when it has gaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog

from headrace.errors import SourceError, StateStoreError
from headrace.model import Position
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.schema.reader import read_schemas
from headrace.mysql.source import OpenSource
from headrace.pipeline.routing import Routing
from headrace.settings.destination import DestinationSettings

log = structlog.get_logger(__name__)


class Layouts:
    """What is known of tables' layouts, and where to look for more. `entries` are the stored ones."""

    history: SchemaHistory

    def __init__(self, settings: DestinationSettings, entries: Sequence[dict[str, Any]]) -> None:
        self._settings, self._entries = settings, entries
        self.captures = Routing(settings).captures
        self._source: OpenSource

    async def open(self, source: OpenSource) -> None:
        """Restores the history as of the position that the stream begins at, and reads what it lacks."""
        self._source = source
        self.history = SchemaHistory(
            self.captures,
            mariadb=source.mariadb,
            version=source.version,
            lower_case_table_names=source.lower_case_table_names,
        )
        try:
            # Those of a move that the opening made are stored only once it is open.
            self.history.restore([*self._entries, *source.entries], source.start.last_pos)
        except (ValueError, LookupError, TypeError) as error:
            raise StateStoreError(
                f"the stored schema history of {self._settings.name} can't be read ({error!r})",
                remedy="put a backup of the state store in its place, or give the destination's file a new name",
            ) from error
        await self._read(source.start)

    async def learn(self, table: tuple[str, str], position: Position) -> str:
        """Looks for the layout of a table at `position`; why it can't be known, or "" when the history has it now."""
        try:
            await self._read(position)
        except SourceError as error:
            log.warning("layouts can't be read", destination=self._settings.name, error=str(error))
            raise
        return "" if self.history.table(*table) is not None else self.history.unknown_because(*table)

    async def _read(self, position: Position) -> None:
        source, settings = self._source, self._source.settings
        self.history.adopt(
            await read_schemas(
                settings,
                position,
                self.captures,
                mariadb=source.mariadb,
                version=source.version,
                lower_case_table_names=source.lower_case_table_names,
                gtid_mode=source.gtid_mode,
                server_id=settings.server_id,
                history=self.history,
                log=log.bind(destination=self._settings.name),
            )
        )
