"""Frames of AMQP to a broker, real or modelled, one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pamqp.frame
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader, ProtocolHeader


class Client:
    """Frames, one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, *frames: Any, channel: int = 1) -> None:
        self.writer.write(b"".join(pamqp.frame.marshal(frame, channel) for frame in frames))

    async def receive(self) -> Any:
        """The next frame; None at the end of the connection."""
        async with asyncio.timeout(10):
            try:
                head = await self.reader.readexactly(7)
                rest = await self.reader.readexactly(int.from_bytes(head[3:]) + 1)
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
        return pamqp.frame.unmarshal(head + rest)[2]

    async def expect(self, kind: type) -> Any:
        frame = await self.receive()
        assert isinstance(frame, kind), frame
        return frame

    def publish(self, *ids: str, exchange: str = "", key: str = "shop", mandatory: bool = True) -> None:
        frames: list[Any] = []
        for one in ids:
            frames.append(commands.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory))
            properties = commands.Basic.Properties(message_id=one, delivery_mode=2)
            frames += [ContentHeader(body_size=3, properties=properties), ContentBody(b"{} ")]
        self.send(*frames)


@asynccontextmanager
async def client_of(server: Any, *, confirms: bool = True, heartbeat: int = 0) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    client = Client(reader, writer)
    try:
        writer.write(ProtocolHeader().marshal())
        await client.expect(commands.Connection.Start)
        client.send(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), channel=0)
        tune = await client.expect(commands.Connection.Tune)
        client.send(commands.Connection.TuneOk(tune.channel_max, tune.frame_max, heartbeat), channel=0)
        client.send(commands.Connection.Open("/"), channel=0)
        await client.expect(commands.Connection.OpenOk)
        client.send(commands.Channel.Open())
        await client.expect(commands.Channel.OpenOk)
        if confirms:
            client.send(commands.Confirm.Select())
            await client.expect(commands.Confirm.SelectOk)
        yield client
    finally:
        writer.close()
