"""What a source has: its binlogs, its GTIDs, how long it keeps them, and how far our position is from being purged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import SourceError
from headrace.model import Position
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.position.heads import FileHeads
from headrace.mysql.wire.connection import SourceConnection
from headrace.ports.source import Retention

VARIABLES = (
    "version",
    "server_uuid",
    "server_id",
    "gtid_domain_id",
    "gtid_mode",
    "binlog_expire_logs_auto_purge",
    "binlog_expire_logs_seconds",
    "expire_logs_days",
)
"""What an inventory needs of the server's variables."""


@dataclass(frozen=True, slots=True)
class Binlog:
    """One file as SHOW BINARY LOGS lists it. A size of 0 means that it is listed and can't be opened."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """A source's binlogs at one moment. GTID sets are "" for MariaDB and with gtid_mode OFF."""

    server_uuid: str
    """The server's identity, as positions carry it."""
    version: str
    mariadb: bool
    gtid_mode: bool
    files: tuple[Binlog, ...]
    """Oldest first, at least one."""
    end: tuple[str, int]
    """File and offset of the end of the binlog."""
    executed: str
    purged: str
    expire_seconds: int
    """How long the server keeps a file by itself, in seconds; 0: for ever."""
    now: float = 0.0
    """The server's clock, in seconds since 1970."""

    def index(self, file: str) -> int | None:
        """The place of a file in `files`; None when it is not listed."""
        return next((i for i, binlog in enumerate(self.files) if binlog.name == file), None)

    def size(self, file: str) -> int:
        """Bytes of a file; 0 when it is not listed. Of the newest, up to the end of the binlog."""
        if file == self.end[0]:
            return self.end[1]
        at = self.index(file)
        return 0 if at is None else self.files[at].size

    @property
    def readable(self) -> tuple[Binlog, ...]:
        """The newest files without a hole: those behind the last one that is listed and not there."""
        holes = [i for i, binlog in enumerate(self.files) if binlog.size < 4]
        return self.files[holes[-1] + 1 :] if holes else self.files


def identity(variables: Mapping[str, str], mariadb: bool) -> str:
    """MySQL's server_uuid. MariaDB has none: its server id and GTID domain stand in."""
    uuid = variables.get("server_uuid") if not mariadb else None
    return uuid or f"mariadb-{variables.get('gtid_domain_id', '0')}-{variables.get('server_id', '0')}"


async def take_inventory(connection: SourceConnection) -> Inventory:
    """Asks a source what it has; loads the connection's variables when they are not. Raises SourceError."""
    variables = connection.variables or await connection.load_variables()
    mariadb = connection.is_mariadb
    gtid_mode = connection.has_gtids
    # The end is asked for first, so that it lies in what is listed afterwards.
    file, offset, executed = await connection.binlog_end()
    rows = await connection.query("SHOW BINARY LOGS")
    files = tuple(Binlog(str(row["Log_name"]), int(row["File_size"])) for row in rows)
    if not files:
        raise SourceError("the source lists no binlog")
    purged = ""
    if gtid_mode:
        purged = str((await connection.query("SELECT @@global.gtid_purged AS g"))[0]["g"] or "")
    now = (await connection.query("SELECT UNIX_TIMESTAMP(NOW(6)) AS t"))[0]["t"]
    return Inventory(
        server_uuid=identity(variables, mariadb),
        version=variables.get("version", "?"),
        mariadb=mariadb,
        gtid_mode=gtid_mode,
        files=files,
        end=(file, offset),
        executed=str(GtidSet(executed)) if gtid_mode else "",
        purged=str(GtidSet(purged)),
        expire_seconds=expire_seconds(variables),
        now=float(now),
    )


def expire_seconds(variables: Mapping[str, str]) -> int:
    """How long the server keeps binlogs by itself; 0 when it never purges them."""
    if variables.get("binlog_expire_logs_auto_purge", "ON").upper() in ("OFF", "0"):
        return 0
    seconds = _number(variables.get("binlog_expire_logs_seconds"))
    days = _number(variables.get("expire_logs_days"))  # gone in MySQL 8.4; a fraction in MariaDB
    return int(seconds or days * 86400)


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


async def retention(inventory: Inventory, position: Position, heads: FileHeads) -> Retention:
    """How far `position` is from being purged. `heads` is kept by the caller, so that a file's begin is read once.

    The server purges a file by the time of its last change, which is when the next one was begun. Raises SourceError
    and its kinds.
    """
    file, offset = position.file, position.offset
    if not file or position.server_uuid != inventory.server_uuid:
        if not (inventory.gtid_mode and position.gtid_set):
            return Retention()
        file, offset = await file_by_gtids(inventory, GtidSet(position.gtid_set), heads), 4
    at = inventory.index(file)
    if at is None:
        return Retention(0, 0.0, 0.0)
    before = sum(binlog.size for binlog in inventory.files[:at]) + min(offset, inventory.size(file))
    total = sum(inventory.size(binlog.name) for binlog in inventory.files)
    behind, newest = max(0, total - before), at == len(inventory.files) - 1
    expire = inventory.expire_seconds
    if not expire:
        return Retention(before, None, None if newest or not total else min(1.0, before / total), behind)
    if newest:
        return Retention(before, float(expire), 1.0, behind)
    following = inventory.files[at + 1]
    head = await heads.get(inventory.server_uuid, following.name, following.size)
    left = min(float(expire), max(0.0, head.begins + expire - inventory.now))
    return Retention(before, left, left / expire, behind)


async def file_by_gtids(inventory: Inventory, gtids: GtidSet, heads: FileHeads) -> str:
    """The newest file before which nothing was executed that is not in `gtids`, as the server finds it; "" when even
    before the oldest something was. A search by halves."""

    async def begins_within(binlog: Binlog) -> bool:
        head = await heads.get(inventory.server_uuid, binlog.name, binlog.size)
        return gtids.contains(head.gtids or GtidSet())

    at = await newest_where(inventory.files, begins_within)
    return inventory.files[at].name if at >= 0 else ""


async def newest_where(files: Sequence[Binlog], fits: Callable[[Binlog], Awaitable[bool]], least: int = -1) -> int:
    """The index of the newest file that fits, or `least`, which is not asked about. A search by halves: where a file
    fits, those before it do."""
    low, high = least, len(files) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if await fits(files[middle]):
            low = middle
        else:
            high = middle - 1
    return low
