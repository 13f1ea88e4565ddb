"""Reads table schemas from information_schema and proves by the binlog from which position on they are valid."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterable
from typing import Any

from headrace.errors import SourceError
from headrace.model import Position
from headrace.mysql.schema.gap import DdlScan
from headrace.mysql.schema.history import Reading, SchemaHistory
from headrace.mysql.schema.states import UNREAD, FilePosition, reached
from headrace.mysql.schema.tables import SCHEMAS_SQL, TABLES_SQL, read_tables
from headrace.mysql.sql.dialect import Dialect, charset_named, dialect_of
from headrace.mysql.wire.connection import QueryFailed, Server, SourceConnection, address_of
from headrace.mysql.wire.grants import ask_lacks

TRIES = 4
"""Attempts to read a table that statements keep changing meanwhile."""
_LOCK_SECONDS = 5
"""Seconds that the reading waits for a table that a statement has locked."""
_AT_ONCE = 50
"""Tables opened by one statement."""
_SYSTEM = frozenset({"information_schema", "performance_schema"})

Names = set[tuple[str, str]]


async def read_schemas(
    server: Server,
    position: Position,
    captures: Callable[[str, str], bool],
    history: SchemaHistory,
    log: Any = None,
    *,
    scan_limit: float = math.inf,
) -> Reading:
    """Returns the schemas of captured base tables that `history` does not know yet, and which tables and schemas exist.

    `position` is where the stream will begin, or the start of its transaction. If nothing is left to read, the binlog
    is not scanned. If more than `scan_limit` bytes of it had to be scanned, the reading is valid only from the end of
    the binlog on, as it was at the beginning. Raises SourceError and its subclasses."""
    dialect = dialect_of(server.version, mariadb=server.mariadb)
    reader = _Reader(captures, history, dialect)
    async with (
        await SourceConnection.open(address_of(server.settings)) as connection,
        contextlib.aclosing(DdlScan(server, position, log)) as scan,
    ):
        await prepare(connection, dialect)
        reading = await reader.read(connection, scan, scan_limit)
        if reading is not None:
            return reading
        file, offset, _ = await connection.binlog_end()
        if log is not None:
            log.info(
                "the table schemas that the source shows hold from the end of the binlog on", end=f"{file}:{offset}"
            )
        async with contextlib.aclosing(DdlScan(server, Position(position.server_uuid, file, offset), log)) as rest:
            reading = await reader.read(connection, rest)
        assert reading is not None
        reading.since = file, offset
        return reading


class _Reader:
    """One reading, repeated while DDL happens during it."""

    def __init__(self, captures: Callable[[str, str], bool], history: SchemaHistory, dialect: Dialect) -> None:
        self._captures, self._history, self._dialect = captures, history, dialect

    async def read(self, connection: SourceConnection, scan: DdlScan, at_most: float = math.inf) -> Reading | None:
        """Returns None if the scan of the existing binlog would take more than `at_most` bytes."""
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(0.3 * attempt)
            before = (await connection.binlog_end())[:2]
            listed = await self._list(connection)
            schemas = await connection.query(SCHEMAS_SQL)
            wanted = {name for name in listed if self._captures(*name) and not self._history.knows(*name)}
            if not wanted and not self._lacks_lists(str(row["s"]) for row in schemas):
                return Reading()
            if not await scan.run_to(before, at_most):
                return None
            reading = await read_whole(connection, wanted, self._dialect)
            reading.at = before
            reading.unknown |= dict.fromkeys(listed - wanted, UNREAD)
            reading.schemas = {
                str(row["s"]): (charset_named(str(row["charset"])), None)
                for row in schemas
                if str(row["s"]).lower() not in _SYSTEM
            }
            await scan.run_to((await connection.binlog_end())[:2])
            if not self._date(reading, scan, before, final=attempt == TRIES - 1):
                return reading
        raise AssertionError("the last try is final")

    def _lacks_lists(self, schemas: Iterable[str]) -> bool:
        history = self._history
        return not history.listed or not all(history.complete(s) for s in schemas if s.lower() not in _SYSTEM)

    async def _list(self, connection: SourceConnection) -> Names:
        rows = await connection.query(TABLES_SQL)
        return {(str(row["s"]), str(row["t"])) for row in rows if str(row["s"]).lower() not in _SYSTEM}

    def _date(self, reading: Reading, scan: DdlScan, before: FilePosition, *, final: bool) -> bool:
        """Sets from where each part of the reading is valid. Returns whether it must be read again, because of DDL
        between its beginning and its end; in the last attempt that part is omitted."""
        torn = False
        for name, (definition, _) in list(reading.tables.items()):
            file_position = scan.last_of_table(*name)
            if file_position is not None and not reached(before, file_position):
                torn = True
                del reading.tables[name]
                reading.unknown[name] = "statements kept changing it while table schemas were read"
            else:
                reading.tables[name] = definition, file_position
                if (first := scan.first_of_table(*name)) is not None:
                    reading.untouched[name] = first
        for schema, (charset, _) in list(reading.schemas.items()):
            file_position = scan.last_of_schema(schema)
            if file_position is not None and not reached(before, file_position):
                torn = True
                del reading.schemas[schema]
            else:
                reading.schemas[schema] = charset, file_position
        reading.listed = not scan.schemas_changed and not torn
        return torn and not final


async def prepare(connection: SourceConnection, dialect: Dialect, wait: int | None = None) -> None:
    """Makes a session wait this many seconds for a locked table, and show primary keys that MySQL has generated."""
    await connection.query(f"SET SESSION lock_wait_timeout = {wait or _LOCK_SECONDS}")
    if not dialect.mariadb and dialect.version >= 80030:
        await connection.query("SET SESSION show_gipk_in_create_table_and_information_schema = ON")


async def read_whole(connection: SourceConnection, wanted: Names, dialect: Dialect) -> Reading:
    """Returns the tables as they are when every statement about them that has begun is over."""
    lacks, reading = await ask_lacks(connection), Reading()
    for name in sorted(wanted):  # with rights on some columns only those are shown, as if there were no others
        if grant := lacks(*name):
            reading.unknown[name] = f"our account may not read whole rows of it ({grant})"
    wanted = wanted - reading.unknown.keys()
    failed = await _wait_for_statements(connection, wanted)
    async for name, read in read_tables(connection.query, wanted, dialect):
        if isinstance(read, str):
            reading.unknown[name] = read
        else:
            reading.tables[name] = read, None
        await asyncio.sleep(0)  # other destinations share the loop
    failed |= await _wait_for_statements(connection, wanted)
    for name, why in failed.items():
        reading.tables.pop(name, None)
        reading.unknown[name] = why
    return reading


async def _wait_for_statements(connection: SourceConnection, names: Names) -> dict[tuple[str, str], str]:
    """Opens each table once. A DDL keeps its table locked from before its change is visible until it is both in the
    binlog and committed, so statements that began before are over afterwards. Returns the tables that can't be
    opened."""
    failed = {}
    ordered = sorted(names)
    for i in range(0, len(ordered), _AT_ONCE):
        part = ordered[i : i + _AT_ONCE]
        try:
            await connection.query(" UNION ALL ".join(_open(name) for name in part))
        except QueryFailed:
            for name in part:
                try:
                    await connection.query(_open(name))
                except SourceError as error:
                    if not isinstance(error, QueryFailed) and error.retriable:
                        raise
                    failed[name] = f"the server does not let us open it ({error})"
    return failed


def _open(name: tuple[str, str]) -> str:
    schema, table = (part.replace("`", "``") for part in name)
    return f"(SELECT 1 FROM `{schema}`.`{table}` LIMIT 0)"
