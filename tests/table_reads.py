"""Tables read from a real server by the reader of snapshots: its settings, places in the binlog, and all rows."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from headrace.large_values import settled
from headrace.model import Position, Row, TableSchema
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.position.inventory import identity
from headrace.mysql.snapshot.reader import MysqlTableReader
from headrace.mysql.values.column_types import ValueOptions
from headrace.mysql.wire.connection import Server, SourceConnection, address_of
from headrace.ports.tables import Chunk, ChunkRequest
from headrace.settings.destination import SourceSettings
from tests.binlogs import declared

if TYPE_CHECKING:
    from tests.type_bench import Bench

LIMIT = 10_000
"""Chunks after which a table that never ends fails its test."""


def settings_of(server: Any, user: str = "root", password: str = "root", **more: Any) -> SourceSettings:
    return SourceSettings(host=server.host, port=server.port, user=user, password=SecretStr(password), **more)


async def server_of(source: SourceSettings) -> tuple[Server, Position]:
    """What a server says of itself, and the end of its binlog."""
    async with await SourceConnection.open(address_of(source)) as connection:
        variables = await connection.load_variables()
        server = Server(source, variables["version"], connection.is_mariadb, connection.has_gtids, 0)
        file, offset, gtids = await connection.binlog_end()
        return server, Position(identity(variables, connection.is_mariadb), file, offset, gtids)


async def reader_of(
    server: Any, options: ValueOptions | DecoderOptions | None = None, *, stream_of: Any = None, **settings: Any
) -> tuple[MysqlTableReader, Position]:
    """A reader of a server, and the end of the binlog of the one that the stream reads: the same, or `stream_of`."""
    source = settings_of(server, **settings)
    known, end = await server_of(settings_of(stream_of or server))
    if not isinstance(options, DecoderOptions):
        options = DecoderOptions(values=options or ValueOptions())
    reader = MysqlTableReader(source, known, "shop", options, stream_is_here=stream_of is None)
    return reader, end


async def chunks_of(reader: MysqlTableReader, request: ChunkRequest) -> list[tuple[Chunk, list[Row]]]:
    """All chunks of a table from the request on, with their rows, which are taken a few at a time."""
    found: list[tuple[Chunk, list[Row]]] = []
    for _ in range(LIMIT):
        chunk = await reader.read(request)
        rows: list[Row] = []
        while some := chunk.take(7):
            rows += settled(some)
        assert chunk.rows == 0
        found.append((chunk, rows))
        if chunk.last:
            return found
        request = replace(request, after=chunk.key)
    raise AssertionError("the table does not end")


async def rows_of(
    server: Any, table: TableSchema, options: ValueOptions | DecoderOptions | None = None, **request: Any
) -> list[Row]:
    """All rows of a table in the order in which they are read."""
    reader, end = await reader_of(server, options)
    try:
        chunks = await chunks_of(reader, ChunkRequest(table, end, **request))
    finally:
        await reader.close()
    return [row for _, rows in chunks for row in rows]


def rows_now(
    server: Any, table: TableSchema, options: ValueOptions | DecoderOptions | None = None, **request: Any
) -> list[Row]:
    """The same, for tests without a loop."""
    return asyncio.run(rows_of(server, table, options, **request))


def table(bench: Bench, columns: str, *values: str, more: str = "") -> TableSchema:
    """Makes a table anew, with a row for each of the values."""
    bench.run("DROP TABLE IF EXISTS t", f"CREATE TABLE t ({columns}) DEFAULT CHARSET utf8mb4 {more}")
    for value in values:
        bench.run(f"INSERT INTO t VALUES ({value})")
    return declared(bench.cursor, "types", "t")


def numbered(bench: Bench, count: int) -> TableSchema:
    """A table of so many rows with the keys 0, 1, 2 and so on."""
    made = table(bench, "id INT PRIMARY KEY, v VARCHAR(100)")
    bench.run("INSERT INTO t VALUES " + ", ".join(f"({i}, REPEAT('v', 100))" for i in range(count)))
    return made


def end_of(bench: Bench) -> tuple[str, int]:
    bench.cursor.execute("SHOW BINARY LOGS")
    file, size = bench.cursor.fetchall()[-1][:2]
    return file, int(size)
