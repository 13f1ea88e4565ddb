"""What a source must have for a complete stream: each finding with a sentence and the SQL that mends it."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import HeadraceError, SourceMisconfigured
from headrace.mysql.connection import Address, SourceConnection
from headrace.settings import SourceSettings


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    ok: bool
    sentence: str
    remedy: str = ""


def address_of(source: SourceSettings) -> Address:
    """The settings in the form that connections take."""
    return Address(
        host=source.host,
        port=source.port,
        user=source.user,
        password=source.password.get_secret_value(),
        tls=source.tls,
        tls_ca=str(source.tls_ca or ""),
        connect_timeout=source.connect_timeout,
    )


async def check_source(source: SourceSettings, server_id: int) -> list[Finding]:
    """Connects and looks at everything; never raises for what it finds."""
    where = f"{source.host}:{source.port}"
    try:
        connection = await SourceConnection.open(address_of(source))
    except HeadraceError as error:
        return [Finding("connection", False, error.args[0], error.remedy)]
    try:
        variables = await connection.load_variables()
        version = variables.get("version", "?")
        return [
            Finding("connection", True, f"{where} answers as {version}"),
            *variable_findings(variables, row_image=source.row_image),
            *await _grants(connection, source.user),
            _server_id(variables, server_id),
        ]
    except HeadraceError as error:
        return [Finding("connection", False, error.args[0], error.remedy)]
    finally:
        await connection.close()


def variable_findings(variables: dict[str, str], *, row_image: str = "full") -> list[Finding]:
    """The server's settings that decide whether every change is in the binlog in full."""
    mariadb = "mariadb" in variables.get("version", "").lower()
    how = "GLOBAL" if mariadb else "PERSIST"
    log_bin = variables.get("log_bin", "OFF")
    if log_bin.upper() not in ("ON", "1"):
        remedy = "in my.cnf: [mysqld] log_bin = mysql-bin, server_id = 1; then restart the server"
        return [Finding("log_bin", False, "the server writes no binlog", remedy)]
    wanted = [("binlog_format", "ROW", "changes are written as statements, not as rows")]
    if row_image == "full":
        wanted.append(("binlog_row_image", "FULL", "row images leave columns out"))
    findings = [Finding("log_bin", True, "the server writes a binlog")]
    for name, value, trouble in wanted:
        actual = variables.get(name, value).upper()  # binlog_format may go away: ROW will be all there is
        if actual == value:
            findings.append(Finding(name, True, f"{name} is {value}"))
        else:
            remedy = f"SET {how} {name} = '{value}'; and let old sessions reconnect"
            if name == "binlog_row_image":
                remedy += "; or take such rows with [source] row_image = 'any'"
            findings.append(Finding(name, False, f"{name} is {actual}: {trouble}", remedy))
    findings.append(_metadata(variables, how))
    return findings


def _metadata(variables: dict[str, str], how: str) -> Finding:
    """Not a fault: without full metadata the schema history says what columns are."""
    actual = variables.get("binlog_row_metadata", "not known to this version").upper()
    if actual == "FULL":
        return Finding("binlog_row_metadata", True, "binlog_row_metadata is FULL")
    sentence = (
        f"binlog_row_metadata is {actual}: column names come from the schema history, which needs the SELECT privilege "
        f"on the tables; better is SET {how} binlog_row_metadata = 'FULL'"
    )
    return Finding("binlog_row_metadata", True, sentence)


async def _grants(connection: SourceConnection, user: str) -> list[Finding]:
    """REPLICATION SLAVE for the dump; REPLICATION CLIENT (MariaDB: BINLOG MONITOR) for the server's position."""
    account = str((await connection.query("SELECT CURRENT_USER() AS u"))[0]["u"])
    name, _, host = account.rpartition("@")
    text = " ".join(str(v) for row in await connection.query("SHOW GRANTS") for v in row.values()).upper()
    everything = "ALL PRIVILEGES ON *.*" in text
    findings = []
    client = "BINLOG MONITOR" if connection.is_mariadb else "REPLICATION CLIENT"
    grants = ["REPLICATION SLAVE", client]
    if connection.variables.get("binlog_row_metadata", "").upper() != "FULL":
        grants.append("SELECT")  # information_schema shows only tables that the account may read
    for grant in grants:
        if everything or grant in text:
            findings.append(Finding(grant, True, f"{user} has {grant}"))
        else:
            remedy = f"GRANT {grant} ON *.* TO '{name}'@'{host}';"
            findings.append(Finding(grant, False, f"{user} lacks {grant}", remedy))
    return findings


def _server_id(variables: dict[str, str], server_id: int) -> Finding:
    if variables.get("server_id") == str(server_id):
        sentence = f"our server id {server_id} is the source's own"
        return Finding("server_id", False, sentence, "give [source] server_id another number")
    return Finding("server_id", True, f"our server id is {server_id}")


def refuse_incomplete(findings: list[Finding]) -> None:
    """Raises SourceMisconfigured with everything that is missing, and the SQL for all of it."""
    missing = [finding for finding in findings if not finding.ok]
    if missing:
        sentences = "; ".join(finding.sentence for finding in missing)
        raise SourceMisconfigured(sentences, remedy=" ".join(f.remedy for f in missing if f.remedy))


async def require_complete(connection: SourceConnection, source: SourceSettings) -> None:
    """The same checks on a connection that is about to stream."""
    findings = variable_findings(connection.variables, row_image=source.row_image)
    refuse_incomplete([*findings, *await _grants(connection, source.user)])
