"""A client of Canal's protocol, as its Java client behaves: one request at a time."""

from __future__ import annotations

import hashlib
import socket
from dataclasses import dataclass

from headrace.canal_wire import canal_pb2 as pb


class Refused(Exception):
    """The server's error."""


@dataclass(frozen=True)
class Batch:
    id: int
    entries: list[pb.Entry]

    def rows(self) -> list[tuple[str, dict[str, str | None]]]:
        """Event type and values of each row: the image after, or of a DELETE the one before."""
        return [row for entry in self.entries for row in rows_of(entry)]


def rows_of(entry: pb.Entry) -> list[tuple[str, dict[str, str | None]]]:
    if entry.entry_type != pb.ROWDATA:
        return []
    change = pb.RowChange.FromString(entry.store_value)
    kind = pb.EventType.Name(change.event_type)
    return [
        (kind, {c.name: None if c.is_null else c.value for c in (row.after_columns or row.before_columns)})
        for row in change.row_datas
    ]


class CanalClient:
    def __init__(
        self, host: str, port: int, destination: str, user: str = "", password: str = "", timeout: float = 30.0
    ) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout)
        self.destination = destination
        try:
            handshake = self._expect(pb.HANDSHAKE)
            seed = pb.Handshake.FromString(handshake.body).seeds
            token = _token(password, seed) if password else b""
            self.send(pb.CLIENT_AUTHENTICATION, pb.ClientAuth(username=user, password=token).SerializeToString())
            self._accepted()
        except BaseException:
            self.close()
            raise

    def send(self, kind: pb.PacketType, body: bytes) -> None:
        packet = pb.Packet(type=kind, body=body).SerializeToString()
        self._socket.sendall(len(packet).to_bytes(4, "big") + packet)

    def send_raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def subscribe(self, filter_: str = "") -> None:
        body = pb.Subscription(destination=self.destination, client_id="1001", filter=filter_)
        self.send(pb.SUBSCRIPTION, body.SerializeToString())
        self._accepted()

    def unsubscribe(self) -> None:
        self.send(
            pb.UNSUBSCRIPTION, pb.Subscription(destination=self.destination, client_id="1001").SerializeToString()
        )
        self._accepted()

    def get(self, size: int = 1000, timeout: int = -1) -> Batch:
        """`timeout` in milliseconds."""
        request = pb.Get(destination=self.destination, client_id="1001", fetch_size=size, timeout=timeout, unit=2)
        self.send(pb.GET, request.SerializeToString())
        return self.answer()

    def answer(self) -> Batch:
        """Of a GET that was sent."""
        messages = pb.Messages.FromString(self._expect(pb.MESSAGES).body)
        return Batch(messages.batch_id, [pb.Entry.FromString(one) for one in messages.messages])

    def ack(self, batch: int) -> None:
        self._about(pb.CLIENT_ACK, batch)

    def roll_back(self, batch: int = 0) -> None:
        self._about(pb.CLIENT_ROLLBACK, batch)

    def _about(self, kind: pb.PacketType, batch: int) -> None:
        self.send(kind, pb.Batch(destination=self.destination, client_id="1001", batch_id=batch).SerializeToString())

    def error(self) -> str:
        """The error that comes next."""
        return pb.Ack.FromString(self._next(pb.ACK).body).error_message

    def _accepted(self) -> None:
        ack = pb.Ack.FromString(self._next(pb.ACK).body)
        if ack.error_code:
            raise Refused(ack.error_message)

    def _expect(self, kind: int) -> pb.Packet:
        packet = self._next(None)
        if packet.type == pb.ACK:
            raise Refused(pb.Ack.FromString(packet.body).error_message)
        assert packet.type == kind
        return packet

    def _next(self, kind: int | None) -> pb.Packet:
        size = int.from_bytes(self._exactly(4), "big")
        packet: pb.Packet = pb.Packet.FromString(self._exactly(size))
        assert kind is None or packet.type == kind, packet
        return packet

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> CanalClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _token(password: str, seed: bytes) -> bytes:
    once = hashlib.sha1(password.encode()).digest()
    mask = hashlib.sha1(seed + hashlib.sha1(once).digest()).digest()
    return bytes(a ^ b for a, b in zip(once, mask, strict=True)).hex().encode()
