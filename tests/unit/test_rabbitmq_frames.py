"""Messages as AMQP frames, read back by pamqp: properties, headers, bodies cut at the frame size."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pamqp.frame
import pytest
from aiormq.exceptions import ChannelPreconditionFailed
from pamqp import body, commands, header

from headrace.adapters.rabbitmq import frames
from headrace.adapters.rabbitmq.connection import BrokerConnection
from headrace.adapters.rabbitmq.frames import Encoder
from headrace.adapters.rabbitmq.sink import RabbitMqSink
from headrace.errors import SinkRejected
from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.tasks import cancel
from tests.streams import settings as destination

ID = b"3e11fa47-71ca-11e1-9e33-c80aa9429562:23#1.7"


def batch(value: bytes | None = b"{}", **more: Any) -> MessageBatch:
    headers = [("headrace-id", ID), ("headrace-pos", b"12"), ("other", "服务".encode())]
    return MessageBatch("shop.t", 3, [value], [headers], commit_time_us=1_700_000_000_999_999, **more)


def read(raw: bytes) -> list[tuple[int, Any]]:
    """Channel and content of each frame."""
    found = []
    while raw:
        size, channel, frame = pamqp.frame.unmarshal(raw)
        found.append((channel, frame))
        raw = raw[size:]
    return found


def encoder(frame_max: int = 131_072, *, mandatory: bool = True, persistent: bool = True) -> Encoder:
    return Encoder("ex", 7, frame_max, mandatory=mandatory, persistent=persistent)


def test_a_message_is_a_publish_method_a_header_and_a_body() -> None:
    (_, publish), (_, content), (channel, text) = read(b"".join(encoder().encode(batch(keys=[b"k1"]), [0])))
    assert isinstance(publish, commands.Basic.Publish)
    assert (publish.exchange, publish.routing_key, publish.mandatory, publish.immediate) == (
        "ex",
        "shop.t",
        True,
        False,
    )
    assert isinstance(content, header.ContentHeader)
    properties = content.properties
    assert properties.message_id == ID.decode()
    assert properties.delivery_mode == 2
    assert properties.content_type == "application/json"
    assert properties.timestamp is not None
    assert int(properties.timestamp.timestamp()) == 1_700_000_000
    assert properties.headers == {
        "headrace-pos": "12",
        "other": "服务",
        "headrace-partition": "3",
        "headrace-key": "k1",
    }
    assert isinstance(text, body.ContentBody)
    assert (channel, text.value, content.body_size) == (7, b"{}", 2)


def test_switches_for_mandatory_and_persistent() -> None:
    (_, publish), (_, content), _ = read(b"".join(encoder(mandatory=False, persistent=False).encode(batch(), [0])))
    assert publish.mandatory is False
    assert content.properties.delivery_mode == 1


@pytest.mark.parametrize("size", [1, 4087, 4088, 4089, 8176, 8177, 20_000])
def test_a_body_is_cut_at_the_frame_size(size: int) -> None:
    value = bytes(i % 251 for i in range(size))
    frames = b"".join(encoder(4096).encode(batch(value), [0]))
    (_, _), (_, content), *parts = read(frames)
    assert content.body_size == size
    assert b"".join(part.value for _, part in parts) == value
    assert all(len(part.value) + 8 <= 4096 for _, part in parts)
    assert len(parts) == -(-size // 4088)


def test_a_tombstone_and_an_empty_body_have_no_body_frame() -> None:
    for value in (None, b""):
        (_, _), (_, content) = read(b"".join(encoder().encode(batch(value), [0])))
        assert content.body_size == 0


def test_chosen_messages_follow_each_other_in_order() -> None:
    many = MessageBatch("t", 0, [b"%d" % i for i in range(5)], [[("headrace-id", b"%d" % i)] for i in range(5)])
    frames = read(b"".join(encoder().encode(many, [1, 3, 4])))
    assert [frame.value for _, frame in frames if isinstance(frame, body.ContentBody)] == [b"1", b"3", b"4"]
    headers = [frame.properties for _, frame in frames if isinstance(frame, header.ContentHeader)]
    assert [one.message_id for one in headers] == ["1", "3", "4"]
    assert headers[0].timestamp is None


def test_a_message_id_that_is_too_long_keeps_its_end() -> None:
    long = MessageBatch("t", 0, [b""], [[("headrace-id", b"x" * 300 + b"#1")]])
    (_, _), (_, content) = read(b"".join(encoder().encode(long, [0])))
    assert content.properties.message_id == "x" * 253 + "#1"


def test_a_routing_key_that_is_too_long_is_an_error() -> None:
    with pytest.raises(SinkRejected, match="256 bytes; AMQP allows 255"):
        list(encoder().encode(MessageBatch("k" * 256, 0, [b""], [[("headrace-id", b"1")]]), [0]))


def test_a_large_message_is_written_in_pieces_of_whole_frames() -> None:
    value = bytes(range(256)) * 20_000
    pieces = list(encoder().encode(batch(value), [0]))
    assert max(map(len, pieces)) < 2 * frames.PIECE
    contents = [frame.value for piece in pieces for _, frame in read(piece) if isinstance(frame, body.ContentBody)]
    assert b"".join(contents) == value


@pytest.mark.parametrize("size", [10, 5 << 20])
async def test_nothing_is_written_after_an_incomplete_message(size: int) -> None:
    settings: Any = destination(sink={"type": "rabbitmq", "hosts": "h:5672", "user": "u", "password": "p"}).sink
    sink = RabbitMqSink(settings, Lease())
    sink._connection = mock.Mock(write=lambda _: asyncio.Event().wait())
    sink._encoder = encoder()
    writing = asyncio.create_task(sink._transmit(batch(bytes(size)), [0], 1))
    await asyncio.sleep(0)
    await cancel(writing)
    assert (sink.failure is not None) == (size > frames.PIECE)


@pytest.mark.parametrize("size", [20_971_837, 17_000_000])
async def test_a_message_that_the_broker_finds_too_large_is_named_with_what_helps(size: int) -> None:
    settings: Any = destination(sink={"type": "rabbitmq", "hosts": "h:5672", "user": "u", "password": "p"}).sink
    sink = RabbitMqSink(settings, Lease())
    written = asyncio.get_running_loop().create_future()
    written.set_result(None)
    sink._connection = mock.Mock(write=lambda _: written)
    sink._encoder = encoder()
    headers = [("headrace-id", ID), ("headrace-position", b"b.000007:42")]
    await sink._transmit(MessageBatch("t", 0, [bytes(20_971_837), b""], [headers, headers]), [0, 1], 1)
    connection = BrokerConnection(settings, mock.Mock(), mock.Mock(), sink._broken)
    connection._connection = mock.Mock()
    said = f"PRECONDITION_FAILED - message size {size} is larger than configured max size 16777216"
    connection._closed(None, ChannelPreconditionFailed(said))
    failure = sink.failure
    assert failure is not None
    assert ("that of the change at b.000007:42" in str(failure)) == (size == 20_971_837)
    assert failure.remedy.startswith("raise max_message_size in the broker's rabbitmq.conf, or leave the column out")
