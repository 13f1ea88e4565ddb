"""Every client that encrypts refuses a server that it can't check, unless it is told otherwise, and says nothing to it.
MySQL's: tests/integration/test_source_login.py."""

from __future__ import annotations

import asyncio
import os
import socket
import socketserver
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.adapters.elasticsearch.index import ElasticsearchIndex
from headrace.adapters.kafka.oauth import TokenProvider
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.sink import KafkaSink
from headrace.adapters.rabbitmq.connection import BrokerConnection
from headrace.adapters.rabbitmq.settings import RabbitMqSinkSettings
from headrace.adapters.zookeeper.settings import ZooKeeperSettings
from headrace.adapters.zookeeper.sockets import Connector
from headrace.cli.common import CommandRefused
from headrace.cli.control import health
from headrace.lease import Lease
from headrace.ports.documents import IndexAccess
from headrace.settings.daemon import HttpSettings
from headrace.settings.destination import Settings
from headrace_common.tls import client_context, tls_by_host
from headrace_consume.broker import Broker
from headrace_consume.seen_redis import RedisSeen
from headrace_consume.settings import DuplicatesSettings, RabbitMqSettings
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.settings import ElasticsearchSettings
from tests.certificates import Authority

SECRET = "geheim-und-lang"


class Server(socketserver.ThreadingTCPServer):
    """Speaks TLS with a certificate, and keeps what it hears below it."""

    daemon_threads = True

    def __init__(self, chain: Path, key: Path, answer: bytes = b"") -> None:
        self.heard = b""
        self.begun = threading.Event()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain, key)
        server = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                server.begun.set()
                with suppress(OSError), context.wrap_socket(self.request, server_side=True) as encrypted:
                    while piece := encrypted.recv(4096):
                        server.heard += piece
                        if answer:
                            encrypted.sendall(answer)
                            return

        super().__init__(("127.0.0.1", 0), Handler)
        self.port = int(self.server_address[1])

    @contextmanager
    def running(self) -> Iterator[Server]:
        thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            thread.join()
            self.server_close()


def required(ca: Path | None) -> dict[str, Any]:
    return {"tls": "required"} | ({"tls_ca": ca} if ca else {})


async def rabbitmq(host: str, ca: Path | None) -> None:
    given = {"type": "rabbitmq", "hosts": host, "user": "u", "password": SECRET, **required(ca)}
    await BrokerConnection(RabbitMqSinkSettings.model_validate(given), None, None, None).open()  # type: ignore[arg-type]


async def rabbitmq_consumer(host: str, ca: Path | None) -> None:
    given = {"hosts": host, "user": "u", "password": SECRET, "queue": "q", **required(ca)}
    await Broker.connect(RabbitMqSettings.model_validate(given), "test")


async def kafka(host: str, ca: Path | None) -> None:
    given = {"type": "kafka", "bootstrap_servers": host, "request_timeout": 3, **required(ca)}
    await KafkaSink(KafkaSinkSettings.model_validate(given), Lease()).start()


async def kafka_token(host: str, ca: Path | None) -> None:
    url = f"https://{host}/token"
    given = {"user": "u", "password": SECRET, "sasl_mechanism": "OAUTHBEARER", "oauth_token_url": url, **required(ca)}
    settings = KafkaSinkSettings.model_validate({"type": "kafka", "bootstrap_servers": host, **given})
    await TokenProvider(settings).token()


async def zookeeper(host: str, ca: Path | None) -> None:
    connect = Connector(ZooKeeperSettings.model_validate({"hosts": host, **required(ca)}))
    name, _, port = host.rpartition(":")
    await asyncio.to_thread(connect, (name, int(port)))


async def elasticsearch(host: str, ca: Path | None) -> None:
    given = {"hosts": [f"https://{host}"], "user": "u", "password": SECRET}
    made = Cluster(ElasticsearchSettings.model_validate(given | ({"tls_ca": ca} if ca else {})))
    await asyncio.to_thread(made.call, "GET", "x")


async def elasticsearch_index(host: str, ca: Path | None) -> None:
    index = ElasticsearchIndex(IndexAccess(f"https://{host}", "x", user="u", password=SECRET, ca=ca))
    try:
        async for _ in index.all():
            pass
    finally:
        await index.close()


async def redis(host: str, ca: Path | None) -> None:
    url = f"rediss://u:{SECRET}@{host}/0" + (f"?ssl_ca_certs={ca}" if ca else "")
    seen = RedisSeen(DuplicatesSettings.model_validate({"store": "redis", "url": url}), "test")
    try:
        await seen.open()
    finally:
        await seen.close()


CLIENTS = (
    rabbitmq,
    rabbitmq_consumer,
    kafka,
    kafka_token,
    zookeeper,
    elasticsearch,
    elasticsearch_index,
    redis,
)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.__name__)
@pytest.mark.parametrize(("trusted", "address"), [(False, "127.0.0.1"), (True, "192.0.2.1")])
async def test_a_server_that_can_not_be_checked_hears_nothing(
    client: Callable[[str, Path | None], Awaitable[None]], trusted: bool, address: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    certificate, key, _ = authority.make("server", address=address)
    with Server(certificate, key).running() as server:
        why = "(?i)mismatch|not valid for" if trusted else "(?i)certificate.verify.failed|self.signed|local issuer"
        with pytest.raises(Exception, match=why):
            await client(f"127.0.0.1:{server.port}", authority.path if trusted else None)
        assert server.begun.is_set()
    assert server.heard == b""


def test_a_zookeeper_that_accepts_and_says_nothing_has_a_time_limit_with_a_text(tmp_path: Path) -> None:
    """kazoo logs strerror and nothing else, and the session's error shows what kazoo logs."""
    ca = Authority(tmp_path).path
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connect = Connector(ZooKeeperSettings.model_validate({"hosts": "127.0.0.1:1", **required(ca)}))
        with pytest.raises(TimeoutError) as error:
            connect(silent.getsockname(), timeout=0.1)
    assert error.value.strerror == "no encrypted connection within 0.1 s"


@pytest.mark.parametrize("ours", [True, False])
async def test_a_command_knows_its_daemon_by_the_daemon_s_own_certificate(ours: bool, tmp_path: Path) -> None:
    """The file has the authority's too, as the daemon sends it: another one that the authority signed is not ours."""
    authority = Authority(tmp_path)
    files = {name: authority.make(name, address="192.0.2.1") for name in ("daemon", "other")}
    chain = tmp_path / "chain.pem"
    chain.write_text(files["daemon"][0].read_text() + authority.path.read_text())
    answer = b'HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 10\r\n\r\n{"node":1}'
    served = (chain, files["daemon"][1]) if ours else files["other"][:2]
    with Server(*served, answer).running() as server:
        http = HttpSettings.model_validate(
            {"listen": f"127.0.0.1:{server.port}", "tls_certificate": chain, "tls_key": files["daemon"][1]}
        )
        settings = Settings.model_construct(http=http)
        if ours:
            assert await health(settings) == {"node": 1}
            return
        with pytest.raises(CommandRefused, match="certificate verify failed"):
            await health(settings)
    assert server.heard == b""


@pytest.mark.parametrize(
    ("host", "tls"),
    [
        ("localhost", "preferred"),
        ("LocalHost", "preferred"),
        ("127.0.0.1", "preferred"),
        ("127.8.9.10", "preferred"),
        ("::1", "preferred"),
        ("mysql", "verified"),
        ("localhost.example.org", "verified"),
        ("127.0.0.1.example.org", "verified"),
        ("ip6-localhost", "verified"),
        ("0.0.0.0", "verified"),
        ("10.0.0.1", "verified"),
        ("::", "verified"),
        (socket.gethostname(), "verified"),
    ],
)
def test_a_mysql_server_is_checked_unless_it_is_written_as_one_of_this_machine(host: str, tls: str) -> None:
    assert tls_by_host(None, host) == tls
    assert tls_by_host("required", host) == "required"


@pytest.mark.parametrize("system", [True, False])
def test_cas_are_read_once_and_again_when_their_file_has_changed(
    system: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A MySQL connection that reads the system's CAs takes tens of milliseconds, in which nothing else runs."""
    file = Authority(tmp_path).path
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    ca = None if system else file
    first = client_context(ca)
    assert client_context(ca) is first
    Authority(tmp_path, "another authority")  # writes the same file
    os.utime(file, ns=(1, 1))
    assert {dict(sum(name["subject"], ()))["commonName"] for name in client_context(ca).get_ca_certs()} == {
        "another authority"
    }


def test_what_is_only_encrypted_reads_no_cas_and_checks_nothing() -> None:
    context = client_context(None, verify=False)
    assert context.verify_mode is ssl.CERT_NONE
    assert not context.check_hostname
    assert context.cert_store_stats()["x509_ca"] == 0
    assert client_context(None).verify_mode is ssl.CERT_REQUIRED
