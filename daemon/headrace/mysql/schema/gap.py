"""The DDL between a position and the end of the binlog: which tables it may have touched, and where last."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable
from typing import Any

from headrace.model import Position
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.cutter import EventCutter
from headrace.mysql.events.event_types import Does, handlers
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.events.query_event import QueryEvent, parse_compressed_query, parse_query
from headrace.mysql.schema.ddl.actions import CreateDatabase, DatabaseAction, DropDatabase
from headrace.mysql.schema.ddl.classify import classify
from headrace.mysql.schema.states import FilePosition, reached
from headrace.mysql.wire.connection import LOOK_HEARTBEAT, Server, probe_id, short_dump
from headrace.mysql.wire.stream import PacketStream

_SAY_EVERY = 10.0


class DdlScan:
    """A dump of its own from a position on, looked through for statements only."""

    def __init__(self, server: Server, position: Position, log: Any = None) -> None:
        self._folds = bool(server.lower_case_table_names)
        """Whether the server compares the names of schemas and tables without regard to case."""
        self._source, self._position, self._log = server.settings, position, log
        self._server_id = probe_id(server.settings.server_id)
        self._gtids = GtidSet(position.gtid_set).pack() if server.gtid_mode and position.gtid_set else None
        self._statements = _Statements(position, self._fold, mariadb=server.mariadb, version=server.version)
        self._dump = contextlib.AsyncExitStack()
        self._stream: PacketStream | None = None
        self._data = b""

    def _fold(self, name: str) -> str:
        return name.lower() if self._folds else name

    async def run_to(self, end: FilePosition) -> None:
        """Looks at all statements up to `end`, which must be a position that the server has reached."""
        start = self._position.file, self._position.offset
        if self._stream is None and self._position.file and reached(start, end):
            return
        if self._stream is None:
            await self._open()
        assert self._stream is not None
        found, said = self._statements, time.monotonic()
        limit = 2 * LOOK_HEARTBEAT + self._source.connect_timeout
        while not reached(found.reached, end):
            self._data = await found.cutter.feed_from(self._stream, self._data, limit, lambda: False)
            if self._log is not None and time.monotonic() - said > _SAY_EVERY:
                said = time.monotonic()
                self._log.info("looking for DDL behind the position", at="{}:{}".format(*found.reached), to=f"{end}")

    async def _open(self) -> None:
        file, offset = ("", 4) if self._gtids is not None else (self._position.file, self._position.offset)
        dump = short_dump(self._source, self._server_id, file, offset, gtids=self._gtids)
        self._stream, connection = await self._dump.enter_async_context(dump)
        self._statements.cursor.checksums = connection.writes_checksums

    async def aclose(self) -> None:
        """Ends the dump."""
        await self._dump.aclose()

    @property
    def schemas_changed(self) -> bool:
        """Whether a schema was made or dropped."""
        return self._statements.schemas_changed or self._statements.any_table is not None

    def last_of_table(self, schema: str, table: str) -> FilePosition | None:
        """Behind the last DDL that touched the table or may have; None for none."""
        found, folded = self._statements, self._fold(schema)
        return _latest(found.tables.get((folded, self._fold(table))), found.schemas.get(folded), found.any_table)

    def last_of_schema(self, schema: str) -> FilePosition | None:
        """Behind the last DDL that touched the schema or any of its tables, or may have; None for none."""
        found, folded = self._statements, self._fold(schema)
        file_positions = [file_position for name, file_position in found.tables.items() if name[0] == folded]
        return _latest(*file_positions, found.schemas.get(folded), found.any_table)


def _latest(*file_positions: FilePosition | None) -> FilePosition | None:
    latest: FilePosition | None = None
    for file_position in file_positions:
        if file_position is not None and (latest is None or reached(file_position, latest)):
            latest = file_position
    return latest


class _Statements:
    """Statements only; every other event is passed over, known or not."""

    def __init__(self, position: Position, fold: Callable[[str], str], *, mariadb: bool, version: str) -> None:
        self.cursor = EventCursor(position.file, position.offset)
        self._fold = fold
        self._mariadb, self._version = mariadb, version
        self.tables: dict[tuple[str, str], FilePosition] = {}
        """By folded names, as all that is here."""
        self.schemas: dict[str, FilePosition] = {}
        self.any_table: FilePosition | None = None
        self.schemas_changed = False
        self._heard: FilePosition = ("", 0)
        self.cutter = EventCutter(
            self.cursor,
            handlers(
                lambda event: event.ddl,
                {
                    Does.PASS: self._on_other,
                    Does.QUERY: self._on_query,
                    Does.COMPRESSED_QUERY: self._on_compressed_query,
                    Does.HEARTBEAT: self._on_heartbeat,
                },
            ),
            other=self._on_other,
        )

    @property
    def reached(self) -> FilePosition:
        """Up to where everything was seen."""
        here = self.cursor.file, self.cursor.end
        return self._heard if self._heard[0] == here[0] and self._heard[1] > here[1] else here

    def _on_other(self, data: bytes, at: int, stop: int) -> None:
        """Only statements count here."""

    def _on_query(self, data: bytes, at: int, stop: int) -> None:
        if data[stop - 6 : stop] != b"\0BEGIN":
            self._note(parse_query(data, at, stop), self.cursor.end_of(at, stop))

    def _on_compressed_query(self, data: bytes, at: int, stop: int) -> None:
        self._note(parse_compressed_query(data, at, stop), self.cursor.end_of(at, stop))

    def _note(self, query: QueryEvent, end: int) -> None:
        info = classify(query, mariadb=self._mariadb, version=self._version)
        if info.category != "ddl" or info.temporary or (info.action is None and not info.problem):
            return
        if query.alter_phase in ("start", "rollback"):
            return
        file_position, fold = (self.cursor.file, end), self._fold
        for schema, table in info.tables or ():
            self.tables[fold(schema), fold(table)] = file_position
        if isinstance(info.action, DatabaseAction):
            self.schemas[fold(info.action.schema)] = file_position
        if isinstance(info.action, CreateDatabase | DropDatabase):
            self.schemas_changed = True
        if info.tables is None:
            self.any_table = file_position

    def _on_heartbeat(self, data: bytes, at: int, stop: int) -> None:
        """The server is idle, or has passed over what we have by GTID: it says how far it is."""
        (log_pos,) = struct.unpack_from("<I", data, at - 6)
        if log_pos:
            self._heard = self.cursor.file, self.cursor.high + log_pos
