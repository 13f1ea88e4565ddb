"""Models of RabbitMQ behind real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sim.rabbitmq.broker import ALL, Broker


class Listening:
    """A model with the names that the project's tests know of devstack's broker."""

    def __init__(self, broker: Broker, port: int) -> None:
        self.broker, self.host, self.port = broker, "127.0.0.1", port

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.address}/"

    def add_user(self, user: str, password: str, vhost: str = "/") -> None:
        self.broker.add_user(user, password, vhost)

    def add_vhost(self, vhost: str) -> None:
        self.broker.add_vhost(vhost)

    def allow(self, user: str, vhost: str, configure: str = ALL, write: str = ALL, read: str = ALL) -> None:
        self.broker.allow(user, vhost, configure, write, read)

    def allow_topics(self, user: str, vhost: str, exchange: str, write: str, read: str = ALL) -> None:
        self.broker.allow_topics(user, vhost, exchange, write, read)


@asynccontextmanager
async def listening() -> AsyncIterator[Listening]:
    """A broker on a loopback port. Methods that it does not know fail the test."""
    broker = Broker()
    server = await asyncio.get_running_loop().create_server(broker.protocol, "127.0.0.1", 0)
    try:
        yield Listening(broker, server.sockets[0].getsockname()[1])
        assert broker.unknown == []
    finally:
        broker.reset_connections()
        server.close()
        await asyncio.sleep(0)
