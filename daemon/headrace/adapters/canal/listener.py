"""The port that Canal's clients connect to, and their packets: four bytes of length, and a protobuf Packet."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import socket
from collections.abc import Sequence

import structlog
from google.protobuf.message import DecodeError

from headrace import runtime
from headrace.adapters.canal.session import Refused, Subscription
from headrace.adapters.canal.settings import CanalSinkSettings
from headrace.canal_wire import canal_pb2 as pb
from headrace.canal_wire.wire import packet_head
from headrace.errors import HeadraceError, SinkRejected
from headrace.tasks import cancel, first

log = structlog.get_logger(__name__)

_HANDSHAKE_LIMIT, _WRITE_LIMIT, _IDLE_LIMIT = 10.0, 60.0, 3600.0
"""Time limits in seconds: of the handshake, for the client to take an answer, and without a request unless the client
sets less."""
_LARGEST_REQUEST = 64 * 1024
_MOST_CONNECTIONS = 200
_VERSION = 1
_REFUSED = 400
_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)
"""Linux only."""
_CLIENT_SEED = 8
"""Bytes of the scramble."""


class Listener:
    """One port of the process. It listens while a destination is served there."""

    def __init__(self, settings: CanalSinkSettings) -> None:
        self._settings = settings
        self._host, self._port = settings.listen
        self._password = settings.password.get_secret_value()
        self._destinations: dict[str, Subscription] = {}
        self._server: asyncio.Server | None = None
        self._connections = dict[asyncio.Task[None], None]()
        self._opening = asyncio.Lock()

    async def add(self, name: str, subscription: Subscription) -> None:
        """Serves a destination. Raises SinkRejected if the port can't be opened."""
        async with self._opening:
            if self._server is None:
                try:
                    self._server = await asyncio.start_server(self._accept, self._host, self._port)
                except OSError as error:
                    raise _taken(self._settings, error) from error
            self._destinations[name] = subscription

    @property
    def idle(self) -> bool:
        """Returns whether no destination is served here."""
        return not self._destinations and not self._opening.locked()

    def serves_alone(self, name: str) -> bool:
        """Returns whether no other destination is served here."""
        return self._destinations.keys() <= {name}

    def serves_as(self, settings: CanalSinkSettings) -> bool:
        """Returns whether the same account may connect."""
        return (settings.user, settings.password) == (self._settings.user, self._settings.password)

    async def remove(self, name: str, subscription: Subscription) -> None:
        """Stops serving a destination; the last one closes the port and all connections."""
        async with self._opening:
            if self._destinations.get(name) is subscription:
                del self._destinations[name]
            if self._destinations or self._server is None:
                return
            server, self._server = self._server, None
            server.close()
            await cancel(*self._connections, limit=_HANDSHAKE_LIMIT)

    # -- connections ----------------------------------------------------------------------------------------------

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer), name="canal client")
        self._connections[task] = None
        task.add_done_callback(self._connections.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = ClientConnection(self, reader, writer)
        try:
            if len(self._connections) > _MOST_CONNECTIONS:
                await connection.refuse(f"more than {_MOST_CONNECTIONS} clients are connected")
                return
            await connection.run()
        except (OSError, EOFError, TimeoutError) as error:
            log.info("a Canal client has gone", client=connection.client, error=str(error) or type(error).__name__)
        except HeadraceError as error:
            log.warning("a Canal client can't be served", client=connection.client, error=str(error))
        finally:
            for subscription in self._destinations.values():
                subscription.leave(connection.client)
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(1):
                    await writer.wait_closed()

    def authentic(self, user: str, token: bytes, seed: bytes) -> bool:
        """Returns whether the client knows the password (the scramble of MySQL 4.1, in hexadecimal digits)."""
        if not self._settings.user:
            return True
        once = hashlib.sha1(self._password.encode()).digest()
        mask = hashlib.sha1(seed + hashlib.sha1(once).digest()).digest()
        expected = bytes(a ^ b for a, b in zip(once, mask, strict=True)).hex().encode()
        known = hmac.compare_digest(user.encode(), self._settings.user.encode())
        return hmac.compare_digest(token, expected) and known

    def subscription(self, name: str) -> Subscription:
        """Returns a destination that is served here. Raises Refused."""
        found = self._destinations.get(name)
        if found is None:
            raise Refused(f"the destination {name[:100]!r} is not served here")
        return found


class ClientConnection:
    """One client, from the handshake to the end of its connection."""

    def __init__(self, listener: Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._listener, self._reader, self._writer = listener, reader, writer
        peer = writer.get_extra_info("peername") or ("?", 0)
        self.client = f"{peer[0]}:{peer[1]}"
        self._idle = _IDLE_LIMIT
        self._head = b""
        """The length of the next packet, once it was read."""
        self._socket: socket.socket | None = writer.get_extra_info("socket")
        if self._socket is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        writer.transport.set_write_buffer_limits(1 << 20)

    async def run(self) -> None:
        """Serves the client until it disconnects. Raises OSError, EOFError and TimeoutError."""
        seed = runtime.random().randbytes(_CLIENT_SEED)
        async with asyncio.timeout(_HANDSHAKE_LIMIT):
            handshake = pb.Handshake(communication_encoding="utf8", seeds=seed, supported_compressions=1)
            await self._send(pb.HANDSHAKE, handshake.SerializeToString())
            if not await self._authenticated(seed):
                return
        while await self._serve_one():
            pass

    async def _authenticated(self, seed: bytes) -> bool:
        try:
            packet = await self._next(_HANDSHAKE_LIMIT)
            auth = pb.ClientAuth.FromString(packet.body)
            if packet.type != pb.CLIENT_AUTHENTICATION:
                raise Refused("the first packet should be CLIENTAUTHENTICATION")
            if not self._listener.authentic(auth.username, auth.password, seed):
                log.warning("a Canal client was refused", client=self.client, reason="user or password is wrong")
                raise Refused(f"auth failed for user:{auth.username[:100]}")
            if auth.destination and auth.client_id:
                self._listener.subscription(auth.destination).subscribe(self.client, auth.filter)
        except (Refused, DecodeError) as error:
            await self.refuse(str(error))
            return False
        limits = [t for t in (auth.net_read_timeout, auth.net_write_timeout) if t > 0]
        self._idle = min([*(t / 1000 for t in limits), _IDLE_LIMIT])
        await self._acknowledge()
        return True

    async def _serve_one(self) -> bool:
        """Answers one request; returns whether the connection continues."""
        try:
            packet = await self._next(self._idle)
            await self._answer(packet)
        except Refused as error:
            log.info("a Canal client's request was refused", client=self.client, reason=str(error))
            await self.refuse(str(error))
        except DecodeError:
            await self.refuse("the packet can't be read")
            return False
        except Oversized as error:
            await self.refuse(str(error))
            return False
        return True

    async def _answer(self, packet: pb.Packet) -> None:
        kind, body = packet.type, packet.body
        if kind == pb.GET:
            get = pb.Get.FromString(body)
            work = self._subscription(get).get(self.client, get)
            if get.HasField("timeout") and get.timeout >= 0:
                number, entries = (await first({"entries": work, "gone": self._gone()}))["entries"]
            else:
                number, entries = await work
            await self._send_entries(number, entries)
        elif kind == pb.CLIENT_ACK:
            batch = pb.Batch.FromString(body)
            if not batch.batch_id:
                raise Refused("an acknowledgement needs the number of its batch")
            self._subscription(batch).acknowledge(self.client, batch.batch_id)
        elif kind == pb.CLIENT_ROLLBACK:
            batch = pb.Batch.FromString(body)
            subscription = self._subscription(batch)
            if batch.batch_id or subscription.client == self.client:
                # A client rolls back when it connects, before it has subscribed.
                subscription.roll_back(self.client, batch.batch_id)
        elif kind == pb.SUBSCRIPTION:
            subscribe = pb.Subscription.FromString(body)
            self._subscription(subscribe).subscribe(self.client, subscribe.filter)
            log.info("a Canal client has subscribed", destination=subscribe.destination, client=self.client)
            await self._acknowledge()
        elif kind == pb.UNSUBSCRIPTION:
            self._subscription(pb.Subscription.FromString(body)).leave(self.client)
            await self._acknowledge()
        elif kind != pb.HEARTBEAT:
            raise Refused(f"packets of type {kind} are not supported")

    def _subscription(self, of: pb.Get | pb.Batch | pb.Subscription) -> Subscription:
        if not of.destination or not of.client_id:
            raise Refused("destination or clientId is missing")
        return self._listener.subscription(of.destination)

    # -- packets --------------------------------------------------------------------------------------------------

    async def _next(self, limit: float) -> pb.Packet:
        async with asyncio.timeout(limit):
            await self._read_head()
        size, self._head = int.from_bytes(self._head, "big"), b""
        if size > _LARGEST_REQUEST:
            raise Oversized(f"a packet of {size} bytes is too large")
        async with asyncio.timeout(_WRITE_LIMIT):
            packet: pb.Packet = pb.Packet.FromString(await self._read(size))
        return packet

    async def _read(self, size: int) -> bytes:
        """Lets the system acknowledge received data at once. Canal's client writes length and packet separately, an
        acknowledgement of a batch has no answer, and the client's system holds back later data until all before it is
        acknowledged, which otherwise takes 40 ms."""
        data = await self._reader.readexactly(size)
        if self._socket is not None and _QUICKACK is not None and not self._writer.is_closing():
            self._socket.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
        return data

    async def _read_head(self) -> None:
        self._head = self._head or await self._read(4)

    async def _gone(self) -> None:
        """Raises EOFError or OSError once the client has disconnected, unless it sent a request before; otherwise
        waits."""
        await self._read_head()
        await asyncio.Event().wait()

    async def _acknowledge(self) -> None:
        await self._send(pb.ACK, pb.Ack(error_code=0).SerializeToString())

    async def refuse(self, reason: str) -> None:
        """Answers with an error."""
        await self._send(pb.ACK, pb.Ack(error_code=_REFUSED, error_message=reason).SerializeToString())

    async def _send(self, kind: pb.PacketType, body: bytes) -> None:
        packet = pb.Packet(version=_VERSION, type=kind, body=body).SerializeToString()
        await self._write([len(packet).to_bytes(4, "big"), packet])

    async def _send_entries(self, number: int, entries: Sequence[memoryview]) -> None:
        """Sends entries unchanged, one after the other."""
        size = sum(map(len, entries))
        head = packet_head(number, size)
        await self._write([(len(head) + size).to_bytes(4, "big"), head, *entries])

    async def _write(self, pieces: Sequence[bytes | memoryview]) -> None:
        self._writer.write(b"".join(pieces))
        async with asyncio.timeout(_WRITE_LIMIT):
            await self._writer.drain()


class Oversized(Exception):
    """A packet is larger than any request can be."""


def _taken(settings: CanalSinkSettings, error: OSError) -> SinkRejected:
    host, port = settings.listen
    return SinkRejected(
        f"Canal's clients can't be served at {host}:{port}: {os.strerror(error.errno or 0)}",
        remedy="give the destination another [sink] listen, or end what listens there",
        retriable=True,
    )


async def fault(settings: CanalSinkSettings) -> SinkRejected | None:
    """Returns why the port could not be opened; None if it could, or if a server of Canal's protocol has it, which may
    be this daemon."""
    try:
        async with await asyncio.start_server(lambda *_: None, *settings.listen):
            return None
    except OSError as error:
        return None if await _speaks(*settings.listen) else _taken(settings, error)


async def _speaks(host: str, port: int) -> bool:
    """Returns whether the program that listens there begins with a handshake of Canal's."""
    with contextlib.suppress(OSError, EOFError, TimeoutError, DecodeError):
        async with asyncio.timeout(_HANDSHAKE_LIMIT):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                size = int.from_bytes(await reader.readexactly(4), "big")
                packet = pb.Packet.FromString(await reader.readexactly(min(size, _LARGEST_REQUEST)))
                return bool(packet.type in (pb.HANDSHAKE, pb.ACK))
            finally:
                writer.close()
    return False


_LISTENERS: dict[tuple[str, int], Listener] = {}
"""By address. One that serves no destination is replaced at the next request."""


def at_address(settings: CanalSinkSettings) -> Listener:
    """Returns the process's listener at an address. Raises SinkRejected if the settings have another account than the
    present destinations."""
    listener = _LISTENERS.get(settings.listen)
    if listener is None or listener.idle:
        listener = _LISTENERS[settings.listen] = Listener(settings)
    if not listener.serves_as(settings):
        host, port = settings.listen
        raise SinkRejected(
            f"another destination serves {host}:{port} to another user",
            remedy="give both the same user and password, or two ports",
        )
    return listener
