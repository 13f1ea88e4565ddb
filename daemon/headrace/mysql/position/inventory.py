"""The inventory of a source: its binlogs, its GTIDs, its retention, and how far our position is from being purged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from headrace.errors import ArchiveError, SourceError
from headrace.model import Position
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.packets import OlderFiles
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.position.heads import FileHeads
from headrace.mysql.wire.connection import SourceConnection
from headrace.ports.source import Retention

log = structlog.get_logger(__name__)

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
"""The server variables that an inventory needs."""


@dataclass(frozen=True, slots=True)
class Binlog:
    """One file as in SHOW BINARY LOGS. A size of 0 means that it is listed and can't be opened."""

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
    """How long the server keeps a file, in seconds; 0: forever."""
    now: float = 0.0
    """The server's clock, in seconds since 1970."""
    older: OlderFiles | None = None
    """Those of `files` that only the archive has."""

    def index(self, file: str) -> int | None:
        """Returns the index of a file in `files`; None if it is not listed."""
        return next((i for i, binlog in enumerate(self.files) if binlog.name == file), None)

    def size(self, file: str) -> int:
        """Returns the bytes of a file; 0 if it is not listed. For the newest, up to the end of the binlog."""
        if file == self.end[0]:
            return self.end[1]
        at = self.index(file)
        return 0 if at is None else self.files[at].size

    @property
    def readable(self) -> tuple[Binlog, ...]:
        """Returns the newest files without a gap: those after the last one that is listed and missing."""
        holes = [i for i, binlog in enumerate(self.files) if binlog.size < 4]
        return self.files[holes[-1] + 1 :] if holes else self.files


def identity(variables: Mapping[str, str], mariadb: bool) -> str:
    """Returns MySQL's server_uuid. MariaDB has none: its server id and GTID domain replace it."""
    uuid = variables.get("server_uuid") if not mariadb else None
    return uuid or f"mariadb-{variables.get('gtid_domain_id', '0')}-{variables.get('server_id', '0')}"


async def take_inventory(connection: SourceConnection) -> Inventory:
    """Returns a source's inventory; loads the connection's variables if necessary. Raises SourceError."""
    variables = connection.variables or await connection.load_variables()
    mariadb = connection.is_mariadb
    gtid_mode = connection.has_gtids
    # The end is queried first, so that it is within what is listed afterwards.
    file, offset, executed = await connection.binlog_end()
    rows = await connection.query("SHOW BINARY LOGS")
    files = tuple(Binlog(str(row["Log_name"]), int(row["File_size"])) for row in rows)
    if not files:
        raise SourceError("the source lists no binlog")
    purged = "@@global.gtid_purged" if gtid_mode else "''"
    rest = (await connection.query(f"SELECT UNIX_TIMESTAMP() AS now, {purged} AS purged"))[0]
    return Inventory(
        server_uuid=identity(variables, mariadb),
        version=variables.get("version", "?"),
        mariadb=mariadb,
        gtid_mode=gtid_mode,
        files=files,
        end=(file, offset),
        executed=str(GtidSet(executed)) if gtid_mode else "",
        purged=str(GtidSet(str(rest["purged"] or ""))),
        expire_seconds=expire_seconds(variables),
        now=float(rest["now"]),
    )


async def with_archive(inventory: Inventory, archive: Archive | None, heads: FileHeads) -> Inventory:
    """Returns the inventory with the archived files that precede those of the source, unless the archive can't be
    read. Raises SourceError."""
    if archive is None:
        return inventory
    try:
        await archive.refresh()
    except ArchiveError as error:
        log.warning("the archive can't be read", error=error.operator_text())
        return inventory
    line, oldest = archive.lines[-1] if archive.lines else None, inventory.readable[0]
    at = line.index_of(oldest.name) if line is not None and line.server == inventory.server_uuid else None
    if line is None or not at:
        return inventory
    head, ours = await heads.get(inventory.server_uuid, oldest.name, oldest.size), line.files[at]
    if head.begins != ours.begun or (head.gtids is not None and str(head.gtids) != ours.gtids):
        return inventory  # the server was reset, and the archive does not know it yet
    older = line.files[:at]
    return replace(
        inventory,
        files=(*(Binlog(file.name, file.size) for file in older), *inventory.readable),
        purged=older[0].gtids if inventory.gtid_mode else "",
        older=OlderFiles(archive, line.number, frozenset(file.name for file in older)),
    )


def expire_seconds(variables: Mapping[str, str]) -> int:
    """Returns how long the server keeps binlogs, in seconds; 0 if it never purges them."""
    if variables.get("binlog_expire_logs_auto_purge", "ON").upper() in ("OFF", "0"):
        return 0
    seconds = _number(variables.get("binlog_expire_logs_seconds"))
    days = _number(variables.get("expire_logs_days"))  # removed in MySQL 8.4; a fraction in MariaDB
    return int(seconds or days * 86400)


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


async def retention(inventory: Inventory, position: Position, heads: FileHeads) -> Retention:
    """Returns how far `position` is from being purged. The caller keeps `heads`, so that a file's begin is read once.

    The server purges a file by the time of its last change, which is when the next one was begun. Raises SourceError
    and its subclasses."""
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
    """Returns the newest file before which everything executed is in `gtids`, as the server finds it; "" if that is not
    true even for the oldest. A binary search."""

    async def begins_within(binlog: Binlog) -> bool:
        head = await heads.get(inventory.server_uuid, binlog.name, binlog.size)
        return gtids.contains(head.gtids or GtidSet())

    at = await newest_where(inventory.files, begins_within)
    return inventory.files[at].name if at >= 0 else ""


async def newest_where(files: Sequence[Binlog], fits: Callable[[Binlog], Awaitable[bool]], least: int = -1) -> int:
    """Returns the index of the newest file that fits, or `least`, which is not checked. A binary search: if a file
    fits, those before it do."""
    low, high = least, len(files) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if await fits(files[middle]):
            low = middle
        else:
            high = middle - 1
    return low
