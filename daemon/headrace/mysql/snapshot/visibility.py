"""Where in the binlog a read of a table belongs: what it certainly sees, and what it can't have seen.

A transaction is in the binlog first, and visible to others a moment later. So a read waits until what the stream has
given is visible, and what it shows is before the end of the binlog at a later time. No lock is needed."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod

from headrace import runtime
from headrace.errors import GrantMissing, SourceError, SourceMisconfigured
from headrace.model import Position, TableSchema
from headrace.mysql import heartbeat
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.heartbeat import NO_DATABASE, NO_TABLE, WATERMARK_SQL
from headrace.mysql.position.inventory import identity
from headrace.mysql.role import Role, server_role
from headrace.mysql.schema.states import FilePosition, reached
from headrace.mysql.schema.tables import literal
from headrace.mysql.sql.dialect import server_dialect
from headrace.mysql.wire.connection import QueryFailed, Server, SourceConnection, address_of, query_known
from headrace.mysql.wire.query_stream import QueryStream
from headrace.ports.tables import Watermark
from headrace.settings.destination import SourceSettings

_POLL = 0.004
"""Seconds between two checks of what is visible."""
_ROLE_SECONDS = 4.0
"""Seconds for which a result about the server's role is valid."""
_SINCE_57 = 50700
"""Before this version MySQL counts a transaction as executed while it is not visible yet."""


class Visibility(ABC):
    """The method to query a server. `control` is a connection other than the one that reads, with its variables
    loaded."""

    def __init__(self, control: SourceConnection, source: SourceSettings) -> None:
        self._control, self._source = control, source

    async def require(self) -> None:  # noqa: B027 - most ways need nothing that may be missing
        """Raises SourceMisconfigured if the method can't be used with the server, and other SourceErrors."""

    @abstractmethod
    async def begin(self, data: QueryStream, seen: Position, table: TableSchema) -> None:
        """Waits until every transaction before `seen` is visible to the next statement on `data`. Raises SourceError,
        also if that takes longer than connect_timeout."""

    @abstractmethod
    async def high(self) -> Watermark:
        """Returns what the read can't have seen: called when its first row has come, or later. Raises SourceError."""

    async def end(self, data: QueryStream) -> None:  # noqa: B027 - most reads need no end
        """Ends the read, after its whole result was taken."""

    async def close(self) -> None:  # noqa: B027 - most have no connection of their own
        """Closes what it has opened besides `control`."""

    async def _until(self, deadline: float, why: str) -> None:
        """Waits a moment; raises SourceError if `deadline` has passed."""
        if runtime.monotonic() > deadline:
            raise SourceError(f"{why} after {self._source.connect_timeout:g} s")
        await asyncio.sleep(_POLL)

    @property
    def _deadline(self) -> float:
        return runtime.monotonic() + self._source.connect_timeout

    def _require_same(self, seen: Position) -> None:
        """Checks the server: files and offsets of one mean nothing on another."""
        ours = identity(self._control.variables, self._control.is_mariadb)
        if seen.server_uuid and seen.server_uuid != ours:
            where = f"{self._source.host}:{self._source.port}"
            raise SourceError(f"{where} is {ours} now, and the stream reads from {seen.server_uuid}")


class ByGtid(Visibility):
    """MySQL with GTIDs: @@gtid_executed has a transaction once it is visible."""

    def __init__(self, control: SourceConnection, source: SourceSettings) -> None:
        super().__init__(control, source)
        self._last = ""

    async def begin(self, data: QueryStream, seen: Position, table: TableSchema) -> None:
        self._check(seen)
        if not seen.gtid_set or seen.gtid_set == self._last:
            return
        # A server that never got headrace's own rows has lost nothing, and will never get them.
        wanted, deadline = GtidSet(seen.gtid_set).minus(GtidSet(seen.own_gtids)), self._deadline
        while not (executed := GtidSet(await _global(self._control, "gtid_executed"))).contains(wanted):
            await self._until(deadline, f"transactions are still not visible ({wanted.minus(executed)})")
        self._last = seen.gtid_set

    def _check(self, seen: Position) -> None:
        self._require_same(seen)

    async def high(self) -> Watermark:
        file, offset, _ = await self._control.binlog_end()
        return Watermark(file, offset)


class OnReplica(ByGtid):
    """Another server than the stream's: only sets of GTIDs can be compared, not positions. Its own transactions, which
    the stream's server does not have, are ignored: the stream would never reach them."""

    def __init__(self, control: SourceConnection, source: SourceSettings, stream: SourceSettings) -> None:
        super().__init__(control, source)
        self._stream = stream
        self._seen = GtidSet()
        self._other: SourceConnection | None = None

    def _check(self, seen: Position) -> None:
        self._seen = GtidSet(seen.gtid_set)

    async def high(self) -> Watermark:
        shown = await _executed(self._control)
        unseen = shown.minus(self._seen)
        if unseen:
            if self._other is None:
                self._other = await SourceConnection.open(address_of(self._stream))
            shown = shown.minus(unseen.minus(await _executed(self._other)))
        return Watermark(gtid_set=str(shown))

    async def close(self) -> None:
        other, self._other = self._other, None
        if other is not None:
            await other.close()


async def _executed(connection: SourceConnection) -> GtidSet:
    """Returns the transactions that a server has, all visible ones included. One that is visible and does not count as
    executed yet is still owned, and the two change together: so the owned ones are queried first."""
    owned = re.sub(r"#\d+", "", await _global(connection, "gtid_owned"))
    return GtidSet(await _global(connection, "gtid_executed")).plus(GtidSet(owned))


class ByBarrier(Visibility):
    """MySQL without GTIDs: commits become visible in the order of the binlog, so once ours is visible, all before it
    are."""

    def __init__(self, control: SourceConnection, source: SourceSettings, destination: str) -> None:
        super().__init__(control, source)
        self._destination = destination
        self._role: Role | None = None
        self._role_at = 0.0
        self._filters = False

    async def begin(self, data: QueryStream, seen: Position, table: TableSchema) -> None:
        if not seen.file:  # without a stream any state of the table will do
            return
        self._require_same(seen)
        await self.require()
        await write_watermark(self._control, self._destination, self._source.user)

    async def high(self) -> Watermark:
        file, offset, _ = await self._control.binlog_end()
        return Watermark(file, offset)

    async def require(self) -> None:
        if self._role is None or runtime.monotonic() - self._role_at > _ROLE_SECONDS:
            await self._require_ordered()
            self._role, self._role_at = await server_role(self._control), runtime.monotonic()
        role, where = self._role, f"{self._source.host}:{self._source.port}"
        if role.replicates or role.read_only:
            raise SourceMisconfigured(
                f"{where} is {'a replica' if role.replicates else 'read-only'}: tables are read after a row that "
                "headrace writes, and its own source never gets what is written there",
                remedy=self._gtids("name a server in [source] that may be written"),
            )
        if role.replicates is None:
            raise SourceError(f"it can't be seen whether {where} is a replica ({role.why_unknown})")

    async def _require_ordered(self) -> None:
        """Raises SourceMisconfigured if the visibility of our commit would not imply that of earlier ones."""
        order = await _global(self._control, "binlog_order_commits")
        if order.upper() not in ("1", "ON"):
            raise SourceMisconfigured(
                "binlog_order_commits is OFF: what is visible does not follow the order of the binlog",
                remedy=self._gtids("SET GLOBAL binlog_order_commits = ON;"),
            )
        rows = await query_known(self._control, "SHOW BINARY LOG STATUS", "SHOW MASTER STATUS")
        status = {name.lower(): str(value or "") for name, value in (rows[0] if rows else {}).items()}
        only, not_these = status.get("binlog_do_db", ""), status.get("binlog_ignore_db", "")
        if (only and "headrace" not in only.split(",")) or "headrace" in not_these.split(","):
            raise SourceMisconfigured(
                "the source keeps changes of the schema headrace out of its binlog (binlog_do_db, binlog_ignore_db), "
                "and a table is read after such a change",
                remedy=self._gtids(
                    "in my.cnf: [mysqld] binlog_do_db = headrace, in addition to the others; then restart it"
                ),
            )

    def _gtids(self, otherwise: str) -> str:
        version = server_dialect(self._control.variables).version
        return otherwise if version < _SINCE_57 else f"set gtid_mode = ON on the source; or: {otherwise}"


class BySnapshot(Visibility):
    """MariaDB: a consistent snapshot has the binlog position at which it was taken."""

    def __init__(self, control: SourceConnection, source: SourceSettings) -> None:
        super().__init__(control, source)
        self._taken: FilePosition | None = None

    async def begin(self, data: QueryStream, seen: Position, table: TableSchema) -> None:
        self._require_same(seen)
        deadline = self._deadline
        while True:
            await data.query("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            place = await self._place(data)
            if not seen.file or reached(place, (seen.file, seen.offset)):
                break
            await data.query("COMMIT")
            await self._until(deadline, f"transactions up to {seen} are still not visible, only up to {place}")
        self._taken = place if await self._is_innodb(table) else None

    async def _place(self, data: QueryStream) -> FilePosition:
        rows = await data.query("SHOW STATUS LIKE 'binlog_snapshot_%'")
        facts = {(name or b"").decode().lower(): (value or b"").decode() for name, value in rows}
        file, offset = facts.get("binlog_snapshot_file", ""), facts.get("binlog_snapshot_position", "")
        if not file or not offset.isdigit():
            raise SourceError("the source does not say where in the binlog a snapshot was taken (binlog_snapshot_file)")
        return file, int(offset)

    async def _is_innodb(self, table: TableSchema) -> bool:
        """Returns whether a snapshot applies to the table: another engine shows its present rows."""
        rows = await self._control.query(
            f"SELECT ENGINE AS e FROM information_schema.TABLES WHERE TABLE_SCHEMA = {literal(table.schema)}"
            f" AND TABLE_NAME = {literal(table.table)}"
        )
        return bool(rows) and str(rows[0]["e"]).lower() == "innodb"

    async def high(self) -> Watermark:
        file, offset = self._taken or (await self._control.binlog_end())[:2]
        return Watermark(file, offset)

    async def end(self, data: QueryStream) -> None:
        await data.query("COMMIT")


def visibility_of(
    control: SourceConnection, source: SourceSettings, server: Server, destination: str, *, stream_is_here: bool
) -> Visibility:
    """Returns the method for the server of `control`; `server` is that of the stream. Raises SourceMisconfigured."""
    variables = control.variables
    version = server_dialect(variables).version
    gtids = variables.get("gtid_mode", "OFF").upper() == "ON" and not control.is_mariadb and version >= _SINCE_57
    if not stream_is_here:
        if not gtids or server.mariadb or not server.gtid_mode:
            raise SourceMisconfigured(
                f"tables can be read from another server ({source.host}:{source.port}) than the stream's only where "
                "both are MySQL 5.7 or later with GTIDs",
                remedy="set gtid_mode = ON on both; or have tables read from the source itself",
            )
        return OnReplica(control, source, server.settings)
    if control.is_mariadb:
        return BySnapshot(control, source)
    return ByGtid(control, source) if gtids else ByBarrier(control, source, destination)


async def _global(control: SourceConnection, name: str) -> str:
    rows = await control.execute(f"SELECT @@GLOBAL.{name}")
    return str(rows[0][0] if rows[0][0] is not None else "").replace("\n", "")


_NO_COLUMN = 1054
_WRITE = (
    "INSERT INTO headrace.watermark (destination, number) VALUES (%s, 1) ON DUPLICATE KEY UPDATE number = number + 1"
)


async def write_watermark(connection: SourceConnection, destination: str, user: str) -> None:
    """Commits a change of the destination's row, and creates the table if it is missing. Raises GrantMissing if the
    account may not, SourceError if the table is a different one, and other SourceErrors."""
    try:
        try:
            await connection.change(_WRITE, (destination,))
            return
        except QueryFailed as error:
            if error.errno not in (NO_DATABASE, NO_TABLE):
                raise
        for statement in WATERMARK_SQL:
            await connection.query(statement)
        await connection.change(_WRITE, (destination,))
    except GrantMissing as error:
        raise GrantMissing(
            f"tables are read after a row that our account may not write in headrace.watermark: {error.args[0]}",
            remedy=heartbeat.setup_sql(f"'{user}'@'%'", WATERMARK_SQL),
        ) from error
    except QueryFailed as error:
        if error.errno != _NO_COLUMN:
            raise
        raise SourceError(
            "the table headrace.watermark is another one than headrace makes",
            remedy="DROP TABLE headrace.watermark; headrace makes it again when it may",
        ) from error
