"""A server's role in its topology: writable or not, a replica or not, and how far behind its own source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import SourceMisconfigured, SourceRefused
from headrace.mysql.sql.dialect import server_dialect
from headrace.mysql.wire.connection import QueryFailed, SourceConnection, query_known
from headrace.settings.destination import SourceSettings


@dataclass(frozen=True, slots=True)
class Role:
    """A server's role. `replicates` is None if the account may not see it; `lag_seconds` is None if unknown."""

    read_only: bool
    replicates: bool | None
    running: bool = False
    """Whether its replication runs."""
    lag_seconds: float | None = None
    why_unknown: str = ""

    @property
    def takes_heartbeats(self) -> bool:
        """Returns whether heartbeats may be written there: a replica's source never gets what the replica itself
        writes."""
        return not self.read_only and self.replicates is False


async def server_role(connection: SourceConnection) -> Role:
    """Queries the server. Raises SourceError if it does not answer."""
    row = (await connection.query("SELECT @@global.read_only AS r"))[0]
    read_only = str(row["r"]).upper() not in ("0", "OFF")
    try:
        # One row for each source that the server replicates from.
        known = ("SHOW ALL SLAVES STATUS",) if connection.is_mariadb else ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
        channels = await query_known(connection, *known)
    except (QueryFailed, SourceMisconfigured) as error:  # SourceUnreachable says nothing about its role
        if isinstance(error, QueryFailed) and not error.errno:
            raise
        right = server_dialect(connection.variables).replication_right
        return Role(read_only, None, why_unknown=f"the account lacks {right}: {error.args[0]}")
    if not channels:
        return Role(read_only, False)
    running, lags = True, []
    for channel in channels:
        low = {name.lower(): value for name, value in channel.items()}
        threads = [low.get(f"{who}_{thread}_running") for who in ("replica", "slave") for thread in ("io", "sql")]
        running &= all(str(state).lower() == "yes" for state in threads if state is not None)
        lags.append(low.get("seconds_behind_source", low.get("seconds_behind_master")))
    seconds = [float(str(lag)) for lag in lags if lag is not None]
    return Role(read_only, True, running, max(seconds) if len(seconds) == len(lags) else None)


def refuse_role(role: Role, source: SourceSettings) -> None:
    """Raises SourceRefused if the configuration does not accept such a server."""
    where = f"{source.host}:{source.port}"
    if role.read_only and source.read_only == "refuse":
        raise SourceRefused(f"{where} is read-only", remedy='name another server, or set [source] read_only = "accept"')
    limit = source.max_replica_lag
    if not limit or role.replicates is False:
        return
    if role.replicates is None:
        raise SourceRefused(f"{where}: its lag can't be seen: {role.why_unknown}", remedy="grant it")
    if not role.running or role.lag_seconds is None:
        raise SourceRefused(f"{where} is a replica whose replication does not run", remedy="START REPLICA; there")
    if role.lag_seconds > limit:
        raise SourceRefused(
            f"{where} is a replica {role.lag_seconds:.0f} s behind its source, max_replica_lag is {limit:g} s",
            remedy="wait, name another server, or raise [source] max_replica_lag",
        )


def require_logged(role: Role, variables: Mapping[str, str]) -> None:
    """Raises SourceMisconfigured for a replica that does not write what it replicates to its own binlog: its stream
    would be empty, and look healthy."""
    name = "log_replica_updates" if "log_replica_updates" in variables else "log_slave_updates"
    if role.replicates and variables.get(name, "ON").upper() not in ("ON", "1"):
        raise SourceMisconfigured(
            f"{name} is OFF: what the replica takes from its own source never reaches its binlog, nor us",
            remedy=f"in my.cnf: [mysqld] {name} = ON; then restart the server",
        )
