"""A Kafka broker that asks who one is: a listener for each way, accounts, and an endpoint that gives tokens."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest_v1

from devstack import Stack
from devstack.servers.kafka_users import add_user
from headrace.adapters.kafka.aiokafka_internals import client_of
from headrace.adapters.kafka.settings import KafkaSinkSettings
from tests.certificates import Authority

USER, PASSWORD = "relay", "s3cr=t,w+rd ü"
_SASL = "org.apache.kafka.common.security"
_PROTOCOLS = {"TLS": "SSL", "MUTUAL": "SSL", "SASL": "SASL_PLAINTEXT", "SASLTLS": "SASL_SSL"}


class Secured:
    """The broker's addresses by listener, and what clients need."""

    def __init__(self, kafka: Any, folder: Path, authority: Authority) -> None:
        self._ports = {name: reported for name, (_, reported) in kafka.brokers[0].listeners.items()}
        self.plain: str = kafka.bootstrap_servers
        self.authority, self.folder = authority, folder

    def settings(self, security: str, listener: str = "", **more: Any) -> KafkaSinkSettings:
        """Of a sink that comes in by a listener, which without a name is the one for its security."""
        listener = listener or {"tls": "TLS", "sasl": "SASL", "sasl_tls": "SASLTLS"}[security]
        raw: dict[str, Any] = {
            "type": "kafka",
            "bootstrap_servers": f"127.0.0.1:{self._ports[listener]}",
            "tls": "required" if security.endswith("tls") else "disabled",
            "request_timeout": 10,
        }
        if security.startswith("sasl"):
            raw |= {"sasl_mechanism": "SCRAM-SHA-512", "user": USER, "password": PASSWORD}
        if security.endswith("tls"):
            raw["tls_ca"] = self.authority.path
        return KafkaSinkSettings.model_validate(raw | more)


@contextmanager
def secured(stack: Stack, folder: Path) -> Iterator[Secured]:
    authority = Authority(folder)
    both = authority.make("broker")[2]
    keys = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        + ",".join(f"{name}:{protocol}" for name, protocol in _PROTOCOLS.items()),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.path),
        "listener.name.mutual.ssl.client.auth": "required",
        "auto.create.topics.enable": "false",
        # a topic that nobody has restricted is everybody's
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
    }
    for name in ("sasl", "sasltls"):
        head = f"listener.name.{name}"
        plain = "".join(f"\\u{ord(one):04x}" for one in PASSWORD)  # the file is in ISO 8859-1
        keys |= {
            f"{head}.plain.sasl.jaas.config": f'{_SASL}.plain.PlainLoginModule required user_{USER}="{plain}";',
            f"{head}.scram-sha-256.sasl.jaas.config": f"{_SASL}.scram.ScramLoginModule required;",
            f"{head}.scram-sha-512.sasl.jaas.config": f"{_SASL}.scram.ScramLoginModule required;",
            # its validator takes unsigned tokens, and looks at their times
            f"{head}.oauthbearer.sasl.jaas.config": f"{_SASL}.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";',
        }
    listeners = {name: lambda _, port: port for name in _PROTOCOLS}
    kafka = stack.kafka(name="secured", settings=keys, listeners=listeners)
    try:
        broker = kafka.brokers[0]
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            add_user(broker.host, broker.port, USER, PASSWORD, mechanism)
        yield Secured(kafka, folder, authority)
    finally:
        kafka.kill()


async def restrict(bootstrap: str, name: str, user: str, operation: int, kind: int = 2) -> None:
    """Lets one account alone do one thing with a topic, or what else `kind` is; `operation` by its number in
    AclOperation, `kind` in ResourceType."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        client, literal, allow = client_of(admin), 3, 3
        rule = CreateAclsRequest_v1([(kind, name, literal, f"User:{user}", "*", operation, allow)])
        rule.prepare = lambda _: rule
        answer = await client.send(client.get_random_node(), rule)
        assert not answer.creation_responses[0][0], answer
    finally:
        await admin.close()


def token(life: float, subject: str = USER) -> str:
    """An unsigned JWT."""

    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    now = time.time()
    return f"{part({'alg': 'none'})}.{part({'sub': subject, 'iat': now - 1, 'exp': now + life})}."


class TokenServer:
    """Gives tokens to whoever knows the password; it can be told to be slow, broken, or to change its mind."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        self.accounts: list[str] = []
        self.life = 300.0
        """What is said of a token."""
        self.token_life = 300.0
        """What stands in it."""
        self.answer: tuple[int, Any] | None = None
        self.delay = 0.0
        self.url = ""

    async def give(self, request: web.Request) -> web.StreamResponse:
        self.asked.append({key: str(value) for key, value in (await request.post()).items()})
        self.accounts.append(request.headers.get("Authorization", ""))
        await asyncio.sleep(self.delay)
        if self.answer is not None:
            status, body = self.answer
            text = body if isinstance(body, str) else json.dumps(body)
            return web.Response(status=status, text=text, headers={"Location": "/elsewhere"})
        if self.accounts[-1] != "Basic " + base64.b64encode(b"relay:s3cr%3Dt%2Cw%2Brd+%C3%BC").decode():
            return web.json_response({"error": "invalid_client", "error_description": PASSWORD}, status=401)
        return web.json_response({"access_token": token(self.token_life), "expires_in": self.life})


@asynccontextmanager
async def token_server() -> AsyncIterator[TokenServer]:
    server = TokenServer()
    app = web.Application()
    app.router.add_post("/token", server.give)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/token"
    try:
        yield server
    finally:
        await runner.cleanup()
