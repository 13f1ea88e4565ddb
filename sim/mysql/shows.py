"""SHOW statements, and the few queries that join tables of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.mysql import information, variables
from sim.mysql.accounts import ALL
from sim.mysql.errors import denied
from sim.mysql.result import Result, plain
from sim.mysql.sql.definitions import declaration
from sim.mysql.sql.expressions import like
from sim.mysql.sql.tree import Show

if TYPE_CHECKING:
    from sim.mysql.session import Session

_REPLICA_UUIDS = (
    "SELECT t.processlist_id AS id, CAST(v.variable_value AS CHAR) AS uuid"
    " FROM performance_schema.user_variables_by_thread v JOIN performance_schema.threads t USING (thread_id)"
    " WHERE v.variable_name IN ('slave_uuid', 'replica_uuid')"
)
_SCHEMA_SIZES = (
    "SELECT schema_name AS s, COUNT(table_name) AS c FROM information_schema.schemata LEFT JOIN"
    " information_schema.tables ON table_schema = schema_name AND table_type = 'BASE TABLE'"
    " GROUP BY schema_name ORDER BY schema_name"
)
FIXED = frozenset({_REPLICA_UUIDS, _SCHEMA_SIZES})
"""Statements that are known as a whole: the model joins no tables."""


def fixed(session: Session, sql: str) -> Result:
    """Returns the result of one of FIXED."""
    if sql == _SCHEMA_SIZES:
        names, rows = information.schema_sizes(session)
        return plain(names, rows, " i")
    found = []
    for one in session.server.sessions.values():
        for name in ("slave_uuid", "replica_uuid"):
            if name in one.user_variables:
                found.append((one.thread, one.user_variables[name]))
    return plain(("id", "uuid"), found, "i ")


def show(session: Session, statement: Show) -> Result:
    """Runs SHOW. Raises SqlError."""
    what, server, engine = statement.what, session.server, session.engine
    if what == "BINARY LOG STATUS":
        _require(session, "REPLICATION CLIENT", "SUPER, REPLICATION CLIENT")
        last, executed = engine.binlog.last, str(engine.visible_gtids)
        columns = ("File", "Position", "Binlog_Do_DB", "Binlog_Ignore_DB", "Executed_Gtid_Set")
        return plain(columns, [(last.name, last.size, "", "", executed)], " i   ")
    if what == "BINARY LOGS":
        _require(session, "REPLICATION CLIENT", "SUPER, REPLICATION CLIENT")
        rows = [(file.name, file.size + len(file.torn), "No") for file in engine.binlog.files]
        return plain(("Log_name", "File_size", "Encrypted"), rows, " i ")
    if what == "REPLICAS":
        _require(session, "REPLICATION SLAVE", "REPLICATION SLAVE")
        columns = ("Server_Id", "Host", "Port", "Source_Id", "Replica_UUID")
        return plain(columns, server.replica_rows(), "l ll ")
    if what == "REPLICA STATUS":
        _require(session, "REPLICATION CLIENT", "SUPER, REPLICATION CLIENT")
        return _replica_status(session)
    if what.endswith("VARIABLES"):
        return _variables(session, statement)
    if what.endswith("STATUS"):
        listed = [("Threads_connected", str(len(server.sessions))), ("Threads_running", str(server.busy))]
        match = like(statement.like) if statement.like is not None else None
        return plain(("Variable_name", "Value"), [row for row in listed if match is None or match(row[0])], "  ")
    if what == "GRANTS":
        account = session.account
        lines = account.grants() if account else [f"GRANT {ALL} ON *.* TO `root`@`%`"]
        return plain((f"Grants for {account.name if account else 'root'}@%",), [(line,) for line in lines], " ")
    if what == "WARNINGS":
        return plain(("Level", "Code", "Message"), (), " l ")
    if what.endswith("PROCESSLIST"):
        process = ("Id", "User", "Host", "db", "Command", "Time", "State", "Info")
        return plain(process, server.processes(session), "i    l  ")
    if what == "DATABASES":
        listed_schemas = [(row[1],) for row in session.virtual("information_schema", "schemata")[1]]
        return plain(("Database",), listed_schemas, " ")
    if what == "TABLES":
        schema = statement.table[0] if statement.table else session.schema
        tables = [one.definition for one in engine.catalog.tables() if one.definition.schema == schema]
        return plain((f"Tables_in_{schema}",), [(one.name,) for one in tables if session.sees(schema, one.name)], " ")
    assert statement.table is not None
    table = session.table(statement.table[0] or session.schema, statement.table[1], "SELECT")
    if what == "INDEX":
        names, indexes = information.show_index(table)
        return plain(names, indexes, " l l i ")
    return plain(("Table", "Create Table"), [(table.definition.name, declaration(table.definition))], "  ")


def _require(session: Session, privilege: str, named: str) -> None:
    if not session.allows(privilege) and not session.allows("SUPER"):
        raise denied(named)


def _variables(session: Session, statement: Show) -> Result:
    known = session.server.all_variables()
    if statement.what != "GLOBAL VARIABLES":
        known = {**known, **session.settings}
    names = sorted(known)
    if statement.names is not None:
        wanted = [name.lower() for name in statement.names]
        names = [name for name in names if name in wanted]
    if statement.like is not None:
        match = like(statement.like)
        names = [name for name in names if match(name)]
    return plain(("Variable_name", "Value"), [(name, variables.shown(known[name])) for name in names], "  ")


def _replica_status(session: Session) -> Result:
    names = ("Source_Host", "Source_UUID", "Replica_IO_Running", "Replica_SQL_Running", "Seconds_Behind_Source")
    following = session.server.following
    if following is None:
        return plain(names, (), "    i")
    runs = "Yes" if following.running else "No"
    lag = following.seconds_behind if following.running else None
    return plain(names, [("source", following.source.engine.uuid, runs, runs, lag)], "    i")
