"""Connection settings of every aiokafka client in the daemon: addresses, TLS, SASL; and why a connection failed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from headrace import runtime
from headrace.adapters.kafka.aiokafka_internals import Consumer, connect_by_ours, describe_topic, try_connection
from headrace.adapters.kafka.oauth import NoToken, provider_of
from headrace.adapters.kafka.options import for_client
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.errors import HeadraceError, SinkError, SinkRejected
from headrace.tls import client_context
from headrace_common.values import parse_host_port

logging.getLogger("aiokafka.conn").setLevel(logging.INFO)  # its debug lines contain passwords and tokens

_PROBE_LIMIT = 5.0
"""Maximum seconds to find out why a broker was not reached."""
_FRESH = 10.0
"""Seconds for which a result is valid."""
_REFUSED = (errors.AuthenticationFailedError, errors.SaslAuthenticationFailed, errors.IllegalSaslStateError)


def connection_arguments(settings: KafkaSinkSettings) -> dict[str, Any]:
    """Returns the connection arguments of a producer, consumer or admin client. Raises SinkRejected if a TLS file can't
    be used."""
    tls, sasl = settings.tls == "required", settings.sasl_mechanism != "none"
    arguments: dict[str, Any] = {
        "bootstrap_servers": list(settings.bootstrap_servers),
        "client_id": settings.client_id,
        "request_timeout_ms": int(settings.request_timeout * 1000),
        "security_protocol": ("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT"),
    }
    if tls:
        arguments["ssl_context"] = client_context("[sink]", SinkRejected, *settings.tls_files)
    if sasl:
        arguments["sasl_mechanism"] = settings.sasl_mechanism
        if settings.sasl_mechanism == "OAUTHBEARER":
            arguments["sasl_oauth_token_provider"] = provider_of(settings)
        else:
            arguments["sasl_plain_username"] = settings.user
            arguments["sasl_plain_password"] = settings.password.get_secret_value()
    return arguments


def client_arguments(settings: KafkaSinkSettings, client: Any, more: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments for a client of a class of aiokafka: `more` are ours, and [sink.options] override them.
    Raises SinkRejected."""
    return {**connection_arguments(settings), **more, **for_client(settings.options, client)}


def make_consumer(settings: KafkaSinkSettings, **more: Any) -> Any:
    """Returns a consumer, not started; `more` are further arguments for it. Raises SinkRejected."""
    return connect_by_ours(Consumer(**client_arguments(settings, AIOKafkaConsumer, more)))


def make_admin(settings: KafkaSinkSettings) -> Any:
    """Returns an admin client, not started. Raises SinkRejected."""
    return connect_by_ours(AIOKafkaAdminClient(**client_arguments(settings, AIOKafkaAdminClient, {})))


def describe(error: BaseException | None) -> str:
    """Returns a client library's error as text for people."""
    if error is None:
        return "cancelled"
    name = type(error).__name__
    return f"{name}: {str(error).removeprefix(name).removeprefix(': ')}".rstrip(": ")  # KafkaError has its own name


async def unreachable(settings: KafkaSinkSettings, error: BaseException) -> SinkError:
    """Returns the error for a missing connection or answer. The library gives no cause, so one connection is made to
    find it."""
    cause, server = await _probe(settings, settings.bootstrap_servers)
    return _explained(settings, server or ",".join(settings.bootstrap_servers), cause or error)


class Diagnosis:
    """The reason why brokers do not answer: determined while nothing is confirmed, and kept for callers that can't
    wait."""

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self._settings = settings
        self._found: HeadraceError | None = None
        self._until = 0.0
        self.gone: SinkError | None = None
        """A topic that the last check found missing: nothing will ever be confirmed for it."""

    async def problem(self, client: Any, topics: Iterable[str] = ()) -> str:
        """Returns a sentence that names a broker, or a missing topic; "" if all brokers accept a connection and no
        topic is missing. `client`: of aiokafka, which knows the brokers; None: the first addresses are asked."""
        known = [f"{broker.host}:{broker.port}" for broker in client.cluster.brokers()] if client is not None else []
        try:
            cause, server = await _probe(self._settings, known or self._settings.bootstrap_servers)
            self._found = _explained(self._settings, server, cause) if cause is not None else None
            if client is not None and self._found is None:
                self._found = self.gone = await self._missing(client, topics)
        except HeadraceError as error:
            self._found = error
        self._until = runtime.monotonic() + _FRESH
        return str(self._found) if self._found is not None else ""

    async def _missing(self, client: Any, topics: Iterable[str]) -> SinkError | None:
        with contextlib.suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(_PROBE_LIMIT):
                for topic in topics:
                    error, _, _ = await describe_topic(client, topic)
                    if error is errors.UnknownTopicOrPartitionError:
                        return self._gone(topic)
        return None

    def _gone(self, topic: str) -> SinkError:
        settings = self._settings
        if settings.capabilities.exactly_once and topic == settings.state_topic:
            return SinkError(
                f"the state topic {topic} is gone: somebody has deleted it, with the positions of its destinations",
                remedy="choose where to go on: 'headrace position set DESTINATION WHERE'",
            )
        return SinkError(
            f"the topic {topic} is gone: somebody has deleted it, and nothing can be published to it",
            remedy="make it again; then publish once more what was in it: 'headrace resync DESTINATION TABLE'",
        )

    def unconfirmed(
        self, client: Any, topic: str, partition: int, error: BaseException | None, *, resent: float = 0.0
    ) -> SinkError:
        """Returns the error for messages that the brokers did not confirm: it has the partition's leader, if known, and
        the result of the last check. `resent`: how many seconds a message was waited for that was sent again."""
        if isinstance(error, errors.UnknownTopicOrPartitionError):
            return self._gone(topic)
        servers, timeout = ",".join(self._settings.bootstrap_servers), self._settings.request_timeout
        if client is not None and (leader := client.cluster.leader_for_partition(TopicPartition(topic, partition))):
            broker = client.cluster.broker_metadata(leader)
            servers = f"{broker.host}:{broker.port}" if broker is not None else servers
        what = f"Kafka at {servers} did not confirm messages for topic {topic}, partition {partition}"
        if resent:
            what += f", one that was sent again, within {resent:g} s"
        elif isinstance(error, (errors.KafkaTimeoutError, TimeoutError)):
            what += f", within {timeout:g} s"
        elif error is not None:
            what += f" ({describe(error)})"
        return self.explained(what)

    def explained(self, what: str) -> SinkError:
        """Returns an error with the result of the last check, if that is still valid."""
        if self._found is None or runtime.monotonic() > self._until:
            return SinkError(what)
        return SinkError(f"{what}: {self._found.args[0]}", remedy=self._found.remedy)


def _explained(settings: KafkaSinkSettings, servers: str, cause: BaseException) -> SinkError:
    match cause:
        case NoToken():
            return SinkError(str(cause), remedy="check [sink] oauth_token_url, user, password and oauth_scope")
        case errors.UnsupportedSaslMechanismError():
            return SinkRejected(
                f"Kafka at {servers} takes no {settings.sasl_mechanism} ({cause})", remedy="set [sink] sasl_mechanism"
            )
        case errors.IllegalSaslStateError():
            return SinkRejected(
                f"the listener of Kafka at {servers} asks for no SASL: no password was checked",
                remedy='set [sink] sasl_mechanism = "none", or bootstrap_servers to a listener with SASL',
            )
        case _ if isinstance(cause, _REFUSED):
            if settings.sasl_mechanism == "OAUTHBEARER":
                provider_of(settings).forget()
            return SinkRejected(
                f"Kafka at {servers} does not let {settings.user} in by {settings.sasl_mechanism} ({_text(cause)})",
                remedy="check [sink] user, password and sasl_mechanism",
            )
        case ssl.SSLCertVerificationError():
            return SinkRejected(
                f"the certificate of Kafka at {servers} is not to be trusted: {cause.verify_message}",
                remedy="set [sink] tls_ca to the CA that signed it; it has to be one of the host that we connect to",
            )
        case ssl.SSLError():
            return SinkError(
                f"TLS with Kafka at {servers} can't begin ({cause.reason or cause})",
                remedy="check whether the listener is one for TLS, and whether it wants [sink] tls_certificate",
            )
    return SinkError(
        f"Kafka at {servers} can't be reached ({describe(cause)})",
        remedy=f'check whether the brokers run, and have listeners for tls = "{settings.tls}", sasl_mechanism = '
        f'"{settings.sasl_mechanism}" there',
    )


async def _probe(settings: KafkaSinkSettings, servers: Iterable[str]) -> tuple[BaseException | None, str]:
    """Returns the first error that says more than that nothing answers, and its address."""
    arguments = connection_arguments(settings)
    found: BaseException | None = None
    where = ""
    del arguments["bootstrap_servers"]
    for server in servers:
        try:
            async with asyncio.timeout(_PROBE_LIMIT):
                await try_connection(*parse_host_port(server), arguments)
        except (KafkaError, OSError, TimeoutError) as error:
            if isinstance(error, (NoToken, errors.UnsupportedSaslMechanismError, ssl.SSLError, *_REFUSED)):
                return error, server
            found, where = found or error, where or server
    return found, where


def _text(error: KafkaError) -> str:
    """Returns the broker's own words."""
    return ", ".join(str(argument) for argument in error.args if argument) or describe(error)
