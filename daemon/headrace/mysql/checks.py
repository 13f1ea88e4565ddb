"""What a source must have for a complete stream: each finding with a sentence and the SQL that mends it."""

from __future__ import annotations

import re

from headrace.errors import BinlogOff, GrantMissing, HeadraceError, SourceError, SourceMisconfigured
from headrace.model import Position
from headrace.mysql.heartbeat import NO_DATABASE, NO_TABLE, setup_sql
from headrace.mysql.replicas import Reader, choose_server_id, is_derived, replicas
from headrace.mysql.role import Role, refuse_role, require_logged, server_role
from headrace.mysql.schema.states import reached
from headrace.mysql.sql.dialect import dialect_of
from headrace.mysql.wire.connection import QueryFailed, SourceConnection, address_of
from headrace.mysql.wire.dump_errors import BINLOG_ON
from headrace.ports.finding import Finding
from headrace.settings.destination import HeartbeatSettings, SourceSettings

# An EXPLAIN needs the rights of what it explains and does nothing.
_BEATS = (
    "EXPLAIN INSERT IGNORE INTO headrace.heartbeat (destination, epoch, node, sequence, beat_us)"
    " VALUES ('', 0, '', 0, 0)",
    "EXPLAIN UPDATE headrace.heartbeat SET epoch = 0, node = '', sequence = 0, beat_us = 0"
    " WHERE destination = '' AND epoch <= 0",
)
_CREATES = re.compile(r"GRANT (?P<rights>.+?) ON (\*|[`'\"]?headrace[`'\"]?)\.\* TO", re.IGNORECASE)
_SELECTS = re.compile(r"GRANT [^.]*\b(SELECT|ALL PRIVILEGES)\b[^.]* ON (?![`'\"]?headrace[`'\"]?\.)", re.IGNORECASE)
"""A right to read tables other than our own."""


async def check_source(
    source: SourceSettings,
    server_id: int,
    *,
    node: str = "",
    destination: str = "",
    heartbeat: HeartbeatSettings | None = None,
    position: Position | None = None,
) -> list[Finding]:
    """Connects and looks at everything, changing nothing; never raises for what it finds. `server_id` is ours, `node`
    and `destination` are our name at the source, `position` is what is stored."""
    where = f"{source.host}:{source.port}"
    findings: list[Finding] = []
    try:
        async with await SourceConnection.open(address_of(source)) as connection:
            variables = await connection.load_variables()
            findings.append(Finding("connection", True, f"{where} answers as {variables.get('version', '?')}"))
            findings.append(await _identity(connection, position))
            findings += variable_findings(variables, row_image=source.row_image)
            findings += await _grants(connection, source.user)
            findings.append(await _server_id(connection, source, server_id, node, destination))
            role = await server_role(connection)
            findings += role_findings(role, source, variables, await _account(connection))
            findings.append(await _heartbeat(connection, role, heartbeat or HeartbeatSettings()))
    except HeadraceError as error:
        findings.append(Finding("connection", False, error.args[0], error.remedy))
    return findings


async def _identity(connection: SourceConnection, position: Position | None) -> Finding:
    """Which server it is, and whether another one can take its place."""
    variables = connection.variables
    uuid = variables.get("server_uuid", "") if not connection.is_mariadb else ""
    if uuid and connection.has_gtids:
        return Finding(
            "identity", True, f"server {uuid} with GTIDs: another server of the same data can take its place"
        )
    who = f"server {uuid}" if uuid else f"MariaDB server {variables.get('server_id', '?')}"
    sentence = f"{who}, read by file and offset: another server can't take its place by itself"
    remedy = ""
    if uuid:
        setter = dialect_of(variables.get("version", ""), mariadb=False).setter
        advice = f"{setter} gtid_mode = 'ON'; in the steps that MySQL's manual describes, and"
        if position is not None and position.server_uuid == uuid:
            file, end, _ = await connection.binlog_end()
            if not reached((position.file, position.offset), (file, end)):
                advice = f"not yet, it is at {position} and the binlog goes on to {file}:{end}: gtid_mode = 'ON' only"
        remedy = (
            f"{advice} once this destination has read all that was written without GTIDs: the server gives out no "
            "anonymous transaction once gtid_mode is ON"
        )
    return Finding("identity", True, sentence, remedy, note=True)


def variable_findings(variables: dict[str, str], *, row_image: str = "full") -> list[Finding]:
    """The server's settings that decide whether every change is in the binlog in full."""
    version = variables.get("version", "")
    setter = dialect_of(version, mariadb="mariadb" in version.lower()).setter
    log_bin = variables.get("log_bin", "OFF")
    if log_bin.upper() not in ("ON", "1"):
        return [Finding("log_bin", False, "the server writes no binlog", BINLOG_ON)]
    wanted = [("binlog_format", "ROW", "changes are written as statements, not as rows")]
    if row_image == "full":
        wanted.append(("binlog_row_image", "FULL", "row images leave columns out"))
    findings = [Finding("log_bin", True, "the server writes a binlog")]
    for name, value, trouble in wanted:
        actual = variables.get(name, value).upper()  # binlog_format may go away: ROW will be all there is
        if actual == value:
            findings.append(Finding(name, True, f"{name} is {value}"))
        else:
            remedy = f"{setter} {name} = '{value}'; and let old sessions reconnect"
            if name == "binlog_row_image":
                remedy += "; or take such rows with [source] row_image = 'any'"
            findings.append(Finding(name, False, f"{name} is {actual}: {trouble}", remedy))
    findings.append(_metadata(variables, setter))
    return findings


def _metadata(variables: dict[str, str], setter: str) -> Finding:
    """Not a fault: without full metadata the schema history says what columns are."""
    actual = variables.get("binlog_row_metadata", "").upper()
    if actual == "FULL":
        return Finding("binlog_row_metadata", True, "binlog_row_metadata is FULL")
    sentence = (
        f"binlog_row_metadata is {actual or 'not known to this version'}: column names come from the schema history, "
        "which needs the SELECT privilege on the tables"
    )
    if "binlog_row_metadata" in variables:
        sentence += f"; better is {setter} binlog_row_metadata = 'FULL'"
    return Finding("binlog_row_metadata", True, sentence)


async def _grants(connection: SourceConnection, user: str) -> list[Finding]:
    """REPLICATION SLAVE for the dump; REPLICATION CLIENT (MariaDB: BINLOG MONITOR) for the server's position."""
    account = await _account(connection)
    lines = [str(text).upper() for row in await connection.query("SHOW GRANTS") for text in row.values()]
    text = " ".join(lines)
    everything = "ALL PRIVILEGES ON *.*" in text
    findings = []
    client = "BINLOG MONITOR" if connection.is_mariadb else "REPLICATION CLIENT"
    grants = ["REPLICATION SLAVE", client]
    if connection.variables.get("binlog_row_metadata", "").upper() != "FULL":
        grants.append("SELECT")  # information_schema shows only tables that the account may read
    for grant in grants:
        if everything or (any(map(_SELECTS.match, lines)) if grant == "SELECT" else grant in text):
            findings.append(Finding(grant, True, f"{user} has {grant}"))
        else:
            remedy = f"GRANT {grant} ON *.* TO {account};"
            findings.append(Finding(grant, False, f"{user} lacks {grant}", remedy))
    return findings


async def _account(connection: SourceConnection) -> str:
    """The account that the server took us for, as a GRANT names it."""
    name, _, host = str((await connection.query("SELECT CURRENT_USER() AS u"))[0]["u"]).rpartition("@")
    return f"'{name}'@'{host}'"


async def _server_id(
    connection: SourceConnection, source: SourceSettings, server_id: int, node: str, destination: str
) -> Finding:
    derived = is_derived(source.server_id, node, destination)
    try:
        chosen = await choose_server_id(connection, source, Reader(node, destination, derived))
        seen = await replicas(connection) is not None
    except SourceError as error:
        return Finding("server_id", False, str(error.args[0]), error.remedy)
    if not seen:
        right = "REPLICATION MASTER ADMIN" if connection.is_mariadb else "REPLICATION SLAVE"
        sentence = f"our server id is {chosen}; whether another replica has it can't be seen"
        remedy = f"GRANT {right} ON *.* TO {await _account(connection)};"
        return Finding("server_id", True, sentence, remedy, note=True)
    if derived and chosen != server_id:
        sentence = f"our server id is {chosen}: {server_id}, which node and destination give first, is in use"
        return Finding("server_id", True, sentence)
    return Finding("server_id", True, f"our server id is {chosen}, which nobody else has")


def role_findings(role: Role, source: SourceSettings, variables: dict[str, str], account: str) -> list[Finding]:
    """What the server is in its topology, and whether the configuration takes such a one."""
    try:
        refuse_role(role, source)
    except SourceError as error:
        return [Finding("role", False, str(error.args[0]), error.remedy)]
    written = "read-only" if role.read_only else "writable"
    if role.replicates is None:
        right = "SLAVE MONITOR" if "mariadb" in variables.get("version", "").lower() else "REPLICATION CLIENT"
        sentence = f"the server is {written}; whether it replicates from another can't be seen, so no heartbeats"
        return [Finding("role", True, sentence, f"GRANT {right} ON *.* TO {account};", note=True)]
    if not role.replicates:
        return [Finding("role", True, f"the server is {written} and replicates from nobody")]
    lag = "its replication does not run" if not role.running else "its lag is not known"
    if role.running and role.lag_seconds is not None:
        lag = f"{role.lag_seconds:g} s behind its source"
    findings = [Finding("role", True, f"the server is {written} and a replica, {lag}", note=not role.running)]
    try:
        require_logged(role, variables)
    except SourceMisconfigured as error:
        findings.append(Finding("log_replica_updates", False, str(error.args[0]), error.remedy))
    return findings


async def _heartbeat(connection: SourceConnection, role: Role, settings: HeartbeatSettings) -> Finding:
    """Whether heartbeats can be written; without them changes flow, and nothing shows that they do."""
    if not settings.enabled:
        return Finding("heartbeat", True, "heartbeats are off ([heartbeat] enabled = false)")
    if not role.takes_heartbeats:
        why = (
            "whether it replicates from another can't be seen"
            if role.replicates is None
            else "it is not to be written to"
        )
        return Finding("heartbeat", True, f"no heartbeats are written to it, because {why}; the binlog's own serve")
    account = await _account(connection)
    try:
        for statement in _BEATS:
            await connection.query(statement)
    except QueryFailed as error:
        if error.errno not in (NO_DATABASE, NO_TABLE):
            return Finding("heartbeat", True, f"heartbeats can't be written: {error.args[0]}", note=True)
        if await _may_create(connection):
            return Finding("heartbeat", True, "headrace.heartbeat does not exist yet: the first start creates it")
        return Finding("heartbeat", True, "there is no table headrace.heartbeat", setup_sql(account), note=True)
    except GrantMissing:
        sentence = f"{account} may not write heartbeats into headrace.heartbeat"
        return Finding("heartbeat", True, sentence, setup_sql(account), note=True)
    return Finding("heartbeat", True, "heartbeats can be written into headrace.heartbeat")


async def _may_create(connection: SourceConnection) -> bool:
    for row in await connection.query("SHOW GRANTS"):
        for text in row.values():
            found = _CREATES.search(str(text))
            rights = found["rights"].upper().split(", ") if found else []
            if "CREATE" in rights or "ALL PRIVILEGES" in rights:
                return True
    return False


def refuse_incomplete(findings: list[Finding]) -> None:
    """Raises SourceMisconfigured with everything that is missing, and the SQL for all of it; BinlogOff or GrantMissing
    where that is all."""
    missing = [finding for finding in findings if not finding.ok]
    if missing:
        sentences = "; ".join(finding.sentence for finding in missing)
        kind = SourceMisconfigured
        if missing[0].name == "log_bin":
            kind = BinlogOff
        elif all(finding.name.isupper() for finding in missing):  # grants go by their name in SQL
            kind = GrantMissing
        raise kind(sentences, remedy=" ".join(f.remedy for f in missing if f.remedy))


async def require_complete(connection: SourceConnection, source: SourceSettings) -> None:
    """The same checks on a connection that is about to stream."""
    findings = variable_findings(connection.variables, row_image=source.row_image)
    refuse_incomplete([*findings, *await _grants(connection, source.user)])
