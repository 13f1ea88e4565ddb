"""A key with a password is refused by every client that has a certificate, and nobody is asked for the password."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from tests.certificates import Authority

USES = {
    "rabbitmq": """
import asyncio
from headrace.adapters.rabbitmq.settings import RabbitMqSinkSettings
from headrace.adapters.rabbitmq.connection import BrokerConnection
given = {"type": "rabbitmq", "hosts": "127.0.0.1:1", "user": "u", "password": "p", "tls": "required"}
settings = RabbitMqSinkSettings.model_validate(given | {"tls_certificate": certificate, "tls_key": key})
asyncio.run(BrokerConnection(settings, None, None, None).open())
""",
    "kafka": """
from headrace.adapters.kafka.connection import connection_arguments
from headrace.adapters.kafka.settings import KafkaSinkSettings
given = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "tls": "required"}
connection_arguments(KafkaSinkSettings.model_validate(given | {"tls_certificate": certificate, "tls_key": key}))
""",
    "zookeeper": """
from headrace.adapters.zookeeper.settings import ZooKeeperSettings
from headrace.adapters.zookeeper.sockets import Connector
given = {"hosts": "127.0.0.1:1", "tls": "required", "tls_certificate": certificate, "tls_key": key}
Connector(ZooKeeperSettings.model_validate(given))
""",
    "etcd": """
from headrace.adapters.etcd.connection import credentials
from headrace.adapters.etcd.settings import EtcdSettings
given = {"endpoints": "127.0.0.1:1", "tls": "required", "tls_certificate": certificate, "tls_key": key}
credentials(EtcdSettings.model_validate(given))
""",
    "consumer": """
import asyncio
from headrace_consume.broker import Broker
from headrace_consume.settings import RabbitMqSettings
given = {"hosts": "127.0.0.1:1", "user": "u", "password": "p", "queue": "q", "tls": "required"}
settings = RabbitMqSettings.model_validate(given | {"tls_certificate": certificate, "tls_key": key})
asyncio.run(Broker.connect(settings, "test"))
""",
}
# The leader of a session that opens a terminal has it, so that there is somebody to be asked.
BEGIN = "import os, sys\nos.open(os.ttyname(0), os.O_RDWR)\ncertificate, key = sys.argv[1:]\n"


@pytest.mark.parametrize("client", USES)
def test_nobody_is_asked_for_the_password_of_a_key(client: str, tmp_path: Path) -> None:
    certificate, plain, _ = Authority(tmp_path).make("client")
    secret = serialization.load_pem_private_key(plain.read_bytes(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"quite a secret"),
    )
    plain.write_bytes(secret)
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-c", BEGIN + USES[client], str(certificate), str(plain)],
            stdin=theirs,
            capture_output=True,
            text=True,
            start_new_session=True,
            timeout=30,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 1
    assert any(word in done.stderr.splitlines()[-1] for word in ("can't be used", "SSL")), done.stderr
