"""The schema history of one destination's run: restored from the store, and completed from the source if it has
gaps."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from headrace.errors import SourceError, StateStoreError
from headrace.model import Position
from headrace.mysql.schema.comparison import SchemaComparison
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.schema.reader import read_schemas
from headrace.mysql.wire.connection import Server

log = structlog.get_logger(__name__)

_SCAN_LIMIT = 64 << 20
"""Maximum bytes of binlog that are searched for statements before a stream begins whose rows have column names."""


class TableSchemas:
    """The known table schemas, and where to read others. `captures` returns whether the rows of a schema and table are
    captured."""

    def __init__(
        self, destination: str, server: Server, captures: Callable[[str, str], bool], history: SchemaHistory
    ) -> None:
        self._destination, self._server = destination, server
        self.captures, self.history = captures, history
        self.comparison = SchemaComparison(destination, server, history)

    @classmethod
    async def read(
        cls,
        destination: str,
        server: Server,
        captures: Callable[[str, str], bool],
        start: Position,
        entries: Sequence[dict[str, Any]],
    ) -> TableSchemas:
        """Restores the stored entries as of the position that the stream begins at, and reads what they lack. Raises
        StateStoreError for entries that can't be read, SchemaDiffers and SourceError."""
        history = SchemaHistory(
            captures,
            mariadb=server.mariadb,
            version=server.version,
            lower_case_table_names=server.lower_case_table_names,
        )
        try:
            history.restore(entries, start.last_pos)
        except (ValueError, LookupError, TypeError) as error:
            raise StateStoreError(
                f"the stored schema history of {destination} can't be read ({error!r})",
                remedy="put a backup of the state store in its place, or give the destination's file a new name",
            ) from error
        made = cls(destination, server, captures, history)
        await made.comparison.begin(start)
        await made._complete(start, made._scan_limit)
        return made

    @property
    def _scan_limit(self) -> float:
        return _SCAN_LIMIT if self._server.rows_bring_names else math.inf

    async def read_again(self, position: Position) -> None:
        """Reads table schemas that are still unknown; logs if it can't."""
        with contextlib.suppress(SourceError):
            await self._read_missing(position, self._scan_limit)

    async def learn(self, table: tuple[str, str], position: Position) -> str:
        """Reads the schema of a table at `position`, or compares it if it is known; returns why it can't be known, or
        "" if the history has it now. Also raises SchemaDiffers."""
        if self.history.table(*table) is not None:
            await self.comparison.run(position, table)
            return ""
        await self._read_missing(position, math.inf)
        return "" if self.history.table(*table) is not None else self.history.unknown_because(*table)

    async def _read_missing(self, position: Position, scan_limit: float) -> None:
        try:
            await self._complete(position, scan_limit)
        except SourceError as error:
            log.warning("table schemas can't be read", destination=self._destination, error=error.operator_text())
            raise

    async def _complete(self, position: Position, scan_limit: float = math.inf) -> None:
        if not self._server.shows_tables:
            return  # what was changed between the two can't be told by offsets
        server, history, reported = self._server, self.history, log.bind(destination=self._destination)
        reading = await read_schemas(server, position, self.captures, history, reported, scan_limit=scan_limit)
        history.adopt(reading)
        if reading.at is not None:
            self.comparison.agree(reading.tables, reading.at)
