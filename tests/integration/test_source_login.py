"""What leaves before and at a login, with somebody on the way who would like to have the password."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import SourceError, SourceMisconfigured
from headrace.mysql.checks import check_source
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.ports.finding import Level
from headrace.settings.destination import SourceSettings
from tests.binlogs import connect
from tests.certificates import Authority
from tests.proxy import Proxy
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server
SECRET = "geheim-und-lang"
ANOTHER = "0.0.0.0"
"""Reaches this machine, and is not written as an address of it: settings take it for another machine's."""
ROOT = {"user": "canal", "password": "canal"}
SSL, PLUGIN_AUTH = 0x800, 0x80000


def without_tls(packet: bytes) -> bytes:
    """The greeting (Protocol::HandshakeV10, behind the packet's head of 4 bytes) without the flag CLIENT_SSL."""
    upper = packet.index(0, 5) + 1 + 4 + 8 + 1 + 1  # version, thread, salt, a zero, the lower byte of the flags
    return packet[:upper] + bytes([packet[upper] & ~(SSL >> 8)]) + packet[upper + 1 :]


def asking_in_clear(packet: bytes) -> bytes:
    """The same with another default plugin; its name ends the packet."""
    packet = without_tls(packet)
    greeting = packet[4 : packet.rindex(0, 0, len(packet) - 1) + 1] + b"mysql_clear_password\0"
    return len(greeting).to_bytes(3, "little") + b"\0" + greeting


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def account(server: Any) -> Any:
    server.sql(f"CREATE USER guarded@'%' IDENTIFIED BY '{SECRET}'")
    yield {"user": "guarded", "password": SECRET}
    server.sql("DROP USER guarded@'%'")


async def login(port: int, account: dict[str, str], host: str = "127.0.0.1", **more: Any) -> bool:
    """Logs in; whether the connection is encrypted."""
    settings = SourceSettings.model_validate({"host": host, "port": port, **account, **more})
    async with await SourceConnection.open(address_of(settings)) as connection:
        return (await connection.query("SHOW STATUS LIKE 'Ssl_cipher'"))[0]["Value"] != ""


async def test_a_login_is_encrypted_as_far_as_it_is_asked_for(mysql: Any) -> None:
    found = [await login(mysql.port, ROOT, tls=tls) for tls in ("required", "preferred", "disabled")]
    assert found == [True, True, False]


async def test_nothing_of_a_login_leaves_when_somebody_takes_the_offer_of_tls_out(
    server: Any, account: dict[str, str], tmp_path: Path
) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        proxy.rewrite = without_tls
        for files in ({}, {"tls_ca": Authority(tmp_path).path}):
            with pytest.raises(SourceMisconfigured, match="offers no TLS") as caught:
                await login(proxy.port, account, tls="required", **files)
            assert proxy.heard == b""
            assert 'tls = "preferred"' in caught.value.remedy


async def test_a_password_is_never_given_in_clear(server: Any, account: dict[str, str]) -> None:
    with Proxy("127.0.0.1", server.port) as proxy:
        proxy.rewrite = asking_in_clear
        for tls in ("preferred", "disabled"):
            with pytest.raises(SourceError, match="asks for the password by mysql_clear_password"):
                await login(proxy.port, account, tls=tls)
        assert proxy.heard == b""


async def test_a_password_is_never_given_in_clear_to_a_server_that_asks_later() -> None:
    """AuthSwitchRequest: the plugin is named once the account is."""
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        flags = 0x00AAFFFF & ~SSL | PLUGIN_AUTH
        greeting = b"\x0a9.7.0\0" + bytes(4) + b"12345678\0" + (flags & 0xFFFF).to_bytes(2, "little") + b"\xff\x02\0"
        greeting += (flags >> 16).to_bytes(2, "little") + b"\x15" + bytes(10) + b"123456789012\0"
        greeting += b"mysql_native_password\0"
        writer.write(len(greeting).to_bytes(3, "little") + b"\0" + greeting)
        await reader.readexactly(int.from_bytes((await reader.readexactly(4))[:3], "little"))
        switch = b"\xfemysql_clear_password\0" + bytes(20) + b"\0"
        writer.write(len(switch).to_bytes(3, "little") + b"\2" + switch)
        said = await reader.read()
        writer.close()
        await writer.wait_closed()
        heard.set_result(said)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(SourceError, match="mysql_clear_password"):
            await login(port, {"user": "guarded", "password": SECRET}, tls="preferred")
        assert await asyncio.wait_for(heard, 10) == b""


def test_a_server_without_tls_is_read_with_the_default(
    stack: Any, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    bare = stack.mysql(None, "--tls-version=", name="notls", server_id=77)
    out = tmp_path / "out.jsonl"
    text = destination_toml(bare, "shop", f'type = "jsonl"\npath = "{out}"')
    assert "tls =" not in text
    process = daemon(shop=text).start()
    process.wait_state("shop", "STREAMING")
    with connect(bare) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE TABLE shop.t (id INT PRIMARY KEY)")
        cursor.execute("INSERT INTO shop.t VALUES (1)")
    eventually(lambda: [m["data"][0]["id"] for m in read_jsonl(out)] == ["1"])


async def test_another_machine_s_certificate_is_checked_when_nothing_is_said_of_it(mysql: Any) -> None:
    found = [await login(mysql.port, ROOT, host=ANOTHER, tls=tls) for tls in ("required", "preferred", "disabled")]
    assert found == [True, True, False]
    with Proxy("127.0.0.1", mysql.port) as proxy:
        proxy.rewrite = lambda packet: packet
        for more in ({}, {"tls": "verified"}):
            with pytest.raises(SourceMisconfigured, match=r"is not trusted: .*(self.signed|local issuer)") as caught:
                await login(proxy.port, ROOT, host=ANOTHER, **more)
            for remedy in ('tls_ca = "..."', "ca.pem", 'tls = "required"', 'tls = "disabled"'):
                assert remedy in caught.value.remedy
        assert len(proxy.heard) > 100, "TLS was begun"
        assert b"canal" not in proxy.heard


async def test_another_machine_without_tls_is_refused_when_nothing_is_said_of_it(mysql: Any) -> None:
    with Proxy("127.0.0.1", mysql.port) as proxy:
        proxy.rewrite = without_tls
        with pytest.raises(SourceMisconfigured, match="offers no TLS") as caught:
            await login(proxy.port, ROOT, host=ANOTHER)
        assert proxy.heard == b""
    assert 'tls = "disabled"' in caught.value.remedy


async def test_a_certificate_by_tls_ca_for_the_host_is_taken_and_for_none_other(stack: Any, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key, _ = authority.make("server", address=ANOTHER)
    files = f"--ssl-ca={authority.path}", f"--ssl-cert={certificate}", f"--ssl-key={key}"
    certified = stack.mysql(None, *files, name="certified", server_id=78)
    assert await login(certified.port, ROOT, host=ANOTHER, tls_ca=authority.path)
    for host in ("localhost", "127.0.0.1"):  # with tls_ca the default of this machine checks too
        with pytest.raises(SourceMisconfigured, match=r"(Hostname|IP address) mismatch") as caught:
            await login(certified.port, ROOT, host=host, tls_ca=authority.path)
        assert f"made for {host}" in caught.value.remedy
    with pytest.raises(SourceMisconfigured, match=r"is not trusted: self.signed certificate"):
        await login(certified.port, ROOT, host=ANOTHER)


def test_check_reports_once_that_a_certificate_is_not_trusted(mysql: Any, daemon: Callable[..., DaemonProcess]) -> None:
    text = destination_toml(mysql, "shop", 'type = "null"', snapshot="initial")
    status, printed = daemon(shop=text.replace(f'"{mysql.host}"', f'"{ANOTHER}"')).command("check")
    assert status == 1
    assert printed.count("is not trusted") == printed.count("shop: wrong ") == printed.count("tls_ca =") == 1, printed


async def test_check_says_that_the_server_offers_no_tls(mysql: Any) -> None:
    with Proxy("127.0.0.1", mysql.port) as proxy:
        proxy.rewrite = without_tls
        raw = {"host": "127.0.0.1", "port": proxy.port, "user": "canal", "password": "canal", "tls": "required"}
        [finding] = await check_source(SourceSettings.model_validate(raw), 8001)
    assert finding.level is Level.WRONG
    assert "offers no TLS" in finding.sentence
