"""The DDL between a position and the end of the binlog: which tables it may have changed, and where last."""

from __future__ import annotations

import contextlib
import math
import struct
from functools import partial
from typing import Any

from headrace import runtime
from headrace.errors import ContinuesElsewhere
from headrace.model import Position
from headrace.mysql.events.cursor import WRAP, EventCursor
from headrace.mysql.events.event_types import Does, handlers
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.events.query_event import QueryEvent, parse_compressed_query, parse_query
from headrace.mysql.events.splitter import EventSplitter
from headrace.mysql.schema.ddl.actions import CreateDatabase, DatabaseAction, DropDatabase
from headrace.mysql.schema.ddl.classify import LONG, classify
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.schema.states import FilePosition, reached
from headrace.mysql.wire.connection import SHORT_HEARTBEAT, Server, probe_id, short_dump
from headrace.mysql.wire.stream import ArchivedDump, Packets

_SAY_EVERY = 10.0


class DdlScan:
    """A separate dump from a position on, which reads only statements: every other event is skipped, known or not. Each
    statement is applied to the `history`, if there is one."""

    def __init__(
        self, server: Server, position: Position, log: Any = None, history: SchemaHistory | None = None
    ) -> None:
        self._server, self._position, self._log, self._history = server, position, log, history
        self._cursor = EventCursor(position.file, position.offset)
        self._not_before: FilePosition = history.file_position if history is not None else ("", 0)
        self._heard: FilePosition = ("", 0)
        self._tables: dict[tuple[str, str], FilePosition] = {}
        """The end of the last DDL of each table, by names as _fold() makes them."""
        self._first: dict[tuple[str, str], FilePosition] = {}
        """The end of the first."""
        self._schemas: dict[str, FilePosition] = {}
        self._any_table: FilePosition | None = None
        self._schemas_changed = False
        self._queries: list[tuple[QueryEvent, FilePosition]] = []
        """Statements that were not read yet, with where they end."""
        self._dump = contextlib.AsyncExitStack()
        self._stream: Packets | None = None
        self._archived: ArchivedDump | None = None
        """The stream while that comes from the archive."""
        self._data = b""
        self._splitter = EventSplitter(
            self._cursor,
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

    async def run_to(self, end: FilePosition, at_most: float = math.inf) -> bool:
        """Reads all statements up to `end`, which must be a position that the server has reached. Returns False if that
        takes more than `at_most` bytes from the server, counted over all calls; it has then stopped before `end`."""
        start = self._position.file, self._position.offset
        archives = self._server.archived is not None
        if self._stream is None and self._position.file and not archives and reached(start, end):
            return True
        stream = self._stream or await self._open()
        said, limit = runtime.monotonic(), 2 * SHORT_HEARTBEAT + self._server.settings.connect_timeout
        before = 0
        while self._archived is not None or not reached(self._reached(), end):
            if before + stream.bytes_received > at_most:
                return False
            try:
                self._data = await self._splitter.feed_from(stream, self._data, limit, lambda: False)
            except ContinuesElsewhere:
                before += stream.bytes_received
                stream = await self._go_on()
                continue
            queries, self._queries = self._queries, []
            for query, end_of_query in queries:
                await self._note(query, end_of_query)
            if self._log is not None and runtime.monotonic() - said > _SAY_EVERY:
                said = runtime.monotonic()
                self._log.info("searching for DDL after the position", at="{}:{}".format(*self._reached()), to=f"{end}")
        return True

    async def _open(self) -> Packets:
        position = self._position
        if self._server.archived is not None and (found := await self._server.archived(position)) is not None:
            self._dump.push_async_callback(found.close)
            self._cursor.checksums, self._stream, self._archived = found.checksums, found, found
            return found
        gtids = GtidSet(position.gtid_set).pack() if self._server.gtid_mode and position.gtid_set else None
        file, offset = ("", 4) if gtids is not None else (position.file, position.offset)
        if offset >= WRAP:  # the dump command has 32 bits for it
            self._not_before, offset = _latest(self._not_before, (file, offset)) or (file, offset), 4
            self._cursor.end, self._cursor.high = offset, 0
        return await self._dump_from(file, offset, gtids)

    async def _go_on(self) -> Packets:
        """Continues at the server, where the archive ends."""
        assert self._archived is not None
        gtids = None
        if self._server.gtid_mode and self._position.gtid_set:
            gtids = GtidSet(self._position.gtid_set).plus(GtidSet(await self._archived.executed())).pack()
        file, offset = ("", 4) if gtids is not None else self._archived.at
        if self._archived.foreign:
            self._not_before = "", 0  # an offset of the other server
        self._archived, self._data, self._heard = None, b"", ("", 0)
        self._cursor.file, self._cursor.end, self._cursor.high = file, offset, offset & -WRAP
        return await self._dump_from(file, offset, gtids)

    async def _dump_from(self, file: str, offset: int, gtids: bytes | None) -> Packets:
        settings = self._server.settings
        dump = short_dump(settings, probe_id(settings.server_id), file, offset, gtids=gtids)
        stream, connection = await self._dump.enter_async_context(dump)
        self._stream, self._cursor.checksums = stream, connection.writes_checksums
        return stream

    async def aclose(self) -> None:
        """Ends the dump."""
        await self._dump.aclose()

    @property
    def schemas_changed(self) -> bool:
        """Returns whether a schema was created or dropped."""
        return self._schemas_changed or self._any_table is not None

    def last_of_table(self, schema: str, table: str) -> FilePosition | None:
        """Returns the end of the last DDL that changed the table or may have; None for none."""
        folded = self._fold(schema)
        return _latest(self._tables.get((folded, self._fold(table))), self._schemas.get(folded), self._any_table)

    def first_of_table(self, schema: str, table: str) -> FilePosition | None:
        """Returns the end of the first DDL that changed the table or may have; None for none."""
        folded = self._fold(schema)
        found = [self._first.get(key) for key in ((folded, self._fold(table)), (folded, ""), ("", ""))]
        first: FilePosition | None = None
        for file_position in found:
            if file_position is not None and (first is None or reached(first, file_position)):
                first = file_position
        return first

    def last_of_schema(self, schema: str) -> FilePosition | None:
        """Returns the end of the last DDL that changed the schema or any of its tables, or may have; None for none."""
        folded = self._fold(schema)
        file_positions = [file_position for name, file_position in self._tables.items() if name[0] == folded]
        return _latest(*file_positions, self._schemas.get(folded), self._any_table)

    def _fold(self, name: str) -> str:
        """Returns the name as the server compares it."""
        return name.lower() if self._server.lower_case_table_names else name

    def _reached(self) -> FilePosition:
        """Returns up to where everything was read."""
        here = self._cursor.file, self._cursor.end
        return self._heard if self._heard[0] == here[0] and self._heard[1] > here[1] else here

    # -- events ---------------------------------------------------------------------------------------------------

    def _on_other(self, data: bytes, at: int, stop: int) -> None:
        """Reads statements only."""

    def _on_query(self, data: bytes, at: int, stop: int) -> None:
        if data[stop - 6 : stop] != b"\0BEGIN":
            self._take(parse_query(data, at, stop), at, stop)

    def _on_compressed_query(self, data: bytes, at: int, stop: int) -> None:
        self._take(parse_compressed_query(data, at, stop, self._server.settings.max_event), at, stop)

    def _take(self, query: QueryEvent, at: int, stop: int) -> None:
        end = self._cursor.file, self._cursor.end_of(at, stop)
        if not reached(self._not_before, end):
            # What another server's binlog has comes before all that this one's has.
            foreign = self._archived is not None and self._archived.foreign
            self._queries.append((query, ("", 0) if foreign else end))

    async def _note(self, query: QueryEvent, file_position: FilePosition) -> None:
        read = partial(classify, query, mariadb=self._server.mariadb, version=self._server.version)
        info = await runtime.in_thread(read) if len(query.text) > LONG else read()
        if self._history is not None:
            self._history.apply(query, file=file_position[0], end=file_position[1], pos=0, info=info)
        if info.category != "ddl" or info.temporary or (info.action is None and not info.problem):
            return
        if query.alter_phase in ("start", "rollback"):
            return
        for schema, table in info.tables or ():
            self._tables[self._fold(schema), self._fold(table)] = file_position
            self._first.setdefault((self._fold(schema), self._fold(table)), file_position)
        if isinstance(info.action, DatabaseAction):
            self._schemas[self._fold(info.action.schema)] = file_position
            self._first.setdefault((self._fold(info.action.schema), ""), file_position)
        if isinstance(info.action, CreateDatabase | DropDatabase):
            self._schemas_changed = True
        if info.tables is None:
            self._any_table = file_position
            self._first.setdefault(("", ""), file_position)

    def _on_heartbeat(self, data: bytes, at: int, stop: int) -> None:
        """Handles a heartbeat: the server is idle, or has skipped by GTID what we have; it reports its position."""
        (log_pos,) = struct.unpack_from("<I", data, at - 6)
        if log_pos:
            self._heard = self._cursor.file, self._cursor.high + log_pos


def _latest(*file_positions: FilePosition | None) -> FilePosition | None:
    latest: FilePosition | None = None
    for file_position in file_positions:
        if file_position is not None and (latest is None or reached(file_position, latest)):
            latest = file_position
    return latest
