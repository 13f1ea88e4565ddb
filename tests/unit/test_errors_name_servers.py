"""An error of a server names it, since there may be several: standbys of a source, and hosts of a broker."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Any

import pymysql.err
import pytest
from aiokafka.errors import KafkaConnectionError
from pamqp import commands, frame

from headrace.adapters.kafka.connection import unreachable
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.rabbitmq.connection import BrokerConnection
from headrace.adapters.rabbitmq.settings import RabbitMqSinkSettings
from headrace.errors import SinkError, SinkRejected, SourceError
from headrace.mysql.wire import connection as wire
from headrace.mysql.wire.connection import Address, SourceConnection

SECRET = "hunter2-4711"
_LOST = pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")


class _Cursor:
    def __init__(self, fails: Exception) -> None:
        self._fails = fails

    async def execute(self, _: str) -> int:
        raise self._fails


class _Client:
    """Of MySQL; every statement fails."""

    def __init__(self, fails: Exception) -> None:
        self._fails, self._writer = fails, None

    async def cursor(self, _: object) -> _Cursor:
        return _Cursor(self._fails)


def source(fails: Exception) -> SourceConnection:
    return SourceConnection(_Client(fails), Address("db-2", 3307, "canal", SECRET))


@pytest.mark.parametrize("fails", [_LOST, pymysql.err.InterfaceError("(0, 'Not connected')"), TimeoutError()])
async def test_a_statement_that_fails_names_the_source(fails: Exception) -> None:
    with pytest.raises(SourceError, match="db-2:3307") as caught:
        await source(fails).query("SHOW GLOBAL VARIABLES")
    assert SECRET not in str(caught.value)
    with pytest.raises(SourceError, match="SHOW GLOBAL VARIABLES"):
        await source(fails).query("SHOW GLOBAL VARIABLES")


@pytest.mark.parametrize(
    ("fails", "text"),
    [
        (pymysql.err.OperationalError(1794, "Slave is not configured"), "the source at db-2:3307 refuses a replica"),
        (TimeoutError(), "the source at db-2:3307 did not answer the registration of our replica"),
    ],
)
async def test_a_registration_that_fails_names_the_source(
    fails: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise fails

    async def nothing(*_: object) -> list[dict[str, Any]]:
        return []

    monkeypatch.setattr(wire, "run_command", refuse)
    connection = source(fails)
    monkeypatch.setattr(connection, "query", nothing)
    with pytest.raises(SourceError, match=text):
        await connection.register(7, 1.0)


@contextlib.asynccontextmanager
async def broker(last: str) -> AsyncIterator[int]:
    """The port of a RabbitMQ that answers up to the frame of this name, and closes the connection there."""
    answers: dict[str, Any] = {
        "Connection.StartOk": commands.Connection.Tune(10, 131072, 0),
        "Connection.Open": commands.Connection.OpenOk(),
    }

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readexactly(8)  # the protocol's name and version
            offers = {"capabilities": {"authentication_failure_close": True}}
            start = commands.Connection.Start(server_properties=offers, mechanisms="PLAIN", locales="en_US")
            writer.write(frame.marshal(start, 0))
            while True:
                head = await reader.readexactly(7)
                body = await reader.readexactly(struct.unpack(">I", head[3:])[0] + 1)
                name = frame.unmarshal(head + body)[2].name
                if name == last:
                    if name == "Connection.StartOk":
                        refusal = commands.Connection.Close(403, "ACCESS_REFUSED - Login was refused", 0, 0)
                        writer.write(frame.marshal(refusal, 0))
                    break
                if name in answers:
                    writer.write(frame.marshal(answers[name], 0))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@contextlib.asynccontextmanager
async def connection_to(*ports: int, lost: list[SinkError] | None = None) -> AsyncIterator[BrokerConnection]:
    hosts = [f"127.0.0.1:{port}" for port in ports]
    settings = RabbitMqSinkSettings.model_validate(
        {"type": "rabbitmq", "hosts": hosts, "user": "shop", "password": SECRET, "request_timeout": "1s"}
    )
    made = BrokerConnection(settings, lambda *_: None, lambda *_: None, (lost if lost is not None else []).append)
    try:
        yield made
    finally:
        await made.abort()


async def test_a_refused_account_names_the_host_of_rabbitmq_that_refused_it() -> None:
    async with broker("Connection.StartOk") as port, connection_to(1, port) as connection:
        with pytest.raises(SinkRejected, match=f"RabbitMQ at 127.0.0.1:{port} refuses the account") as caught:
            await connection.open()
    assert SECRET not in str(caught.value)


async def test_a_lost_connection_names_the_host_of_rabbitmq_that_it_went_to() -> None:
    lost: list[SinkError] = []
    async with broker("Channel.Open") as port, connection_to(1, port, lost=lost) as connection:
        await connection.open()
        with pytest.raises(SinkError, match=f"the connection to RabbitMQ at 127.0.0.1:{port} is lost"):
            await connection.prepare(declare=False)
        await connection.abort()
        with pytest.raises(SinkError, match=f"the connection to RabbitMQ at 127.0.0.1:{port} is closed"):
            await connection.write(b"")
    assert all(f"127.0.0.1:{port}" in str(one) and SECRET not in str(one) for one in lost)


async def test_a_channel_that_is_not_opened_names_the_host_of_rabbitmq() -> None:
    async with broker("") as port, connection_to(1, port) as connection:
        await connection.open()
        with pytest.raises(SinkError, match=f"RabbitMQ at 127.0.0.1:{port} did not open a channel within 1 s"):
            await connection.prepare(declare=False)
        with pytest.raises(SinkError, match=f"RabbitMQ at 127.0.0.1:{port} did not take a message within 1 s"):
            await connection.try_publishing()


async def test_what_is_wrong_with_one_broker_of_kafka_is_not_said_of_the_others() -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"this is no TLS\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = KafkaSinkSettings.model_validate(
        {"type": "kafka", "bootstrap_servers": ["127.0.0.1:1", f"127.0.0.1:{port}"], "tls": "required"}
    )
    async with server:
        error = await unreachable(settings, KafkaConnectionError("nobody"))
    assert str(error).startswith(f"TLS with Kafka at 127.0.0.1:{port} can't begin")
    settings = KafkaSinkSettings.model_validate({"type": "kafka", "bootstrap_servers": ["127.0.0.1:1", "127.0.0.1:2"]})
    error = await unreachable(settings, KafkaConnectionError("nobody"))
    assert str(error).startswith("Kafka at 127.0.0.1:1 can't be reached")
