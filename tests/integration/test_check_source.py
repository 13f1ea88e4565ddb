"""`headrace check` on real servers: who has our server id, whether heartbeats can be written, standby addresses."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from devstack.ports import free_port
from headrace.model import Position
from headrace.mysql.checks import Wanted, check_source
from headrace.mysql.position.inventory import take_inventory
from headrace.mysql.wire.connection import ReplicaName, SourceConnection, address_of
from headrace.ports.finding import Finding, Level
from headrace.settings.destination import HeartbeatSettings, SourceSettings
from headrace.settings.load import derive_server_id
from tests import versions
from tests.once import until
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

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


async def check(server: Any, user: str = "canal", wanted: Wanted | None = None, **more: Any) -> dict[str, Finding]:
    source = SourceSettings(
        host=server.host, port=server.port, user=user, password="canal", server_id=more.pop("server_id", 8001)
    ).model_copy(update=more)
    found = await check_source(source, source.server_id, node="node-1", destination="checked", wanted=wanted)
    return {finding.name: finding for finding in found}


async def test_a_complete_server_is_well_in_every_point(server: Any) -> None:
    found = await check(server)
    assert not any(finding.level is Level.WRONG for finding in found.values())
    old = server.sql("SELECT VERSION()")[0][0].startswith("5.6")
    unasked = "; whether another replica has it is not checked: that can crash MySQL 5.6"
    assert found["server_id"].sentence == "our server id is 8001" + (unasked if old else ", which nobody else has")
    assert found["clock"].sentence == "the source's clock and ours differ by less than 2 s"
    assert found["role"].sentence == "the server is writable and is not a replica"


@pytest.mark.parametrize("server", versions.SINCE_57, indirect=True)  # MySQL 5.6 is not asked
async def test_a_clash_of_server_ids_is_named(server: Any) -> None:
    async with registered(server, 8001, "11111111-2222-3333-4444-555555555555"):
        finding = (await check(server))["server_id"]
        assert finding.level is Level.WRONG
        assert "our server id 8001 is in use by replica 'reports.example' (port 33" in finding.sentence
    derived = derive_server_id("node-1", "checked")
    assert (await check(server, server_id=derived))["server_id"].level is Level.OK
    async with registered(server, derived, "11111111-2222-3333-4444-555555555555"):
        finding = (await check(server, server_id=derived))["server_id"]
        assert finding.level is Level.OK
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
    finding = (await check(server, server_id=server.server_id))["server_id"]
    assert finding.level is Level.WRONG
    assert "the source's own" in finding.sentence


async def test_a_heartbeat_table_that_can_t_be_written_is_a_warning_with_all_of_the_sql(
    server: Any, account: str
) -> None:
    finding = (await check(server, account))["heartbeat"]
    assert finding.level is Level.WARNING
    made, table, grant = finding.sql
    assert made == "CREATE DATABASE IF NOT EXISTS headrace;"
    assert table.startswith("CREATE TABLE IF NOT EXISTS headrace.heartbeat (")
    assert grant == "GRANT SELECT, INSERT, UPDATE, CREATE ON headrace.* TO 'lean'@'%';"
    for statement in finding.sql:
        server.sql(statement)
    finding = (await check(server, account))["heartbeat"]
    assert (finding.level, finding.sentence) == (Level.OK, "heartbeats can be written into headrace.heartbeat")


async def test_a_table_that_the_first_start_creates_is_well(server: Any) -> None:
    server.sql("DROP DATABASE IF EXISTS headrace")
    finding = (await check(server))["heartbeat"]
    assert (finding.level, finding.sentence) == (
        Level.OK,
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
        finding = (await check(server, "lean"))["SELECT"]
        assert (finding.level, finding.sql) == (Level.WRONG, ("GRANT SELECT ON *.* TO 'lean'@'%';",))
        server.sql("GRANT SELECT ON shop.* TO lean@'%'")
        assert (await check(server, "lean"))["SELECT"].level is Level.OK
    finally:
        server.sql(f"DROP USER lean@'%'; SET GLOBAL binlog_row_metadata = '{before}'")


async def test_the_grant_names_the_schemas_that_the_filter_names(server: Any) -> None:
    server.sql("CREATE USER lean@'%' IDENTIFIED BY 'canal'; GRANT SELECT ON `sho_`.* TO lean@'%'")
    wanted = Wanted(("shop", "crm", "crm2"), reads_rows=True)
    try:
        finding = (await check(server, "lean", wanted))["SELECT"]
        grants = ("GRANT SELECT ON `crm`.* TO 'lean'@'%';", "GRANT SELECT ON `crm2`.* TO 'lean'@'%';")
        assert (finding.level, finding.sql) == (Level.WRONG, grants)
        assert "lacks SELECT on crm, crm2: it sees no captured table there" in finding.sentence
        server.sql("".join(grants))
        assert (await check(server, "lean", wanted))["SELECT"].level is Level.OK
    finally:
        server.sql("DROP USER lean@'%'")


async def test_a_source_without_checksums_is_a_warning(server: Any) -> None:
    server.sql("SET GLOBAL binlog_checksum = 'NONE'")
    try:
        finding = (await check(server))["binlog_checksum"]
        assert (finding.level, finding.sentence) == (
            Level.WARNING,
            "binlog_checksum is NONE: a damaged byte would be published as a value",
        )
        server.sql(finding.sql[0])
        assert "binlog_checksum" not in await check(server)
    finally:
        server.sql("SET GLOBAL binlog_checksum = 'CRC32'")


@pytest.mark.parametrize("server", versions.SINCE_57, indirect=True)
async def test_a_grant_names_an_account_with_a_quote_as_the_server_reads_it(server: Any) -> None:
    server.sql("CREATE USER `o'dd`@'%' IDENTIFIED BY 'canal'")
    try:
        finding = (await check(server, "o'dd"))["REPLICATION SLAVE"]
        assert finding.sql == ("GRANT REPLICATION SLAVE ON *.* TO 'o''dd'@'%';",)
        server.sql(finding.sql[0])
        assert (await check(server, "o'dd"))["REPLICATION SLAVE"].level is Level.OK
    finally:
        server.sql("DROP USER `o'dd`@'%'")


async def test_a_clock_that_differs_is_a_warning(server: Any) -> None:
    before = server.sql("SELECT @@global.init_connect")[0][0]
    try:
        for step, words in ((500, "ahead of"), (-500, "behind")):
            server.sql(f"SET GLOBAL init_connect = 'SET timestamp = UNIX_TIMESTAMP(SYSDATE(6)) + {step}'")
            finding = (await check(server))["clock"]
            assert finding.level is Level.WARNING
            (seconds,) = re.findall(rf"the source's clock is ([\d.]+) s {words} ours", finding.sentence)
            assert 440 < float(seconds) < 560, "a session's clock stands still from its beginning on"
    finally:
        server.sql(f"SET GLOBAL init_connect = '{before}'")


async def test_a_position_that_is_purged_soon_or_was_is_reported(stack: Stack) -> None:
    for kind, gtids in (("mysql", True), ("mariadb", False)):
        server = stack.sql(kind, name=f"{kind}-purging")
        try:
            server.sql("CREATE DATABASE before_it")
            async with await SourceConnection.open(address_of_canal(server)) as connection:
                inventory = await take_inventory(connection)
            gtid_set = inventory.executed if gtids else ""
            stored = Wanted(position=Position(inventory.server_uuid, *inventory.end, gtid_set))
            assert (await check(server, wanted=stored))["retention"].level is Level.OK
            server.sql("FLUSH BINARY LOGS; CREATE DATABASE later; FLUSH BINARY LOGS")
            server.sql("SET GLOBAL binlog_expire_logs_seconds = 3")

            async def is_reported(server: Any = server, stored: Wanted = stored) -> bool:
                return (await check(server, wanted=stored))["retention"].level is not Level.OK

            await until(is_reported)
            found = (await check(server, wanted=stored))["retention"]
            assert found.level is Level.WARNING
            assert "the source may purge the binlog of our position" in found.sentence
            newest = server.sql("SHOW BINARY LOGS")[-1][0]
            server.sql(f"PURGE BINARY LOGS TO '{newest}'")
            found = (await check(server, wanted=stored))["retention"]
            assert found.level is Level.WRONG
            assert "the source has purged what follows the stored position" in found.sentence
            assert f"#{'gtids_purged' if gtids else 'position_purged'}" in found.remedy
        finally:
            server.kill()


async def test_without_gtids_a_start_that_reads_tables_needs_a_row_of_its_own(stack: Stack) -> None:
    server = stack.mysql(None, "--gtid-mode=OFF", "--enforce-gtid-consistency=OFF", name="without-gtids")
    server.sql(
        "CREATE USER lean@'%' IDENTIFIED BY 'canal';"
        "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO lean@'%'; DROP DATABASE IF EXISTS headrace"
    )
    reads = Wanted(reads_rows=True, heartbeat=HeartbeatSettings(enabled=False))
    assert "watermark" not in await check(server, "lean"), "what reads no table needs none"
    finding = (await check(server, "lean", reads))["watermark"]
    assert finding.level is Level.WRONG
    assert "'lean'@'%' may not write into headrace.watermark" in finding.sentence
    for statement in finding.sql:
        server.sql(statement)
    assert (await check(server, "lean", reads))["watermark"].level is Level.OK
    server.sql("DROP TABLE headrace.watermark")
    finding = (await check(server, "lean", reads))["watermark"]
    assert (finding.level, "does not exist yet" in finding.sentence) == (Level.OK, True)


async def test_a_position_of_another_server_is_reported(mariadb: Any) -> None:
    stored = Wanted(position=Position("mariadb-0-4711", "mysql-bin.000001", 4))
    finding = (await check(mariadb, wanted=stored))["retention"]
    assert finding.level is Level.WARNING
    assert "is one of another server, mariadb-0-4711" in finding.sentence
    assert finding.remedy.endswith("#source_changed")


def test_an_unreachable_source_is_reported_once_and_what_depends_on_it_is_not_checked(
    daemon: Callable[..., DaemonProcess], mysql: Any
) -> None:
    port = free_port()
    text = destination_toml(mysql, "shop", 'type = "null"', snapshot="initial")
    process = daemon(shop=text.replace(f"port = {mysql.port}", f"port = {port}"))
    status, printed = process.command("check")
    assert status == 1
    assert printed.count("can't be reached") == printed.count("shop: wrong ") == 1
    for name in ("position", "rules"):
        why = f"not checked, because the source 127.0.0.1:{port} can't be asked"
        assert f"shop: warning {name}: {why}\n" in printed
    assert "shop: ok      sink: " in printed


def test_a_start_that_lacks_select_asks_for_the_captured_schemas_alone(
    server: Any, daemon: Callable[..., DaemonProcess]
) -> None:
    monitor = "BINLOG MONITOR" if "maria" in server.sql("SELECT VERSION()")[0][0].lower() else "REPLICATION CLIENT"
    server.sql(f"CREATE USER blind@'%' IDENTIFIED BY 'canal'; GRANT REPLICATION SLAVE, {monitor} ON *.* TO blind@'%'")
    known = bool(server.sql("SHOW VARIABLES LIKE 'binlog_row_metadata'"))  # else names come from the tables alone
    text = destination_toml(server, "shop", 'type = "null"').replace('user = "canal"', 'user = "blind"')
    try:
        if known:
            server.sql("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
        process = daemon(one=text).start()
        reported = process.wait_state("one", "FAILED")["message"]
        assert "GRANT SELECT ON `shop`.* TO 'blind'@'%';" in reported
        assert "SELECT ON *.*" not in reported
    finally:
        server.sql("DROP USER blind@'%'" + ("; SET GLOBAL binlog_row_metadata = 'FULL'" if known else ""))


def test_the_sql_that_check_prints_repairs_all_of_it(
    server: Any, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    server.sql("CREATE USER bare@'%' IDENTIFIED BY 'canal'; SET GLOBAL binlog_format = 'MIXED'")
    server.sql("CREATE DATABASE bared; CREATE TABLE bared.t (id INT PRIMARY KEY)")
    text = destination_toml(server, "bared", 'type = "null"').replace('user = "canal"', 'user = "bare"')
    process = daemon(one=text, two=text)
    try:
        status, printed = process.command("check", "--json")
        reported = json.loads(printed)
        assert (status, reported["summary"]["wrong"] > 0) == (1, True)
        blind = [one for one in reported["findings"] if one["name"] == "rules" and one["destination"] == "one"]
        assert [one["sentence"] for one in blind] == [
            "not checked, because the account may not read the captured tables"
        ]
        status, script = process.command("check", "--sql")
        assert (status, script.count("GRANT SELECT ON `bared`.* TO 'bare'@'%';")) == (1, 1)
        assert [line for line in script.splitlines() if line.startswith("--")] == [
            f"-- one: source {server.host}:{server.port}"
        ]
        server.sql(script)
        server.sql(process.command("check", "--sql")[1])  # what could not be seen before
        status, printed = process.command("check")
        assert (status, printed.splitlines()[-1]) == (0, "all is well"), printed
        assert "one: ok      rules: every rule fits; 1 table is published" in printed
    finally:
        server.sql("DROP USER bare@'%'; SET GLOBAL binlog_format = 'ROW'; DROP DATABASE bared")


async def test_readers_that_can_t_be_seen_are_a_warning_with_the_grant(mariadb: Any) -> None:
    mariadb.sql("CREATE USER lean@'%' IDENTIFIED BY 'canal'; GRANT SELECT, REPLICATION SLAVE ON *.* TO lean@'%'")
    try:
        found = await check(mariadb, "lean")
        assert found["server_id"].level is Level.WARNING
        assert found["server_id"].sql == ("GRANT REPLICATION MASTER ADMIN ON *.* TO 'lean'@'%';",)
        assert found["BINLOG MONITOR"].level is Level.WRONG
        assert found["role"].level is Level.WARNING
        assert found["role"].sql == ("GRANT SLAVE MONITOR ON *.* TO 'lean'@'%';",)
    finally:
        mariadb.sql("DROP USER lean@'%'")


def test_each_standby_address_is_checked_and_a_warning_does_no_harm(
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
    assert f"shop, standby 127.0.0.1:{dead}: wrong   connection: MySQL at 127.0.0.1:{dead}" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


async def test_a_read_only_server_gets_no_heartbeats_and_may_be_refused(mysql: Any) -> None:
    mysql.sql("SET GLOBAL read_only = 1")
    try:
        found = await check(mysql)
        assert found["role"].sentence == "the server is read-only and is not a replica"
        assert found["heartbeat"].level is Level.OK
        assert "no heartbeats are written" in found["heartbeat"].sentence
        assert (await check(mysql, read_only="refuse"))["role"].level is Level.WRONG
    finally:
        mysql.sql("SET GLOBAL read_only = 0")


def test_the_readmes_sql_and_configuration_are_enough(
    stack: Stack, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "README.md").read_text()
    account, settings = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    (toml,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    server = stack.mysql(name="readme")
    try:
        server.sql("DROP USER 'canal'@'%'; CREATE DATABASE shop; CREATE TABLE shop.users (id INT, name VARCHAR(40))")
        server.sql("INSERT INTO shop.users VALUES (1, 'Anne')")
        server.sql("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
        server.sql(account + settings)
        out = tmp_path / "out.jsonl"
        for old, new in (
            ('host = "127.0.0.1"', f'host = "127.0.0.1"\nport = {server.port}'),
            ("${SHOP_PASSWORD}", "<password>"),
            ('path = "-"', f'path = "{out}"'),
        ):
            assert old in toml
            toml = toml.replace(old, new)
        process = daemon(shop=toml)
        status, printed = process.command("check")
        assert (status, printed.splitlines()[-1]) == (0, "all is well"), printed
        assert "warning" not in printed
        assert "shop: ok      rules: every rule fits; 1 table is published" in printed
        process.start()
        eventually(
            lambda: [row for message in read_jsonl(out) for row in message["data"]] == [{"id": "1", "name": "Anne"}]
        )
        assert process.terminate() == 0
    finally:
        server.kill()
