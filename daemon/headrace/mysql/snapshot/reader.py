"""Reads tables of MySQL and MariaDB over two connections: one for the rows, one for their position in the binlog."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from headrace import runtime
from headrace.errors import (
    GrantMissing,
    HeadraceError,
    NotUnderstood,
    SourceError,
    SourceMisconfigured,
    SourceSilent,
    SourceUnreachable,
)
from headrace.model import TableSchema
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.heartbeat import SCHEMA as OWN_SCHEMA
from headrace.mysql.role import server_role
from headrace.mysql.schema.tables import literal
from headrace.mysql.snapshot.chunk import ChunkDecoder, MysqlChunk, ReadFacts
from headrace.mysql.snapshot.fit import differing
from headrace.mysql.snapshot.select import TableSelect, key_alone, quoted
from headrace.mysql.snapshot.visibility import Visibility, visibility_of
from headrace.mysql.sql.dialect import Dialect, dialect_of
from headrace.mysql.sql.tokens import NotParsed, tokenize
from headrace.mysql.values.charsets import UnknownType
from headrace.mysql.wire.connection import NOT_KNOWN, QueryFailed, Server, SourceConnection, address_of
from headrace.mysql.wire.grants import ask_lacks
from headrace.mysql.wire.query_stream import QueryStream, ResultColumn, RowBlock
from headrace.ports.tables import (
    Chunk,
    ChunkRequest,
    Key,
    Lacks,
    TableChanged,
    TableFacts,
    TableList,
    TableReader,
    Watermark,
)
from headrace.settings.destination import SourceSettings

_LOCK_SECONDS = 5
"""Seconds that a read waits for a table that a statement has locked."""
_IDLE_SECONDS = 28_800
"""Seconds that the server keeps our idle connections, whatever its own limit is."""
_CHANGED = frozenset({1049, 1054, 1146, 1412})
"""No such database, column or table, and a definition that changed since the snapshot was taken."""
_SORT_LENGTH = 1 << 16
"""Bytes of a value that rows are sorted by: a key has 3,072 at most, and some collations make several of each."""
_SYSTEM = ("mysql", "sys", "information_schema", "performance_schema", OWN_SCHEMA)
_TABLES = (
    "SELECT TABLE_SCHEMA AS s, TABLE_NAME AS t, COALESCE(TABLE_ROWS, 0) AS n, COALESCE(DATA_LENGTH, 0) AS size"
    " FROM information_schema.TABLES WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')"
    f" AND TABLE_SCHEMA NOT IN ({', '.join(map(repr, _SYSTEM))})"
)
_KILL_LIMIT = 3.0
"""Maximum seconds for KILL."""
_SEARCH_SECONDS = 2.0
"""Seconds that a server may search for a chunk of rows that meet a condition; with a suitable index it finds them at
once."""
_SEARCH_AGAIN = 20
"""It is not retried for this many times as long: the cost is then small compared to what was saved."""
_SILENCE = 60.0
"""Seconds without a byte of a chunk after which the read is abandoned."""
_KEPT = 100
"""Tables whose decoders are kept."""


@dataclass(slots=True)
class _Prepared:
    """The prepared statements and decoder for reading one table."""

    request: ChunkRequest
    select: TableSelect
    decoder: ChunkDecoder
    search_from: float = 0.0
    """Until then (monotonic clock) the server is not asked for the next rows that meet the condition, because it takes
    long to find them."""

    def fits(self, request: ChunkRequest) -> bool:
        """Returns whether it is for the same table, columns and condition."""
        ours = self.request
        same = ours.table is request.table or ours.table == request.table
        return same and (ours.columns, ours.where) == (request.columns, request.where)


@dataclass(frozen=True, slots=True)
class _Read:
    """Received rows, and the columns of the result. `upto`: see ReadFacts."""

    shown: Sequence[ResultColumn]
    block: RowBlock
    last: bool
    upto: Key | None = None


@dataclass(slots=True)
class _Scan:
    """The one statement of a table without a key, and what its chunks share."""

    prepared: _Prepared
    high: Watermark


class MysqlTableReader(TableReader):
    """The reader. `source` is the server that is read, `server` that of the stream, `stream_is_here` whether they are
    the same. `destination` names our row in headrace.watermark, if one is needed."""

    def __init__(
        self, source: SourceSettings, server: Server, destination: str, options: DecoderOptions, stream_is_here: bool
    ) -> None:
        self._source, self._server, self._destination = source, server, destination
        self._options, self._stream_is_here = options, stream_is_here
        self._lock = asyncio.Lock()
        self._control: SourceConnection | None = None
        self._data: QueryStream | None = None
        self._thread = 0
        """The server's number of that connection."""
        self._visibility: Visibility | None = None
        self._scan: _Scan | None = None
        self._prepared: dict[tuple[str, str], _Prepared] = {}
        self._row_sizes: dict[tuple[str, str], float] = {}
        """Bytes of a row in the last chunk of a table, so that the next one requests no more rows than fit."""

    async def tables(self) -> TableList:
        async with self._turn():
            if self._stream_is_here:
                return await _list_tables(await self._ask())
            # What a replica does not have yet, or no longer has, would be silently omitted.
            async with await SourceConnection.open(address_of(self._server.settings)) as connection:
                await connection.load_variables()
                return await _list_tables(connection)

    async def why_unlisted(self, schema: str, table: str) -> tuple[str, str]:
        name = f"{schema}.{table}"
        async with self._turn():
            control = await self._ask()
            where = f"TABLE_SCHEMA = {literal(schema)} AND TABLE_NAME = {literal(table)}"
            rows = await control.query(f"SELECT TABLE_TYPE AS kind FROM information_schema.TABLES WHERE {where}")
            if rows and "VIEW" in str(rows[0]["kind"]):
                return f"{name} is a view: it has no rows of its own", "give the tables that it shows"
            try:
                await control.query(f"SELECT 1 FROM {quoted(schema)}.{quoted(table)} LIMIT 0")
            except GrantMissing as error:  # without a right on the schema nobody learns whether there is a table
                return f"the account {self._source.user} may not read {name}, if there is such a table", error.remedy
            except QueryFailed:
                pass
            return f"the source has no table {name}", "check its name; upper and lower case may count"

    async def lacks(self) -> Lacks:
        async with self._turn():
            return await ask_lacks(await self._ask())

    async def require(self) -> None:
        async with self._turn():
            await (await self._way()).require()

    async def load(self) -> tuple[float, int]:
        async with self._turn():
            control = await self._ask()
            role = await server_role(control)
            rows = await control.query("SHOW GLOBAL STATUS LIKE 'Threads_running'")
        lag = role.lag_seconds
        if lag is None:  # the lag of a replica that does not run is unknown
            lag = math.inf if role.replicates else 0.0
        return lag, int(rows[0]["Value"]) if rows else 0

    async def read(self, request: ChunkRequest) -> Chunk:
        async with self._turn():
            prepared = self._prepare(request)
            if not request.table.keys:
                return await self._scan_on(request, prepared)
            self._scan = None
            return await self._read(request, prepared)

    async def _silent(self, error: SourceUnreachable, request: ChunkRequest) -> SourceError:
        """Returns the error for silence: the cause is the condition, if the server answers without it."""
        if request.where and isinstance(error.__cause__, SourceSilent) and await self._passes(request):
            text = f"no row of {request.table.name} came within {_SILENCE:g} s: its condition takes the source too long"
            return SourceMisconfigured(text, retriable=False)
        return error

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Allows one request at a time; after an error the next one opens new connections."""
        async with self._lock:
            try:
                yield
            except BaseException:
                await self.close()
                raise

    async def _read(self, request: ChunkRequest, prepared: _Prepared) -> Chunk:
        data, visibility = await self._begin(request)
        began, read = runtime.monotonic(), None
        if began >= prepared.search_from:
            read = await self._search(data, request, prepared)
            if read is None:
                data, visibility = await self._begin(request)
                began = runtime.monotonic()
        if read is None:
            read = await self._next_range(data, request, prepared.select)
        seconds = runtime.monotonic() - began
        self._note_size(request, read.block)
        if read.block.ended:
            await visibility.end(data)
        else:
            await self._drop_data()
        order = prepared.select.order_of(read.shown)
        facts = ReadFacts(read.last, await visibility.high(), False, seconds, request.after, order, read.upto)
        return MysqlChunk(read.block, prepared.decoder, facts)

    async def _begin(self, request: ChunkRequest) -> tuple[QueryStream, Visibility]:
        """Prepares a statement that sees everything that it must."""
        data, visibility = await self._connect()
        await visibility.begin(data, request.seen, request.table)
        return data, visibility

    async def _search(self, data: QueryStream, request: ChunkRequest, prepared: _Prepared) -> _Read | None:
        """Returns the next rows; None if the server takes long to find those that meet the condition, and `data` is
        closed then."""
        limit = _SEARCH_SECONDS if request.where and request.rows else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                return await self._next_rows(data, request, prepared.select)
        prepared.search_from = runtime.monotonic() + _SEARCH_AGAIN * _SEARCH_SECONDS
        await self._drop_data()
        return None

    async def _next_rows(self, data: QueryStream, request: ChunkRequest, select: TableSelect) -> _Read:
        limit = self._limit(request)
        shown = await self._start(data, request, select, select.sql(request.after, limit))
        block = await self._rows(data, request, limit + 1)  # one more than can come, so that the end is read too
        return _Read(shown, block, block.ended and block.rows < limit)

    async def _next_range(self, data: QueryStream, request: ChunkRequest, select: TableSelect) -> _Read:
        """Returns those of the next rows that meet the condition, so that the server examines at most a chunk of
        them."""
        try:
            boundary = await data.query(select.boundary(request.after, request.rows))
        except QueryFailed as error:
            raise await self._meaning(error, request) from error
        upto = key_alone(boundary[0]) if boundary else None
        shown = await self._start(data, request, select, select.within(request.after, upto))
        block = await self._rows(data, request, request.rows + 1)
        return _Read(shown, block, block.ended and upto is None, upto if block.ended else None)

    def _limit(self, request: ChunkRequest) -> int:
        """Returns how many rows to request: rows that do not fit are sent for nothing, and cost a connection."""
        row_size = self._row_sizes.get((request.table.schema, request.table.table), 0.0)
        if row_size * request.rows <= request.size:
            return request.rows
        return max(1, min(request.rows, int(0.9 * request.size / row_size)))

    def _note_size(self, request: ChunkRequest, block: RowBlock) -> None:
        if len(self._row_sizes) > _KEPT:
            self._row_sizes.clear()
        if block.rows:
            self._row_sizes[request.table.schema, request.table.table] = block.size / block.rows

    async def _scan_on(self, request: ChunkRequest, prepared: _Prepared) -> Chunk:
        """Returns the next chunk of a table without a key."""
        scan, began = self._scan, runtime.monotonic()
        data, visibility = self._data, self._visibility
        going_on = scan is not None and scan.prepared.fits(request) and not request.again
        if scan is None or not going_on or data is None or visibility is None:
            self._scan = None
            data, visibility = await self._begin(request)
            began = runtime.monotonic()
            await self._start(data, request, prepared.select, prepared.select.sql(request.after, request.rows))
            block = await self._rows(data, request, request.rows)
            scan = self._scan = _Scan(prepared, await visibility.high())
        else:
            block = await self._rows(data, request, request.rows)
        seconds = runtime.monotonic() - began
        if block.ended:
            self._scan = None
            await visibility.end(data)
        facts = ReadFacts(block.ended, scan.high, going_on, seconds, None, "")
        return MysqlChunk(block, prepared.decoder, facts)

    def _prepare(self, request: ChunkRequest) -> _Prepared:
        name = request.table.schema, request.table.table
        known = self._prepared.get(name)
        if known is not None and known.fits(request):
            return known
        dialect = dialect_of(self._server.version, mariadb=self._server.mariadb)
        if request.where and (why := _what_is_wrong(request.where, request.table, dialect)):
            raise _no_condition(request.table.name, why)
        select = TableSelect(request.table, request.columns, request.where)
        try:
            decoder = ChunkDecoder(
                select, self._options.values, self._options.undecodable, self._options.skip_broken_tables
            )
        except UnknownType as error:
            raise NotUnderstood(f"table {request.table.name} can't be read: {error}") from error
        if len(self._prepared) >= _KEPT:
            self._prepared.clear()
        made = self._prepared[name] = _Prepared(request, select, decoder)
        return made

    async def _start(
        self, data: QueryStream, request: ChunkRequest, select: TableSelect, sql: str
    ) -> list[ResultColumn]:
        """Runs a SELECT up to its first row, compares the columns of its result with the table schema, and returns
        them."""
        table = request.table
        try:
            shown = await data.start(sql, _SILENCE)
        except QueryFailed as error:
            raise await self._meaning(error, request) from error
        except SourceUnreachable as error:
            raise await self._silent(error, request) from error
        why = differing([table.columns[i] for i in select.present], shown)
        if why:
            raise TableChanged(f"{table.name}: {why}")
        return shown

    async def _rows(self, data: QueryStream, request: ChunkRequest, rows: int) -> RowBlock:
        try:
            return await data.rows(rows, request.size, _SILENCE)
        except QueryFailed as error:
            raise await self._meaning(error, request) from error
        except SourceUnreachable as error:
            raise await self._silent(error, request) from error

    async def _meaning(self, error: QueryFailed, request: ChunkRequest) -> Exception:
        """Returns the error for a refused SELECT."""
        table, chosen = request.table.name, bool(request.where)
        if chosen and (error.errno == NOT_KNOWN or await self._passes(request)):
            return _no_condition(table, str(error))
        return TableChanged(f"{table}: {error}") if error.errno in _CHANGED else error

    async def _passes(self, request: ChunkRequest) -> bool:
        """Returns whether the table can be read without the condition."""
        try:
            await (await self._ask()).query(self._prepare(request).select.probe())
        except QueryFailed:
            return False
        return True

    async def _ask(self) -> SourceConnection:
        """Returns the connection for queries, opened if necessary."""
        if self._control is None:
            control = await SourceConnection.open(address_of(self._source))
            try:
                await control.load_variables()
                await control.limit_waits(_LOCK_SECONDS, f"wait_timeout = {_IDLE_SECONDS}")
            except BaseException:
                await control.close()
                raise
            self._control = control
        return self._control

    async def _connect(self) -> tuple[QueryStream, Visibility]:
        """Returns both connections, ready for a read."""
        control, visibility = await self._ask(), await self._way()
        if self._data is not None and not self._data.idle:
            await self._drop_data()
        if self._data is None:
            connection = await SourceConnection.open(address_of(self._source))
            try:
                data = QueryStream.of(connection, self._source.user)
            except BaseException:
                await connection.close()
                raise
            self._data, self._thread = data, connection.thread
            for statement in _session(control.variables):
                await data.query(statement, self._source.connect_timeout)
            await self._require_same(control, data)
        return self._data, visibility

    async def _way(self) -> Visibility:
        """Returns the method for this server."""
        if self._visibility is None:
            self._visibility = visibility_of(
                await self._ask(), self._source, self._server, self._destination, stream_is_here=self._stream_is_here
            )
        return self._visibility

    async def _require_same(self, control: SourceConnection, data: QueryStream) -> None:
        """Checks that both connections are to the same server: an address may lead to different ones."""
        names = ("gtid_domain_id", "server_id") if control.is_mariadb else ("server_uuid",)
        shown = await data.query(f"SELECT {', '.join(f'@@GLOBAL.{name}' for name in names)}")
        if [(value or b"").decode() for value in shown[0]] != [control.variables.get(name, "") for name in names]:
            raise SourceError(f"two servers answer at {self._source.host}:{self._source.port}")

    async def _drop_data(self) -> None:
        data, self._data = self._data, None
        if data is None:
            return
        runs = data.running
        await data.close()
        if runs:  # a server that finds no row to send does not notice a closed connection
            with contextlib.suppress(HeadraceError, TimeoutError):
                async with asyncio.timeout(_KILL_LIMIT), await SourceConnection.open(address_of(self._source)) as other:
                    await other.query(f"KILL {self._thread}")

    async def close(self) -> None:
        self._scan = None
        control, self._control = self._control, None
        visibility, self._visibility = self._visibility, None
        try:
            await self._drop_data()
        finally:  # also if this is cancelled
            try:
                if visibility is not None:
                    await visibility.close()
            finally:
                if control is not None:
                    await control.close()


def _no_condition(table: str, why: str) -> SourceMisconfigured:
    """Returns the error for an operator's condition: a retry can't help."""
    return SourceMisconfigured(f"the condition on {table} is none that the source takes: {why}", retriable=False)


async def _list_tables(connection: SourceConnection) -> TableList:
    (clock,) = (await connection.execute("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)"))[0]
    rows = await connection.query(_TABLES)
    file, offset, _ = await connection.binlog_end()
    facts = [TableFacts(str(row["s"]), str(row["t"]), int(row["n"]), int(row["size"])) for row in rows]
    return TableList(sorted(facts, key=lambda fact: (fact.schema, fact.table)), Watermark(file, offset), int(clock))


def _what_is_wrong(condition: str, table: TableSchema, dialect: Dialect) -> str:
    """Returns why a text is not one condition on rows of the table, within the parentheses that are added; "" if it
    is."""
    depth, columns, named = 0, {column.name.lower() for column in table.columns}, False
    try:
        for token in tokenize(condition, dialect):
            if token.kind == "op" and token.value in "()":
                depth += 1 if token.value == "(" else -1
            if depth < 0:
                break
            if token.kind == "op" and token.value == ";":
                return "it has a ;"
            named |= token.kind in ("word", "name") and token.value.lower() in columns
    except NotParsed as error:
        return str(error)
    if depth:
        return "its brackets do not pair"
    if condition.rstrip().endswith(";"):  # the tokens do not contain it
        return "it has a ;"
    return "" if named else "it names no column of the table; for all rows give none"


def _session(variables: Mapping[str, str]) -> list[str]:
    """Returns settings for a session that reads values unchanged: texts in the bytes of their own character sets, times
    in UTC."""
    settings = [
        *("time_zone = '+00:00'", "sql_mode = ''", "character_set_results = NULL", "net_write_timeout = 600"),
        *(f"lock_wait_timeout = {_LOCK_SECONDS}", f"wait_timeout = {_IDLE_SECONDS}", "sql_select_limit = DEFAULT"),
        # If rows are sorted, for example by a prefix key, the order must be that of the whole key.
        *(f"max_sort_length = {_SORT_LENGTH}", f"sort_buffer_size = {64 * _SORT_LENGTH}"),
    ]
    settings += [f"{name} = 0" for name in ("max_execution_time", "max_statement_time") if name in variables]
    return [f"SET SESSION {', '.join(settings)}", "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"]
