"""The other readers of a source, and our own server id there."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass

import structlog

from headrace import runtime
from headrace.errors import ServerIdTaken, SourceMisconfigured
from headrace.mysql.sql.dialect import server_dialect
from headrace.mysql.wire.connection import NOT_KNOWN, QueryFailed, ReplicaName, SourceConnection, probe_id, query_known
from headrace.settings.destination import SourceSettings
from headrace.settings.load import derive_server_id

log = structlog.get_logger(__name__)

_NAMESPACE = uuid.UUID("5b0a6b0e-6c1c-5b0f-9d0e-0d4f1a5a7c11")
_NAME_BYTES = 60
"""The maximum length of a replica's host for MariaDB and older versions of MySQL."""
_CANDIDATES = 100
_SHOWN = 5
"""Connections that a sentence names."""
_UUIDS = (
    "SELECT t.processlist_id AS id, CAST(v.variable_value AS CHAR) AS uuid"
    " FROM performance_schema.user_variables_by_thread v JOIN performance_schema.threads t USING (thread_id)"
    " WHERE v.variable_name IN ('slave_uuid', 'replica_uuid')"
)


@dataclass(frozen=True, slots=True)
class Replica:
    """A registered reader. All but the server id is what it reported, and may be empty."""

    server_id: int
    host: str
    port: int
    uuid: str
    """MySQL's identity of replicas; MariaDB does not show it."""


@dataclass(frozen=True, slots=True)
class DumpConnection:
    """A connection that reads the binlog, as the server sees it. `uuid` is None if it can't be seen."""

    number: int
    user: str
    address: str
    uuid: str | None

    def __str__(self) -> str:
        return f"{self.address} ('{self.user}', connection {self.number})"


def replica_name(node: str, destination: str, server_id: int = 0) -> ReplicaName:
    """Returns our name at the source: the same for every process that runs this destination on this node. With a
    configured `server_id` the uuid differs for each id, because MySQL would end one of two with the same."""
    name = f"headrace/{node}/{destination}"
    if len(name.encode()) > _NAME_BYTES:  # truncated, and still different for each
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        name = f"{name.encode()[: _NAME_BYTES - 13].decode(errors='ignore')}~{digest}"
    who = f"{destination}/{node}/{server_id}" if server_id else f"{destination}/{node}"
    return ReplicaName(name, _port(), str(uuid.uuid5(_NAMESPACE, who)))


def _port() -> int:
    """Returns the number of this process, from 1 to 65,535. It is sent as the port of our registration, which nobody
    connects to, so that a process can distinguish itself from another one of the same name."""
    return runtime.process_number() % 0xFFFF + 1


def is_derived(server_id: int, node: str, destination: str) -> bool:
    """Returns whether a server id of the settings is derived and not configured: 0, or what 0 was replaced with."""
    return server_id in (0, derive_server_id(node, destination))


async def replicas(connection: SourceConnection) -> list[Replica] | None:
    """Returns the registered readers; None if the account may not see them (MariaDB: REPLICATION MASTER ADMIN), or the
    server does not know the statement, or might crash; see Dialect.shows_replicas. MySQL lists one for each server id,
    the last one, although several may read. Needs connection.load_variables()."""
    if not server_dialect(connection.variables).shows_replicas:
        return None
    known = ("SHOW SLAVE HOSTS",) if connection.is_mariadb else ("SHOW REPLICAS", "SHOW SLAVE HOSTS")
    try:
        rows = await query_known(connection, *known)
    except (QueryFailed, SourceMisconfigured) as error:
        if isinstance(error, QueryFailed) and error.errno != NOT_KNOWN:
            raise
        log.debug("the source does not show who reads from it", error=str(error))
        return None
    low = [{name.lower(): value for name, value in row.items()} for row in rows]
    return [
        Replica(
            int(row["server_id"]),
            str(row.get("host") or ""),
            int(row.get("port") or 0),
            str(row.get("replica_uuid") or row.get("slave_uuid") or ""),
        )
        for row in low
    ]


async def dump_connections(connection: SourceConnection) -> list[DumpConnection]:
    """Returns the connections that read the binlog: all of them with the right PROCESS, else those of our own
    account."""
    table = "information_schema" if connection.is_mariadb else "performance_schema"
    where = "WHERE command LIKE 'Binlog Dump%' ORDER BY id"
    uuids: dict[int, str] | None = None
    try:
        rows = await connection.query(f"SELECT id AS i, user AS u, host AS h FROM {table}.processlist {where}")
        if rows and not connection.is_mariadb:  # MariaDB does not use it
            uuids = {int(row["id"]): str(row["uuid"]) for row in await connection.query(_UUIDS) if row["id"]}
    except (QueryFailed, SourceMisconfigured) as error:
        log.debug("the source does not show the connections of its readers", error=str(error))
        return []
    return [
        DumpConnection(
            int(row["i"]), str(row["u"]), str(row["h"]), None if uuids is None else uuids.get(int(row["i"]), "")
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class Reader:
    """The name of a reader at the source, so that a clash of server ids can be distinguished from an earlier connection
    of ours."""

    node: str
    destination: str
    derived: bool
    """Whether the server id was derived from the two, and may be another one if it is in use."""
    taken: int = 0
    """The id for which the source has just ended our dump; 0 if it did not."""


async def choose_server_id(connection: SourceConnection, source: SourceSettings, reader: Reader) -> int:
    """Returns the server id to register and dump with, checked as far as the source shows its readers.

    A configured id that is in use raises ServerIdTaken, with host, port, uuid and connection of the user, or
    SourceMisconfigured if it is the source's own. A derived one is replaced by the next free one, in a fixed order. A
    registration under our own name is no clash: it is an earlier connection of ours, which the server ends when we
    dump.

    With `reader.taken`, a registration under our name by another process is the one for which the source has ended our
    dump: another daemon of the same node and destination, and ServerIdTaken says so while it reads. Needs
    connection.load_variables(). Raises SourceError."""
    node, destination, taken = reader.node, reader.destination, reader.taken
    us = replica_name(node, destination, 0 if reader.derived else source.server_id)
    listed = await replicas(connection)
    ours = [r for r in listed or () if (r.uuid == us.uuid if r.uuid else r.host == us.host)]
    if taken and (newcomers := [r for r in ours if r.port != us.port]):
        raise ServerIdTaken(
            f"another daemon runs destination '{destination}' as node '{node}' and reads from this source: "
            f"{await describe(connection, newcomers[0])}",
            remedy="stop one of the two, or give its [daemon] node another name; if nothing of the kind runs any more, "
            "end the connection that is left over: KILL with its number",
        )
    others = {r.server_id: r for r in listed or () if r not in ours}
    own = int(connection.variables.get("server_id", "0"))
    if not reader.derived:
        return await _configured(connection, source.server_id, own, others, bool(taken), listed)
    used = {own, 0, *others}
    if taken and connection.is_mariadb:
        used.add(taken)  # by a reader that has not registered
    for number in range(_CANDIDATES):
        candidate = derive_server_id(node, f"{destination}#{number}" if number else destination)
        if candidate not in used and probe_id(candidate) not in used:
            if number:
                log.info("the derived server id is in use; another one serves", server_id=candidate, tried=number)
            return candidate
    raise ServerIdTaken(
        f"{_CANDIDATES} server ids in a row are in use at the source", remedy="set [source] server_id to a free number"
    )


async def _configured(
    connection: SourceConnection,
    wanted: int,
    own: int,
    others: dict[int, Replica],
    taken: bool,
    listed: list[Replica] | None,
) -> int:
    if wanted == own:
        raise SourceMisconfigured(
            f"our server id {wanted} is the source's own",
            remedy="give [source] server_id another number, or 0, which derives one",
        )
    if wanted in others:
        who = await describe(connection, others[wanted])
        raise ServerIdTaken(f"our server id {wanted} is in use by {who}", remedy=_OTHER_ID)
    if taken and listed is not None and connection.is_mariadb:
        # The reader that disconnected us did not register. It may be any of the readers that are not on the list.
        dumps = await dump_connections(connection)
        if len(dumps) > len(listed):
            raise ServerIdTaken(
                f"our server id {wanted} was taken by a reader that has not registered: {_one_of(dumps)}",
                remedy=_OTHER_ID,
            )
    return wanted


_OTHER_ID = "give [source] server_id a number that no other replica has, or 0, which derives one"


async def describe(connection: SourceConnection, other: Replica) -> str:
    """Returns host, port and uuid as the replica reported them, and where its connection comes from as far as that can
    be seen."""
    said = [f"port {other.port}"] if other.port else []
    said += [f"uuid {other.uuid}"] if other.uuid else []
    text = f"replica '{other.host}'" if other.host else "a replica that gives no host"
    text += f" ({', '.join(said)})" if said else ""
    dumps = await dump_connections(connection)
    fitting = [dump for dump in dumps if dump.uuid is None or dump.uuid == other.uuid]
    if not fitting:
        return f"{text}; with the right PROCESS its address could be seen"
    return f"{text}, connected from {_one_of(fitting)}"


def _one_of(dumps: list[DumpConnection]) -> str:
    more = f" and {len(dumps) - _SHOWN} more" if len(dumps) > _SHOWN else ""
    return f"{'one of ' if len(dumps) > 1 else ''}{', '.join(str(dump) for dump in dumps[:_SHOWN])}{more}"
