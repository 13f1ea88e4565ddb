"""What a server is in its topology, and which servers the configuration refuses."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import GrantMissing, SourceMisconfigured, SourceRefused, SourceUnreachable
from headrace.mysql.role import Role, refuse_role, require_logged, server_role
from headrace.mysql.wire.connection import QueryFailed
from tests.streams import settings

YES = {"Replica_IO_Running": "Yes", "Replica_SQL_Running": "Yes"}


def not_known() -> QueryFailed:
    error = QueryFailed("syntax")
    error.errno = 1064
    return error


class Server:
    """Answers by the beginning of a statement: rows or an error."""

    def __init__(self, *, mariadb: bool = False, read_only: object = 0, **answers: Any) -> None:
        self.is_mariadb = mariadb
        self.variables = {"version": "10.11.6-MariaDB" if mariadb else "9.7.4"}
        self._answers = {
            "SELECT": [{"r": read_only}],
            **{name.replace("_", " "): rows for name, rows in answers.items()},
        }

    async def query(self, sql: str) -> Any:
        answer = next(rows for begin, rows in self._answers.items() if sql.startswith(begin))
        if isinstance(answer, Exception):
            raise answer
        return answer


async def role_of(**how: Any) -> Role:
    server: Any = Server(**how)
    return await server_role(server)


@pytest.mark.parametrize(("value", "read_only"), [(0, False), (1, True), ("OFF", False), ("ON", True), ("off", False)])
async def test_a_server_without_channels_replicates_from_nobody(value: object, read_only: bool) -> None:
    role = await role_of(read_only=value, SHOW_REPLICA=[])
    assert role == Role(read_only, replicates=False)
    assert role.takes_heartbeats is not read_only


@pytest.mark.parametrize(
    ("channels", "running", "lag"),
    [
        ([{**YES, "Seconds_Behind_Source": 3}], True, 3.0),
        ([{**YES, "Seconds_Behind_Source": 3}, {**YES, "Seconds_Behind_Source": 9}], True, 9.0),
        ([{**YES, "Seconds_Behind_Source": 3}, {**YES, "Seconds_Behind_Source": None}], True, None),
        ([{**YES, "Replica_SQL_Running": "No", "Seconds_Behind_Source": None}, YES], False, None),
        ([{**YES, "Replica_IO_Running": "Connecting", "Seconds_Behind_Source": 0}], False, 0.0),
        ([{"Slave_IO_Running": "Yes", "Slave_SQL_Running": "No", "Seconds_Behind_Master": 2}], False, 2.0),
    ],
)
async def test_of_several_channels_the_slowest_counts_and_each_has_to_run(
    channels: list[dict[str, Any]], running: bool, lag: float | None
) -> None:
    role = await role_of(SHOW_REPLICA=channels)
    assert (role.replicates, role.running, role.lag_seconds) == (True, running, lag)
    assert not role.takes_heartbeats


async def test_an_older_server_is_asked_in_its_own_words() -> None:
    assert (await role_of(SHOW_REPLICA=not_known(), SHOW_SLAVE=[YES])).replicates
    assert (await role_of(mariadb=True, SHOW_ALL_SLAVES=[YES])).replicates


@pytest.mark.parametrize(("mariadb", "right"), [(True, "SLAVE MONITOR"), (False, "REPLICATION CLIENT")])
async def test_without_the_right_nobody_knows(mariadb: bool, right: str) -> None:
    denied = GrantMissing("denied")
    role = await role_of(mariadb=mariadb, SHOW_ALL_SLAVES=denied, SHOW_REPLICA=denied)
    assert role.replicates is None
    assert right in role.why_unknown
    assert not role.takes_heartbeats


async def test_a_server_that_does_not_answer_has_no_role() -> None:
    with pytest.raises(SourceUnreachable):
        await role_of(SHOW_REPLICA=SourceUnreachable("away"))


@pytest.mark.parametrize(
    ("role", "source", "why"),
    [
        (Role(read_only=True, replicates=False), {"read_only": "refuse"}, "h:3306 is read-only"),
        (Role(read_only=True, replicates=False), {}, ""),
        (Role(read_only=False, replicates=True), {}, ""),
        (Role(read_only=False, replicates=False), {"max_replica_lag": 5}, ""),
        (Role(read_only=False, replicates=None, why_unknown="no right"), {"max_replica_lag": 5}, "no right"),
        (Role(read_only=False, replicates=True), {"max_replica_lag": 5}, "does not run"),
        (Role(read_only=False, replicates=True, running=True), {"max_replica_lag": 5}, "does not run"),
        (
            Role(read_only=False, replicates=True, running=False, lag_seconds=0.0),
            {"max_replica_lag": 5},
            "does not run",
        ),
        (Role(read_only=False, replicates=True, running=True, lag_seconds=5.0), {"max_replica_lag": 5}, ""),
        (Role(read_only=False, replicates=True, running=True, lag_seconds=6.0), {"max_replica_lag": 5}, "6 s behind"),
    ],
)
def test_a_server_is_refused_as_the_configuration_says(role: Role, source: dict[str, Any], why: str) -> None:
    where = settings(source=source).source
    if not why:
        refuse_role(role, where)
        return
    with pytest.raises(SourceRefused, match=why):
        refuse_role(role, where)


@pytest.mark.parametrize("name", ["log_replica_updates", "log_slave_updates"])
def test_a_replica_that_writes_no_binlog_of_what_it_replicates_is_refused(name: str) -> None:
    replica = Role(read_only=True, replicates=True, running=True)
    require_logged(replica, {name: "ON"})
    require_logged(Role(read_only=False, replicates=False), {name: "OFF"})
    with pytest.raises(SourceMisconfigured, match=f"{name} is OFF"):
        require_logged(replica, {name: "OFF"})
