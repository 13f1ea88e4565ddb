"""What a source needs for a complete stream: each finding is a sentence and the SQL that fixes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace import runtime
from headrace.errors import (
    BinlogOff,
    GrantMissing,
    HeadraceError,
    LostKind,
    PositionLost,
    SourceError,
    SourceMisconfigured,
)
from headrace.model import Position
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.finding import end_after
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.heartbeat import NO_DATABASE, NO_TABLE, SCHEMA, WATERMARK_SQL, setup_statements
from headrace.mysql.position.heads import FileHeads
from headrace.mysql.position.inventory import retention, take_inventory
from headrace.mysql.replicas import Reader, choose_server_id, is_derived, replicas
from headrace.mysql.role import Role, refuse_role, require_logged, server_role
from headrace.mysql.schema.states import reached
from headrace.mysql.schema.tables import BASE_TABLES_SQL
from headrace.mysql.sql.dialect import server_dialect
from headrace.mysql.wire.connection import QueryFailed, SourceConnection, address_of
from headrace.mysql.wire.dump_errors import BINLOG_ON
from headrace.mysql.wire.grants import ALL, Grant, account_of, folds_names, lacks_of, show_grants
from headrace.ports.finding import Finding, Level, failed, ok, warning, wrong
from headrace.ports.tables import in_short
from headrace.settings.destination import HeartbeatSettings, SourceSettings

# An EXPLAIN needs the rights of its statement and changes nothing.
_HEARTBEATS = (
    "EXPLAIN INSERT IGNORE INTO headrace.heartbeat (destination, epoch, node, sequence, beat_us)"
    " VALUES ('', 0, '', 0, 0)",
    "EXPLAIN UPDATE headrace.heartbeat SET epoch = 0, node = '', sequence = 0, beat_us = 0"
    " WHERE destination = '' AND epoch <= 0",
)
_BARRIER = (
    "EXPLAIN INSERT INTO headrace.watermark (destination, number) VALUES ('', 1)"
    " ON DUPLICATE KEY UPDATE number = number + 1"
)
_GTIDS_WHILE_RUNNING = 50706
"""The first version whose gtid_mode can be changed without a restart."""
_CLOCKS = 2.0
"""Seconds by which the clocks of source and daemon may differ."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a destination needs from its source, besides its binlog."""

    schemas: tuple[str, ...] = ()
    """The schemas that [filter] names, if it names all of them."""
    reads_rows: bool = False
    """Whether a start now would read the existing rows of tables."""
    heartbeat: HeartbeatSettings = field(default_factory=HeartbeatSettings)
    position: Position | None = None
    """The stored position."""
    captures: Callable[[str, str], bool] | None = None
    """Returns whether the rows of a schema and table are captured. None: tables are not checked."""
    tables: tuple[tuple[str, str], ...] = ()
    """Captured tables that are known by name, whether the account can see them or not."""
    only_these: bool = False
    """Whether [filter] names each of its tables."""
    archive: Archive | None = None


async def check_source(
    source: SourceSettings, server_id: int, *, node: str = "", destination: str = "", wanted: Wanted | None = None
) -> list[Finding]:
    """Connects and checks everything, without changes; problems are findings and never raise. `server_id` is ours,
    `node` and `destination` are our name at the source. The first finding is about the connection."""
    where, wanted = f"{source.host}:{source.port}", wanted or Wanted()
    findings: list[Finding] = []
    try:
        async with await SourceConnection.open(address_of(source)) as connection:
            variables = await connection.load_variables()
            findings.append(ok("connection", f"{where} answers as {variables.get('version', '?')}"))
            findings.append(await _identity(connection, wanted.position))
            findings += variable_findings(variables, row_image=source.row_image)
            if source.semi_sync != "off":
                findings.append(semi_sync_finding(variables, source.semi_sync))
            findings += await _grants(connection, source.user, wanted)
            findings.append(await _server_id(connection, source, server_id, node, destination))
            role = await server_role(connection)
            findings += role_findings(role, source, variables, await account_of(connection))
            findings.append(await _heartbeat(connection, role, wanted.heartbeat))
            if wanted.reads_rows and await _reads_after_a_row(connection, source, role):
                findings.append(await _watermark(connection))
            findings.append(await _clock(connection))
            if wanted.position is not None and _is_ok(findings, "log_bin"):
                findings += await _retention(connection, source, wanted.position, wanted.archive)
    except HeadraceError as error:
        findings.append(failed("connection", error))
    return findings


async def _identity(connection: SourceConnection, position: Position | None) -> Finding:
    """Returns which server it is, and whether another one can replace it."""
    variables = connection.variables
    uuid = variables.get("server_uuid", "") if not connection.is_mariadb else ""
    if uuid and connection.has_gtids:
        return ok("identity", f"server {uuid} with GTIDs: another server of the same data can take its place")
    who = f"server {uuid}" if uuid else f"MariaDB server {variables.get('server_id', '?')}"
    sentence = f"{who}, read by file and offset: another server can't take its place by itself"
    if not uuid:
        return ok("identity", sentence)
    dialect = server_dialect(variables)
    advice = f"{dialect.setter} gtid_mode = 'ON'; in the steps that MySQL's manual describes, and"
    if dialect.version < _GTIDS_WHILE_RUNNING:
        advice = "gtid_mode, enforce_gtid_consistency and log_slave_updates = ON in my.cnf, and a restart,"
    if position is not None and position.server_uuid == uuid:
        file, end, _ = await connection.binlog_end()
        if not reached((position.file, position.offset), (file, end)):
            advice = f"not yet, it is at {position} and the binlog goes on to {file}:{end}: gtid_mode = 'ON' only"
    remedy = (
        f"{advice} once this destination has read all that was written without GTIDs: the server gives out no "
        "anonymous transaction once gtid_mode is ON"
    )
    return warning("identity", sentence, remedy)


def variable_findings(variables: dict[str, str], *, row_image: str = "full") -> list[Finding]:
    """Returns findings about the server's settings that decide whether every change is complete in the binlog."""
    setter = server_dialect(variables).setter
    log_bin = variables.get("log_bin", "OFF")
    if log_bin.upper() not in ("ON", "1"):
        return [wrong("log_bin", "the server writes no binlog", BINLOG_ON)]
    wanted = [("binlog_format", "ROW", "changes are written as statements, not as rows")]
    if row_image == "full":
        wanted.append(("binlog_row_image", "FULL", "row images leave columns out"))
    findings = [ok("log_bin", "the server writes a binlog")]
    if variables.get("server_id") == "0":
        sentence, remedy = "it is 0: the server refuses all replicas", f"each server needs its own{_for_good(setter)}"
        findings.append(wrong("server_id of the source", sentence, remedy, (f"{setter} server_id = 1;",)))
    for name, value, trouble in wanted:
        actual = variables.get(name, value).upper()  # binlog_format may be removed: only ROW will exist
        if actual == value:
            findings.append(ok(name, f"{name} is {value}"))
        else:
            remedy = f"let old sessions reconnect{_for_good(setter)}"
            if name == "binlog_row_image":
                remedy += "; or take such rows with [source] row_image = 'any'"
            findings.append(wrong(name, f"{name} is {actual}: {trouble}", remedy, (f"{setter} {name} = '{value}';",)))
    findings.append(_metadata(variables, setter))
    if variables.get("binlog_checksum", "").upper() == "NONE":
        sentence = "binlog_checksum is NONE: a damaged byte would be published as a value"
        sql = (f"{setter} binlog_checksum = 'CRC32';",)
        findings.append(warning("binlog_checksum", sentence, f"it begins a new binlog{_for_good(setter)}", sql))
    return findings


def _metadata(variables: dict[str, str], setter: str) -> Finding:
    """Returns a finding; not an error: without full metadata the schema history describes the columns."""
    actual = variables.get("binlog_row_metadata", "").upper()
    name = "binlog_row_metadata"
    if actual == "FULL":
        return ok(name, "binlog_row_metadata is FULL")
    sentence = (
        f"binlog_row_metadata is {actual or 'not known to this version'}: column names come from the schema history, "
        "which needs the SELECT privilege on the tables"
    )
    if name not in variables:
        return ok(name, sentence)
    remedy = f"let old sessions reconnect{_for_good(setter)}"
    return warning(name, sentence, remedy, (f"{setter} binlog_row_metadata = 'FULL';",))


def semi_sync_finding(variables: Mapping[str, str], acknowledges: str) -> Finding:
    """Returns whether the source waits for what `acknowledges` its transactions ([source] semi_sync)."""
    setter, name = server_dialect(variables).setter, "semi_sync"
    remedy = f"see docs/archive.md#semi-synchronous-acknowledgement{_for_good(setter)}"
    role = "rpl_semi_sync_source" if "rpl_semi_sync_source_enabled" in variables else "rpl_semi_sync_master"
    enabled, point = (variables.get(f"{role}_{one}", "").upper() for one in ("enabled", "wait_point"))
    if not enabled:
        return warning(name, "semi-synchronous replication is not installed on the source", remedy)
    if enabled not in ("ON", "1"):
        sentence = f"semi-synchronous replication is not enabled on the source: it does not wait for the {acknowledges}"
        return warning(name, sentence, remedy, (f"{setter} {role}_enabled = 1;",))
    if not point:  # MySQL 5.6
        sentence = f"the source has no AFTER_SYNC: other clients see a transaction before the {acknowledges} has it"
        return warning(name, sentence, "see docs/archive.md#semi-synchronous-acknowledgement")
    if point != "AFTER_SYNC":
        sentence = f"{role}_wait_point is {point}: other clients see a transaction before the {acknowledges} has it"
        return warning(name, sentence, remedy, (f"{setter} {role}_wait_point = 'AFTER_SYNC';",))
    limit = variables.get(f"{role}_timeout", "?")
    return ok(name, f"the source waits for up to {limit} ms until the {acknowledges} has a transaction")


def _for_good(setter: str) -> str:
    return "" if "PERSIST" in setter else ", and write it into my.cnf, for the time after a restart"


async def _grants(connection: SourceConnection, user: str, wanted: Wanted) -> list[Finding]:
    account, grants = await account_of(connection), await show_grants(connection)
    findings = grant_findings(grants, user, account, wanted, connection.variables)
    if wanted.captures is not None and findings[-1].level is Level.OK:
        findings += await _tables(connection, grants, account, user, wanted)
    return findings


async def _tables(
    connection: SourceConnection, grants: Sequence[Grant], account: str, user: str, wanted: Wanted
) -> list[Finding]:
    """Returns findings about captured tables that the account may not read completely: those known by name, and
    possible others."""
    captures, lacks = wanted.captures, lacks_of(grants, account, fold=folds_names(connection.variables))
    assert captures is not None
    shown = {(str(row["s"]), str(row["t"])) for row in await connection.query(BASE_TABLES_SQL)}
    names = sorted(name for name in shown | set(wanted.tables) if captures(*name) and lacks(*name))
    level = wrong if wanted.reads_rows else warning
    left_out = "snapshots leave out, while their changes are published"
    findings = []
    if names:
        sentence = f"{user} may not read whole rows of {in_short(names)}, which {left_out}"
        findings.append(level("tables", sentence, sql=tuple(lacks(*name) for name in names)))
    selecting = [one for one in grants if one.table is None and one.has("SELECT") and not one.revoked]
    schemas = sorted({schema for schema, table in shown if captures(schema, table)})
    apart = [schema for schema in schemas if not any(one.covers(schema) for one in selecting)]
    if apart and not wanted.only_these:
        sentence = f"{user} has SELECT on single tables of {', '.join(apart)}, and sees no others: those {left_out}"
        grant = tuple(f"GRANT SELECT ON `{schema}`.* TO {account};" for schema in apart)
        findings.append(warning("tables", sentence, "or have [filter] include name the tables", grant))
    return findings


def grant_findings(
    grants: Sequence[Grant],
    user: str,
    account: str,
    wanted: Wanted,
    variables: Mapping[str, str],
    *,
    any_schema: bool = False,
) -> list[Finding]:
    """Checks REPLICATION SLAVE for the dump; REPLICATION CLIENT (MariaDB: BINLOG MONITOR) for the server's position;
    SELECT for rows and for columns, with `any_schema` on at least one schema."""
    everywhere = granted(grants, "")
    findings = []
    for right in ("REPLICATION SLAVE", server_dialect(variables).binlog_right):
        if {right, ALL} & everywhere:
            findings.append(ok(right, f"{user} has {right}"))
        else:
            findings.append(wrong(right, f"{user} lacks {right}", sql=(f"GRANT {right} ON *.* TO {account};",)))
    lacking = [schema for schema in wanted.schemas if not {"SELECT", ALL} & granted(grants, schema)]
    if any_schema or not wanted.schemas:
        lacking = [] if {"SELECT", ALL} & granted(grants, None) else list(wanted.schemas) or [""]
    findings.append(_select(user, account, lacking, wanted, variables))
    return findings


def _select(user: str, account: str, lacking: Sequence[str], wanted: Wanted, variables: Mapping[str, str]) -> Finding:
    """Checks SELECT. `lacking`: schemas whose tables the account may not read; "" means all."""
    if not lacking:
        return ok("SELECT", f"{user} has SELECT{' in ' if wanted.schemas else ''}{', '.join(wanted.schemas)}")
    sql = tuple(f"GRANT SELECT ON {f'`{schema}`' if schema else '*'}.* TO {account};" for schema in lacking)
    # information_schema shows only tables that the account may read
    sees = f"{user} lacks SELECT{' on ' if any(lacking) else ''}{', '.join(lacking)}: it sees no captured table there"
    if variables.get("binlog_row_metadata", "").upper() != "FULL":
        return wrong("SELECT", f"{sees}, and the names of columns come from nowhere else", sql=sql)
    if wanted.reads_rows:
        return wrong("SELECT", f"{sees}, and could not publish the rows that are there", sql=sql)
    return warning("SELECT", f"{sees}, so rules can't be compared with tables, nor snapshots be taken", sql=sql)


def granted(grants: Sequence[Grant], schema: str | None) -> set[str]:
    """Returns the account's rights on all tables of a schema, or on some of them or some columns, in capitals; "":
    everywhere; None: in any schema but our own."""
    rights: set[str] = set()
    for one in grants:
        if one.revoked:
            continue
        if (one.schema or "").lower() != SCHEMA if schema is None else one.covers(schema):
            rights |= one.rights | one.limited
    return rights.difference(*(one.rights for one in grants if one.revoked and schema and one.covers(schema)))


async def _server_id(
    connection: SourceConnection, source: SourceSettings, server_id: int, node: str, destination: str
) -> Finding:
    derived = is_derived(source.server_id, node, destination)
    try:
        chosen = await choose_server_id(connection, source, Reader(node, destination, derived))
        seen = await replicas(connection) is not None
    except SourceError as error:
        return failed("server_id", error)
    dialect = server_dialect(connection.variables)
    if not dialect.shows_replicas:
        sentence = f"our server id is {chosen}; whether another replica has it is not checked: that can crash MySQL 5.6"
        return ok("server_id", sentence)
    if not seen:
        right = dialect.replicas_right
        sentence = f"our server id is {chosen}; whether another replica has it can't be seen"
        return warning("server_id", sentence, sql=(f"GRANT {right} ON *.* TO {await account_of(connection)};",))
    if derived and chosen != server_id:
        sentence = f"our server id is {chosen}: {server_id}, which node and destination give first, is in use"
        return ok("server_id", sentence)
    return ok("server_id", f"our server id is {chosen}, which nobody else has")


def role_findings(role: Role, source: SourceSettings, variables: dict[str, str], account: str) -> list[Finding]:
    """Returns findings about the server's role in its topology, and whether the configuration accepts it."""
    try:
        refuse_role(role, source)
    except SourceError as error:
        return [failed("role", error)]
    written = "read-only" if role.read_only else "writable"
    if role.replicates is None:
        right = server_dialect(variables).replication_right
        sentence = f"the server is {written}; whether it replicates from another can't be seen, so no heartbeats"
        return [warning("role", sentence, sql=(f"GRANT {right} ON *.* TO {account};",))]
    if not role.replicates:
        return [ok("role", f"the server is {written} and is not a replica")]
    lag = "its replication does not run" if not role.running else "its lag is not known"
    if role.running and role.lag_seconds is not None:
        lag = f"{role.lag_seconds:g} s behind its source"
    findings = [(ok if role.running else warning)("role", f"the server is {written} and a replica, {lag}")]
    try:
        require_logged(role, variables)
    except SourceMisconfigured as error:
        findings.append(failed("log_replica_updates", error))
    return findings


async def _heartbeat(connection: SourceConnection, role: Role, settings: HeartbeatSettings) -> Finding:
    """Checks whether heartbeats can be written; without them changes flow, but nothing shows that they do."""
    name = "heartbeat"
    if not settings.enabled:
        return ok(name, "heartbeats are off ([heartbeat] enabled = false)")
    if not role.takes_heartbeats:
        why = (
            "whether it replicates from another can't be seen"
            if role.replicates is None
            else "it is not to be written to"
        )
        return ok(name, f"no heartbeats are written to it, because {why}; the binlog's own serve")
    account = await account_of(connection)
    try:
        for statement in _HEARTBEATS:
            await connection.query(statement)
    except QueryFailed as error:
        if error.errno not in (NO_DATABASE, NO_TABLE):
            return warning(name, f"heartbeats can't be written: {error.args[0]}")
        if {"CREATE", ALL} & granted(await show_grants(connection), SCHEMA):
            return ok(name, "headrace.heartbeat does not exist yet: the first start creates it")
        return warning(name, "there is no table headrace.heartbeat", sql=setup_statements(account))
    except GrantMissing:
        sentence = f"{account} may not write heartbeats into headrace.heartbeat"
        return warning(name, sentence, sql=setup_statements(account))
    return ok(name, "heartbeats can be written into headrace.heartbeat")


async def _reads_after_a_row(connection: SourceConnection, source: SourceSettings, role: Role) -> bool:
    """Returns whether tables are read after a row of ours; a server that may not be written to is refused anyway."""
    if connection.is_mariadb or connection.has_gtids or source.snapshot_source is not None:
        return False
    return not role.replicates and not role.read_only


async def _watermark(connection: SourceConnection) -> Finding:
    """Checks whether that row can be written; without it no table is ever read."""
    name, account = "watermark", await account_of(connection)
    sentence, remedy = f"{account} may not write into headrace.watermark", 'or set [source] snapshot = "never"'
    try:
        await connection.query(_BARRIER)
    except QueryFailed as error:
        if error.errno not in (NO_DATABASE, NO_TABLE):
            return wrong(name, f"headrace.watermark can't be written: {error.args[0]}")
        if {"CREATE", ALL} & granted(await show_grants(connection), SCHEMA):
            return ok(name, "headrace.watermark does not exist yet: the first reading of tables creates it")
        sentence = "there is no table headrace.watermark"
    except GrantMissing:
        pass
    else:
        return ok(name, "headrace.watermark can be written: tables are read after a row of it, without GTIDs")
    why = "tables are read after a row of it, without GTIDs"
    return wrong(name, f"{sentence}: {why}", remedy, setup_statements(account, WATERMARK_SQL))


async def _clock(connection: SourceConnection) -> Finding:
    """Compares the clocks: lag, the times of messages and a search by time use both."""
    before = runtime.now()
    (row,) = await connection.query("SELECT UNIX_TIMESTAMP(NOW(6)) AS t")
    there = float(row["t"])
    ahead = max(there - runtime.now(), min(0.0, there - before))
    if abs(ahead) <= _CLOCKS:
        return ok("clock", f"the source's clock and ours differ by less than {_CLOCKS:g} s")
    sentence = f"the source's clock is {abs(ahead):,.1f} s {'ahead of' if ahead > 0 else 'behind'} ours"
    return warning("clock", f"{sentence}: lag is shown wrong by as much", "have NTP set the clocks of both machines")


async def _retention(
    connection: SourceConnection, source: SourceSettings, position: Position, archive: Archive | None
) -> list[Finding]:
    """Returns how far the stored position is from being purged."""
    name, stored = "retention", position
    try:
        archived = await end_after(archive, position) if archive is not None else None
    except HeadraceError as error:
        return [failed("archive", error)]
    try:
        position = archived or position  # the source must keep only what follows the archive
        inventory = await take_inventory(connection)
        found = await retention(inventory, position, FileHeads(source))
    except HeadraceError as error:
        return [warning(name, f"the source's binlogs can't be listed: {error.args[0]}", error.remedy)]
    by_gtid = inventory.gtid_mode and bool(position.gtid_set)
    if not by_gtid and position.server_uuid != inventory.server_uuid:
        sentence = f"the stored position {position} is one of another server, {position.server_uuid}"
        return [warning(name, sentence, "see docs/troubleshooting.md#source_changed")]
    kept = (
        GtidSet(position.gtid_set).contains(GtidSet(inventory.purged)) if by_gtid else found.share != 0 or found.bytes
    )
    if not kept:
        lost = PositionLost(
            f"the source has purged what follows the stored position {position}",
            kind=LostKind.GTIDS_PURGED if by_gtid else LostKind.POSITION_PURGED,
        )
        return [failed(name, lost)]
    if text := found.warning(position, source.retention_warning):
        longer = "have the source keep its binlogs for longer, or let the daemon catch up"
        return [warning(name, text, longer)]
    if archived is not None:
        return [ok(name, f"the archive has the binlog from the stored position {stored} on")]
    return [ok(name, f"the source has what follows the stored position {position}")]


def _is_ok(findings: Sequence[Finding], name: str) -> bool:
    return any(one.name == name and one.level is Level.OK for one in findings)


def refuse_incomplete(findings: list[Finding]) -> None:
    """Raises SourceMisconfigured with everything that is wrong, and the SQL for all of it; BinlogOff or GrantMissing if
    that is all."""
    missing = [finding for finding in findings if finding.level is Level.WRONG]
    if missing:
        sentences = "; ".join(finding.sentence for finding in missing)
        kind = SourceMisconfigured
        if missing[0].name == "log_bin":
            kind = BinlogOff
        elif all(finding.name.isupper() for finding in missing):  # grants go by their name in SQL
            kind = GrantMissing
        raise kind(sentences, remedy=" ".join(f.fixes for f in missing if f.fixes))


async def require_complete(connection: SourceConnection, source: SourceSettings, schemas: Sequence[str] = ()) -> None:
    """Makes the same checks on a connection that is about to stream; `schemas` as in Wanted. A schema that the account
    may not read may be one that does not exist yet."""
    findings = variable_findings(connection.variables, row_image=source.row_image)
    account, grants = await account_of(connection), await show_grants(connection)
    wanted = Wanted(schemas=tuple(schemas))
    findings += grant_findings(grants, source.user, account, wanted, connection.variables, any_schema=True)
    refuse_incomplete(findings)
