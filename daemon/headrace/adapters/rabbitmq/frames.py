"""Encodes messages as AMQP 0-9-1 frames, many in one piece: Basic.Publish, header and bodies, without an object for
each frame."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence

from headrace.errors import SinkRejected
from headrace.model import MessageBatch

# AMQP 0-9-1 specification, 2.3 (frames), 4.2.5.5 (tables), 4.2.6 (content): amqp0-9-1.pdf of amqp.org. Types of table
# fields are RabbitMQ's: rabbitmq.com/amqp-0-9-1-errata, 3.
_METHOD, _HEADER, _BODY, _END = 1, 2, 3, b"\xce"
_FRAME = struct.Struct(">BHI")
"""Kind, channel, bytes of the payload."""
_FRAME_EXTRA = _FRAME.size + len(_END)
_BASIC, _PUBLISH = 60, 40
_MANDATORY = 1
_CONTENT = struct.Struct(">HHQH")
"""Class, weight, bytes of the body, flags of the properties that follow."""
_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE, _MESSAGE_ID, _TIMESTAMP = 1 << 15, 1 << 13, 1 << 12, 1 << 7, 1 << 6
_SHORT_LIMIT = 255
PIECE = 1 << 20
"""Bytes of large messages that are copied at once."""
_UINT = struct.Struct(">I")
_FIXED_PROPERTIES = b"\x10application/json"


_TOO_LARGE = re.compile(r"message size (\d+) is larger")


def size_refused(text: str) -> int:
    """Returns the size of a message that the broker refuses because of it; 0 for other texts."""
    found = _TOO_LARGE.search(text)
    return int(found[1]) if found is not None else 0


def _short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


class Encoder:
    """Encodes for one exchange on one channel. `frame_max` is the negotiated maximum of bytes of a frame."""

    def __init__(self, exchange: str, channel: int, frame_max: int, *, mandatory: bool, persistent: bool) -> None:
        self._exchange, self._channel = _short(exchange.encode()), channel
        self._body_max = (frame_max or 131_072) - _FRAME_EXTRA
        self._mandatory = bytes((_MANDATORY if mandatory else 0,))
        self._mode = b"\x02" if persistent else b"\x01"
        self._names: dict[str, bytes] = {}
        """Names of headers as encoded in a table, followed by the type."""

    def encode(self, batch: MessageBatch, indexes: Sequence[int]) -> Iterator[bytes]:
        """Yields the frames of some messages of a batch, in order, in pieces of about PIECE. The routing key is the
        batch's topic; message id is the first header, headrace-id. Raises SinkRejected if the routing key is too
        long."""
        publish, when = self._publish(batch.topic), max(0, batch.commit_time_us // 1_000_000)
        partition = self._name("headrace-partition") + _long(b"%d" % batch.partition)
        channel, body_max, mode, name = self._channel, self._body_max, self._mode, self._name
        native = getattr(batch.values, "batch", None)
        if native is not None and type(indexes) is range and batch.largest <= PIECE:
            run = indexes.start, indexes.stop
            yield native.amqp(run, publish, partition, mode[0], channel, body_max, when)
            return
        flags = _CONTENT_TYPE | _HEADERS | _DELIVERY_MODE | _MESSAGE_ID | (_TIMESTAMP if when > 0 else 0)
        time = struct.pack(">Q", when) if when > 0 else b""
        values, headers, keys = batch.values, batch.headers, batch.keys
        out, full = list[bytes](), 0
        for index in indexes:
            body, own = values[index] or b"", headers[index]
            fields = [name(key) + _long(value) for key, value in own[1:]]
            fields.append(partition)
            if keys is not None and (key := keys[index]) is not None:
                fields.append(name("headrace-key") + _long(key))
            table = b"".join(fields)
            id_ = own[0][1][-_SHORT_LIMIT:]  # ids differ at their end
            properties = b"".join((_FIXED_PROPERTIES, _long(table), mode, _short(id_), time))
            size = len(body)
            out += (
                publish,
                _FRAME.pack(_HEADER, channel, _CONTENT.size + len(properties)),
                _CONTENT.pack(_BASIC, 0, size, flags),
                properties,
                _END,
            )
            if size <= body_max:
                if size:
                    out += (_FRAME.pack(_BODY, channel, size), body, _END)
                continue
            for at in range(0, size, body_max):
                part = body[at : at + body_max]
                out += (_FRAME.pack(_BODY, channel, len(part)), part, _END)
                full += len(part)
                if full > PIECE:
                    yield b"".join(out)
                    out, full = [], 0
        yield b"".join(out)

    def _publish(self, routing_key: str) -> bytes:
        key = routing_key.encode()
        if len(key) > _SHORT_LIMIT:
            raise SinkRejected(
                f"the routing key {routing_key} has {len(key)} bytes; AMQP allows {_SHORT_LIMIT}",
                remedy="choose a shorter [sink] routing_key, or topics in [route]",
            )
        payload = b"".join((struct.pack(">HHH", _BASIC, _PUBLISH, 0), self._exchange, _short(key), self._mandatory))
        return _FRAME.pack(_METHOD, self._channel, len(payload)) + payload + _END

    def _name(self, name: str) -> bytes:
        made = self._names.get(name)
        if made is None:
            made = self._names[name] = _short(name.encode()) + b"S"
        return made


def _long(value: bytes) -> bytes:
    return _UINT.pack(len(value)) + value
