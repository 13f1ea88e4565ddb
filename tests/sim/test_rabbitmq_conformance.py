"""The model of RabbitMQ against a real one: the same frames, the same answers."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from tests import versions
from tests.sim.rabbit_models import listening
from tests.sim.rabbit_raw import Client, client_of

pytestmark = pytest.mark.server

Notes = list[tuple[str, Any]]


@pytest.fixture(params=versions.RABBITMQ)
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


async def test_the_same_frames_have_the_same_answers(server: Any) -> None:
    name = f"conform-{uuid.uuid4().hex[:8]}"
    expected = await script(server, name)
    async with listening() as model:
        found = await script(model, name)
    assert found == expected


async def script(server: Any, name: str) -> Notes:
    notes: Notes = []
    for kind in ("classic", "quorum"):
        async with client_of(server) as client:
            await _publishing(client, f"{name}-{kind}", kind, notes)
    for what, method in refused(name).items():
        async with client_of(server) as client:
            client.send(method)
            closed = await client.expect(commands.Channel.Close)
            # Newer versions name the right that is missing.
            text = re.sub(r"(configure|write|read) access", "access", closed.reply_text)
            notes.append((what, (closed.reply_code, text, closed.class_id, closed.method_id)))
    async with client_of(server, confirms=False) as client:
        await _transactions(client, f"{name}-classic", notes)
    for what, frames in wrong().items():
        async with client_of(server) as client:
            client.send(*frames)
            notes.append((what, (await client.expect(commands.Connection.Close)).reply_code))
    return notes


async def _answers(client: Client) -> list[tuple[Any, ...]]:
    """What comes up to the confirm of one message."""
    found: list[tuple[Any, ...]] = []
    while not found or found[-1][0] == "Basic.Return":
        frame = await client.receive()
        if isinstance(frame, commands.Basic.Return):
            found.append((frame.name, frame.reply_code, frame.reply_text, frame.exchange, frame.routing_key))
            found[-1] += ((await client.expect(ContentHeader)).properties.message_id,)
            found[-1] += ((await client.expect(ContentBody)).value,)
        else:
            assert isinstance(frame, commands.Basic.Ack | commands.Basic.Nack), frame
            found.append((frame.name, frame.delivery_tag))
    return found


async def _publishing(client: Client, name: str, kind: str, notes: Notes) -> None:
    arguments: dict[str, Any] = {"x-queue-type": kind, "x-max-length": 3, "x-overflow": "reject-publish"}
    client.send(commands.Queue.Declare(queue=name, durable=True, arguments=arguments))
    declared = await client.expect(commands.Queue.DeclareOk)
    notes.append((f"{kind}: declared", (declared.message_count, declared.consumer_count)))
    client.publish("1", key=name)
    notes.append((f"{kind}: one", await _answers(client)))
    client.publish("2", key=f"{name}-none")
    notes.append((f"{kind}: to no queue", await _answers(client)))


NEW: tuple[tuple[bool, dict[str, Any]], ...] = (
    (False, {"x-queue-type": "quorum"}),
    (True, {"x-queue-type": 5}),
    (True, {"x-queue-type": "none"}),
    (True, {"x-max-length": "a"}),
    (True, {"x-max-length": -1}),
    (True, {"x-overflow": "none"}),
    (True, {"x-dead-letter-exchange": 5}),
)
_LIMITED: dict[str, Any] = {"x-max-length": 3, "x-overflow": "reject-publish"}
CHANGED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("classic", {}),
    ("classic", {"x-max-length": 300, "x-overflow": "drop-head"}),
    ("classic", {"x-overflow": "drop-head", "x-max-length": 3}),
    ("classic", {**_LIMITED, "x-message-ttl": 70_000, "x-dead-letter-exchange": "amq.topic"}),
    ("classic", {**_LIMITED, "x-single-active-consumer": True}),
    ("quorum", {"x-max-length": 3, "x-message-ttl": 5}),
    ("quorum", {**_LIMITED, "x-message-ttl": 5}),
    ("quorum", {**_LIMITED, "x-delivery-limit": 1 << 20}),
)
"""Of the queues that _publishing() declares."""


def refused(name: str) -> dict[str, Any]:
    quorum: dict[str, Any] = {"x-queue-type": "quorum", "x-max-length": 3, "x-overflow": "reject-publish"}
    return {
        "a missing exchange": commands.Exchange.Declare(exchange=f"{name}-none", passive=True),
        "a missing queue": commands.Queue.Declare(queue=f"{name}-none", passive=True),
        "another type of queue": commands.Queue.Declare(queue=f"{name}-classic", durable=True, arguments=quorum),
        "another type of exchange": commands.Exchange.Declare(
            exchange="amq.topic", exchange_type="fanout", durable=True
        ),
        "a binding to a missing exchange": commands.Queue.Bind(queue=f"{name}-classic", exchange=f"{name}-none"),
        "a binding of a missing queue": commands.Queue.Bind(queue=f"{name}-none", exchange="amq.topic"),
        "a transaction with confirms": commands.Tx.Select(),
        "an exchange of the broker's own": commands.Exchange.Declare(exchange="amq.ours", exchange_type="fanout"),
        "a queue of the broker's own": commands.Queue.Declare(queue="amq.ours"),
        "a deletion of the broker's own": commands.Exchange.Delete(exchange="amq.topic"),
        "a deletion of the default exchange": commands.Exchange.Delete(exchange=""),
        "an exchange that is internal now": commands.Exchange.Declare(
            exchange="amq.topic", exchange_type="topic", durable=True, internal=True
        ),
        "a queue that is not durable now": commands.Queue.Declare(queue=f"{name}-classic"),
        "a queue that is exclusive now": commands.Queue.Declare(
            queue=f"{name}-classic", durable=True, exclusive=True, arguments={"x-queue-type": "classic"}
        ),
        **{
            f"a new queue with {arguments}": commands.Queue.Declare(
                queue=f"{name}-new", durable=durable, arguments=arguments
            )
            for durable, arguments in NEW
        },
        **{
            f"the queue with {arguments}": commands.Queue.Declare(
                queue=f"{name}-{kind}", durable=True, arguments={"x-queue-type": kind, **arguments}
            )
            for kind, arguments in CHANGED
        },
        "a right that nobody has": commands.Queue.Bind(queue=f"{name}-classic", exchange="", routing_key="x"),
    }


async def _transactions(client: Client, name: str, notes: Notes) -> None:
    client.send(commands.Tx.Select())
    await client.expect(commands.Tx.SelectOk)
    client.publish("lost", key=name)
    client.send(commands.Tx.Rollback())
    await client.expect(commands.Tx.RollbackOk)
    client.publish("kept", key=name)
    client.send(commands.Tx.Commit())
    await client.expect(commands.Tx.CommitOk)
    found = []
    while True:
        client.send(commands.Basic.Get(queue=name, no_ack=True))
        if not isinstance(await client.receive(), commands.Basic.GetOk):
            break
        found.append((await client.expect(ContentHeader)).properties.message_id)
        await client.expect(ContentBody)
    notes.append(("what is there", found))


def wrong() -> dict[str, list[Any]]:
    return {
        "a header without a method": [ContentHeader(body_size=1)],
        "a channel that is open": [commands.Channel.Open()],
        "a frame that is too large": [ContentBody(b"x" * 200_000)],
    }
