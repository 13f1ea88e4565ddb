"""`headrace check` on real servers: who has our server id, whether heartbeats can be written, standby addresses."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.mysql.checks import check_source
from headrace.mysql.wire.connection import ReplicaName, SourceConnection, address_of
from headrace.ports.finding import Finding
from headrace.settings.destination import HeartbeatSettings, SourceSettings
from headrace.settings.load import derive_server_id
from tests import versions
from tests.support import DaemonProcess, destination_toml, free_port

pytestmark = pytest.mark.server


@pytest.fixture(params=versions.SQL)
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def account(server: Any) -> Any:
    """An account that may read the binlog and nothing else; its name."""
    monitor = ", REPLICATION CLIENT" if "maria" not in server.sql("SELECT VERSION()")[0][0].lower() else ""
    extra = monitor or ", BINLOG MONITOR, SLAVE MONITOR"
    server.sql(f"CREATE USER lean@'%' IDENTIFIED BY 'canal'; GRANT SELECT, REPLICATION SLAVE{extra} ON *.* TO lean@'%'")
    yield "lean"
    server.sql("DROP USER lean@'%'")


async def look(server: Any, user: str = "canal", **more: Any) -> dict[str, Finding]:
    source = SourceSettings(
        host=server.host, port=server.port, user=user, password="canal", server_id=more.pop("server_id", 8001)
    ).model_copy(update=more)
    found = await check_source(
        source,
        source.server_id,
        node="node-1",
        destination="checked",
        heartbeat=HeartbeatSettings(),
    )
    return {finding.name: finding for finding in found}


async def test_a_complete_server_is_well_in_every_point(server: Any) -> None:
    found = await look(server)
    assert all(finding.ok for finding in found.values())
    assert found["server_id"].sentence == "our server id is 8001, which nobody else has"
    assert found["role"].sentence == "the server is writable and replicates from nobody"
    assert not found["heartbeat"].note


async def test_a_clash_of_server_ids_is_named(server: Any) -> None:
    async with registered(server, 8001, "11111111-2222-3333-4444-555555555555"):
        finding = (await look(server))["server_id"]
        assert not finding.ok
        assert "our server id 8001 is in use by replica 'reports.example' (port 33" in finding.sentence
    derived = derive_server_id("node-1", "checked")
    assert (await look(server, server_id=derived))["server_id"].ok
    async with registered(server, derived, "11111111-2222-3333-4444-555555555555"):
        finding = (await look(server, server_id=derived))["server_id"]
        assert finding.ok
        assert f"{derived}, which node and destination give first, is in use" in finding.sentence


@contextlib.asynccontextmanager
async def registered(server: Any, server_id: int, uuid: str) -> AsyncIterator[None]:
    """A replica that has registered. One connection each: MySQL forgets only the last id of a connection that ends."""
    other = await SourceConnection.open(address_of_canal(server))
    try:
        await other.load_variables()
        await other.register(server_id, 5, ReplicaName("reports.example", 33, uuid))
        yield
    finally:
        await other.close()


def address_of_canal(server: Any) -> Any:
    return address_of(SourceSettings(host=server.host, port=server.port, user="canal", password="canal"))


async def test_the_source_s_own_id_is_wrong(server: Any) -> None:
    finding = (await look(server, server_id=server.server_id))["server_id"]
    assert not finding.ok
    assert "the source's own" in finding.sentence


async def test_a_heartbeat_table_that_can_t_be_written_is_a_note_with_all_of_the_sql(server: Any, account: str) -> None:
    finding = (await look(server, account))["heartbeat"]
    assert finding.ok
    assert finding.note
    for part in ("CREATE DATABASE IF NOT EXISTS headrace;", "CREATE TABLE IF NOT EXISTS headrace.heartbeat ("):
        assert part in finding.remedy
    assert "GRANT SELECT, INSERT, UPDATE, CREATE ON headrace.* TO 'lean'@'%';" in finding.remedy
    server.sql(finding.remedy)
    finding = (await look(server, account))["heartbeat"]
    assert (finding.note, finding.sentence) == (False, "heartbeats can be written into headrace.heartbeat")


async def test_a_table_that_the_first_start_creates_is_well(server: Any) -> None:
    server.sql("DROP DATABASE IF EXISTS headrace")
    finding = (await look(server))["heartbeat"]
    assert (finding.note, finding.sentence) == (
        False,
        "headrace.heartbeat does not exist yet: the first start creates it",
    )
    assert server.sql("SHOW DATABASES LIKE 'headrace'") == [], "the check itself changes nothing"


@pytest.mark.parametrize("server", versions.SINCE_57, indirect=True)
async def test_select_on_our_own_tables_alone_reads_nobody_s_columns(server: Any) -> None:
    everywhere = "REPLICATION SLAVE, REPLICATION CLIENT"
    server.sql(f"CREATE USER lean@'%' IDENTIFIED BY 'canal'; GRANT {everywhere} ON *.* TO lean@'%'")
    before = server.sql("SELECT @@global.binlog_row_metadata")[0][0]
    server.sql("SET GLOBAL binlog_row_metadata = 'MINIMAL'; GRANT SELECT, INSERT ON headrace.* TO lean@'%'")
    try:
        finding = (await look(server, "lean"))["SELECT"]
        assert (finding.ok, finding.remedy) == (False, "GRANT SELECT ON *.* TO 'lean'@'%';")
        server.sql("GRANT SELECT ON shop.* TO lean@'%'")
        assert (await look(server, "lean"))["SELECT"].ok
    finally:
        server.sql(f"DROP USER lean@'%'; SET GLOBAL binlog_row_metadata = '{before}'")


async def test_readers_that_can_t_be_seen_are_a_note_with_the_grant(mariadb: Any) -> None:
    mariadb.sql("CREATE USER lean@'%' IDENTIFIED BY 'canal'; GRANT SELECT, REPLICATION SLAVE ON *.* TO lean@'%'")
    try:
        found = await look(mariadb, "lean")
        assert found["server_id"].note
        assert found["server_id"].remedy == "GRANT REPLICATION MASTER ADMIN ON *.* TO 'lean'@'%';"
        assert not found["BINLOG MONITOR"].ok
        assert found["role"].note
        assert found["role"].remedy == "GRANT SLAVE MONITOR ON *.* TO 'lean'@'%';"
    finally:
        mariadb.sql("DROP USER lean@'%'")


def test_each_standby_address_is_checked_and_a_note_does_no_harm(
    mysql: Any, daemon: Callable[..., DaemonProcess]
) -> None:
    def run(port: int) -> subprocess.CompletedProcess[str]:
        text = destination_toml(mysql, "shop", 'type = "null"')
        text = text.replace("[filter]", f'[[source.standby]]\nhost = "127.0.0.1"\nport = {port}\n[filter]')
        return daemon(shop=text).run("check")

    done = run(mysql.port)
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("connection", "identity", "role", "server_id"):
        assert f"shop, standby 127.0.0.1:{mysql.port}: ok      {name}:" in done.stdout
    dead = free_port()
    done = run(dead)
    assert done.returncode == 1
    assert "shop: ok      connection:" in done.stdout
    assert f"shop, standby 127.0.0.1:{dead}: WRONG   connection: MySQL at 127.0.0.1:{dead}" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


async def test_a_read_only_server_gets_no_heartbeats_and_may_be_refused(mysql: Any) -> None:
    mysql.sql("SET GLOBAL read_only = 1")
    try:
        found = await look(mysql)
        assert found["role"].sentence == "the server is read-only and replicates from nobody"
        assert found["heartbeat"].ok
        assert "no heartbeats are written" in found["heartbeat"].sentence
        assert not (await look(mysql, read_only="refuse"))["role"].ok
    finally:
        mysql.sql("SET GLOBAL read_only = 0")


def test_the_account_of_the_readmes_quick_start_lacks_nothing_and_sees_the_tables(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    execute("CREATE TABLE users (id INT PRIMARY KEY, name VARCHAR(40))")
    page = (Path(__file__).parents[2] / "README.md").read_text()
    (sql,) = re.findall(r"```sql\n(CREATE USER .*?)```", page, re.DOTALL)
    changed = (("'canal'@'%'", "quick@'%'"), ("<password>", "canal"), (" shop.*", f" {schema}.*"))
    for old, new in changed:
        assert old in sql
        sql = sql.replace(old, new)
    try:
        for statement in re.sub("--.*", "", sql).split(";"):
            if statement.strip():
                mysql.sql(statement)
        text = destination_toml(mysql, schema, 'type = "null"').replace('user = "canal"', 'user = "quick"')
        done = daemon(shop=text).run("check")
    finally:
        mysql.sql("DROP USER quick@'%'")
    assert (done.returncode, done.stderr) == (0, "")
    assert "shop: ok      rules: every rule fits; 1 table is published" in done.stdout
    assert "note    filter" not in done.stdout
