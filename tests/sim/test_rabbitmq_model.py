"""The model of RabbitMQ: frames as a publisher sees them, and each fault as the project's sink meets with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from headrace.errors import SinkError, SinkRejected
from sim.rabbitmq.broker import Broker
from sim.rabbitmq.routing import matches
from tests.rabbit import last_words, numbered, sink_to
from tests.sim.kafka_raw import until
from tests.sim.rabbit_models import listening
from tests.sim.rabbit_raw import client_of


async def becomes(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await until(holds, bool)


def ids(broker: Broker, queue: str = "shop") -> list[str]:
    return [message.id for message in broker.messages(queue)]


# -- confirms, returns, refusals ---------------------------------------------------------------------------------------


async def test_a_message_that_reaches_no_queue_is_returned_whole_before_its_confirm() -> None:
    async with listening() as server, client_of(server) as client:
        client.publish("1", key="nowhere")
        returned = await client.expect(commands.Basic.Return)
        assert (returned.reply_code, returned.reply_text, returned.routing_key) == (312, "NO_ROUTE", "nowhere")
        header = await client.expect(ContentHeader)
        assert header.properties.message_id == "1"
        assert (await client.expect(ContentBody)).value == b"{} "
        ack = await client.expect(commands.Basic.Ack)
        assert (ack.delivery_tag, ack.multiple) == (1, False)
        client.publish("2", key="nowhere", mandatory=False)
        assert (await client.expect(commands.Basic.Ack)).delivery_tag == 2


async def test_messages_of_one_moment_are_confirmed_by_one_ack_for_all() -> None:
    async with listening() as server, client_of(server) as client:
        queue = server.broker.declare_queue("shop")
        queue.confirm_time = 0.02
        client.publish(*map(str, range(1, 6)))
        ack = await client.expect(commands.Basic.Ack)
        assert (ack.delivery_tag, ack.multiple) == (5, True)
        client.publish("6")
        ack = await client.expect(commands.Basic.Ack)
        assert (ack.delivery_tag, ack.multiple) == (6, False)
        assert ids(server.broker) == list("123456")


async def test_an_ack_for_several_never_covers_one_that_waits() -> None:
    async with listening() as server, client_of(server) as client:
        slow, quick = server.broker.declare_queue("slow"), server.broker.declare_queue("quick")
        slow.stall()
        quick.confirm_time = 0.01
        client.publish("1", "2", key="quick")
        client.publish("3", key="slow")
        client.publish("4", "5", key="quick")
        acks = [await client.expect(commands.Basic.Ack) for _ in range(3)]
        assert [(ack.delivery_tag, ack.multiple) for ack in acks] == [(2, True), (4, False), (5, False)]
        slow.resume()
        assert (await client.expect(commands.Basic.Ack)).delivery_tag == 3


async def test_a_full_queue_refuses_and_its_neighbour_keeps_what_it_got() -> None:
    async with listening() as server, client_of(server) as client:
        limits = {"x-max-length": 2, "x-overflow": "reject-publish"}
        server.broker.declare_exchange("x", "fanout")
        server.broker.declare_queue("shop", "x", arguments=limits)
        server.broker.declare_queue("copy", "x")
        client.publish("1", "2", "3", exchange="x")
        nack = await client.expect(commands.Basic.Nack)
        assert (nack.delivery_tag, nack.multiple) == (3, False)
        ack = await client.expect(commands.Basic.Ack)
        assert (ack.delivery_tag, ack.multiple) == (2, True)
        assert ids(server.broker) == ["1", "2"]
        assert ids(server.broker, "copy") == ["1", "2", "3"]


async def test_a_queue_that_drops_its_head_confirms_all() -> None:
    async with listening() as server, client_of(server) as client:
        server.broker.declare_queue("shop", arguments={"x-max-length": 2})
        client.publish("1", "2", "3")
        await client.expect(commands.Basic.Ack)
        assert ids(server.broker) == ["2", "3"]


async def test_messages_are_refused_on_demand_and_when_their_queue_is_deleted() -> None:
    async with listening() as server, client_of(server) as client:
        queue = server.broker.declare_queue("shop")
        server.broker.nack_next(2)
        client.publish("1", "2")
        assert [(await client.expect(commands.Basic.Nack)).delivery_tag for _ in range(2)] == [1, 2]
        assert ids(server.broker) == []
        server.broker.largest = 1
        client.publish("large")
        await client.expect(commands.Basic.Nack)
        server.broker.largest = 0
        server.broker.nack_next(2)
        server.broker.end_losses()
        queue.stall()
        client.publish("3")
        await becomes(lambda: len(queue.messages) == 1)
        server.broker.delete_queue("shop")
        assert (await client.expect(commands.Basic.Nack)).delivery_tag == 4


REFUSED: dict[str, tuple[list[Any], int, str]] = {
    "a missing exchange": (
        [commands.Exchange.Declare(exchange="no", passive=True)],
        404,
        "NOT_FOUND - no exchange 'no'",
    ),
    "a missing queue": ([commands.Queue.Declare(queue="no", passive=True)], 404, "NOT_FOUND - no queue 'no'"),
    "other arguments": (
        [commands.Queue.Declare(queue="shop", durable=True, arguments={"x-queue-type": "quorum"})],
        406,
        "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'shop' in vhost '/': received the value "
        "'quorum' of type 'longstr' but current is none",
    ),
    "another type": (
        [commands.Exchange.Declare(exchange="amq.topic", exchange_type="fanout", durable=True)],
        406,
        "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.topic' in vhost '/': received 'fanout' but "
        "current is 'topic'",
    ),
    "a right": ([commands.Queue.Declare(queue="secret")], 403, "ACCESS_REFUSED - configure access to queue 'secret'"),
    "transactions with confirms": (
        [commands.Tx.Select()],
        406,
        "PRECONDITION_FAILED - cannot switch from confirm to tx",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_a_refused_method_closes_the_channel_and_the_number_can_be_used_again(what: str) -> None:
    frames, code, text = REFUSED[what]
    async with listening() as server, client_of(server) as client:
        server.broker.declare_queue("shop")
        server.broker.allow("guest", configure="^(?!secret)")
        client.send(*frames)
        client.publish("lost")
        closed = await client.expect(commands.Channel.Close)
        assert closed.reply_code == code
        assert closed.reply_text.startswith(text)
        client.send(commands.Channel.CloseOk())
        client.send(commands.Channel.Open())
        await client.expect(commands.Channel.OpenOk)
        assert ids(server.broker) == []


async def test_a_publish_that_is_refused_takes_the_confirms_of_the_others_with_it() -> None:
    async with listening() as server, client_of(server) as client:
        server.broker.declare_queue("shop").confirm_time = 0.05
        client.publish("1")
        client.publish("2", exchange="gone")
        closed = await client.expect(commands.Channel.Close)
        assert (closed.reply_code, closed.class_id, closed.method_id) == (404, 60, 40)
        assert closed.reply_text == "NOT_FOUND - no exchange 'gone' in vhost '/'"
        await asyncio.sleep(0.1)
        client.send(Heartbeat(), channel=0)
        client.send(commands.Channel.CloseOk(), commands.Channel.Open())
        await client.expect(commands.Channel.OpenOk)
        assert ids(server.broker) == ["1"]


async def test_what_a_transaction_rolls_back_reaches_no_queue() -> None:
    async with listening() as server, client_of(server, confirms=False) as client:
        server.broker.declare_queue("shop")
        client.send(commands.Tx.Select())
        await client.expect(commands.Tx.SelectOk)
        client.publish("1")
        client.send(commands.Tx.Rollback())
        await client.expect(commands.Tx.RollbackOk)
        client.publish("2")
        assert ids(server.broker) == []
        client.send(commands.Tx.Commit())
        await client.expect(commands.Tx.CommitOk)
        assert ids(server.broker) == ["2"]


async def test_frames_that_the_protocol_does_not_allow_close_the_connection() -> None:
    for frames, code in (
        ([ContentHeader(body_size=1)], 505),
        ([commands.Channel.Open()], 504),
        ([ContentBody(b"x" * 200_000)], 501),
    ):
        async with listening() as server, client_of(server) as client:
            client.send(*frames)
            assert (await client.expect(commands.Connection.Close)).reply_code == code
            client.send(commands.Connection.CloseOk(), channel=0)
            assert await client.receive() is None


async def test_a_method_that_the_model_does_not_know_is_recorded() -> None:
    async with listening() as server, client_of(server) as client:
        client.send(commands.Basic.Recover())
        assert (await client.expect(commands.Connection.Close)).reply_code == 540
        assert server.broker.unknown == ["Basic.Recover"]
        server.broker.unknown.clear()


async def test_another_protocol_is_answered_with_ours() -> None:
    async with listening() as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"AMQP\x00\x01\x00\x00")
        assert await reader.read() == b"AMQP\x00\x00\x09\x01"
        writer.close()


def test_topics_match_by_words() -> None:
    assert matches("#", "")
    assert matches("#", "a.b")
    assert matches("a.*", "a.b")
    assert not matches("a.*", "a")
    assert not matches("a.*", "a.b.c")
    assert matches("a.#.z", "a.z")
    assert matches("a.#.z", "a.b.c.z")
    assert not matches("a.b", "a.b.c")


# -- the life of a connection ------------------------------------------------------------------------------------------


async def test_heartbeats_are_sent_and_a_silent_client_is_given_up() -> None:
    async with listening() as server, client_of(server, heartbeat=1) as client:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (frame := await client.receive()) is not None:
            assert isinstance(frame, Heartbeat)
        assert 1.5 <= loop.time() - began < 5
        assert not server.broker.connections


async def test_an_alarm_blocks_a_connection_at_its_next_message_and_no_other() -> None:
    async with listening() as server, client_of(server) as client, client_of(server) as idle:
        broker = server.broker
        broker.declare_queue("shop")
        client.publish("1")
        await client.expect(commands.Basic.Ack)
        broker.raise_alarm("low on disk")
        client.publish("2", "3")
        assert (await client.expect(commands.Connection.Blocked)).reason == "low on disk"
        idle.send(commands.Queue.Declare(queue="shop", passive=True))
        assert (await idle.expect(commands.Queue.DeclareOk)).message_count == 1
        broker.end_alarm()
        await client.expect(commands.Connection.Unblocked)
        assert (await client.expect(commands.Basic.Ack)).delivery_tag == 3
        assert ids(broker) == ["1", "2", "3"]


async def test_the_sink_waits_while_an_alarm_lasts() -> None:
    async with listening() as server:
        server.broker.declare_queue("shop")
        sink = sink_to(server)
        await sink.start()
        await (await sink.publish(numbered(0, 1, "shop")))
        server.broker.raise_alarm()
        done = await sink.publish(numbered(1, 10, "shop"))
        await becomes(lambda: sink._paused())
        assert not done.done()
        server.broker.end_alarm()
        await asyncio.wait_for(done, 10)
        await sink.close()
        assert ids(server.broker) == [str(number) for number in range(11)]


async def test_an_operator_that_closes_connections_is_a_lost_connection() -> None:
    async with listening() as server:
        server.broker.declare_queue("shop").stall()
        sink = sink_to(server)
        await sink.start()
        done = await sink.publish(numbered(0, 1, "shop"))
        server.broker.close_connections()
        with pytest.raises(SinkError, match="maintenance mode"):
            await asyncio.wait_for(done, 10)
        await sink.abort()


async def test_a_message_that_is_too_large_is_refused_with_both_sizes() -> None:
    async with listening() as server:
        server.broker.max_message = 1000
        server.broker.declare_queue("shop")
        sink = sink_to(server)
        await sink.start()
        done = await sink.publish(numbered(0, 1, "shop", b"x" * 1001))
        with pytest.raises(SinkRejected, match="message size 1001 is larger than configured max size 1000") as caught:
            await asyncio.wait_for(done, 10)
        assert "max_message_size" in caught.value.remedy
        await sink.abort()


async def test_a_frozen_broker_answers_when_it_goes_on() -> None:
    async with listening() as server, client_of(server) as client:
        server.broker.declare_queue("shop")
        server.broker.freeze()
        client.publish("1")
        await asyncio.sleep(0.05)
        assert server.broker.published == 0
        server.broker.thaw()
        assert (await client.expect(commands.Basic.Ack)).delivery_tag == 1


async def test_a_crash_loses_what_was_not_confirmed_and_what_was_not_to_last() -> None:
    async with listening() as server, client_of(server) as client:
        broker = server.broker
        queue = broker.declare_queue("shop")
        client.send(commands.Queue.Declare(queue="fleeting"))
        await client.expect(commands.Queue.DeclareOk)
        client.publish("1", "2")
        await client.expect(commands.Basic.Ack)
        queue.stall()
        client.publish("3", "4", "5")
        await becomes(lambda: len(queue.messages) == 5)
        broker.crash(lose=2)
        assert await client.receive() is None
        assert ids(broker) == ["1", "2", "3"]
        assert "fleeting" not in broker.vhosts["/"].queues
        broker.crash(lose=9)
        assert ids(broker) == ["1", "2"], "what was confirmed stays"
        with pytest.raises(AssertionError):
            async with client_of(server):
                pass
        broker.start()
        async with client_of(server):
            pass


async def test_the_sink_loses_nothing_whatever_happens_to_the_broker() -> None:
    """Runs end by an error, and the next begins with the first batch that was not confirmed, as the daemon does it."""
    async with listening() as server:
        broker = server.broker
        queue = broker.declare_queue("shop", arguments={"x-queue-type": "quorum"})
        harm: dict[int, Callable[[], Any]] = {
            5: lambda: broker.lose_confirms(),
            10: lambda: broker.nack_next(3),
            15: lambda: (broker.crash(lose=10), broker.start()),
            20: lambda: broker.reset_connections(),
            25: lambda: (queue.stall(), asyncio.get_running_loop().call_later(0.1, queue.resume)),
        }
        done, runs = 0, 0
        while done < 30:
            runs += 1
            sink = sink_to(server, retry_delay=0.02)
            try:
                await sink.start()
                while done < 30:
                    confirmation = await sink.publish(numbered(10 * done, 10, "shop"))
                    if act := harm.pop(done, None):
                        act()
                    await asyncio.wait_for(confirmation, 10)
                    done += 1
            except SinkRejected:
                raise
            except SinkError:
                pass
            finally:
                await sink.abort()
        assert runs > 1
        assert last_words([int(one) for one in ids(broker)]) == list(range(300))
