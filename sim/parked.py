"""Messages that brokers refuse for good: the fault, the operator's command, and what must not be left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson

from headrace import runtime
from headrace.adapters.kafka.parking import ParkingLog
from headrace.cli.wiring import Wiring
from headrace.ports.parking import ParkingState
from headrace.settings.load import Loader
from sim.kafka.records import Record
from sim.mysql.errors import SqlError
from sim.plan import Fault

if TYPE_CHECKING:
    from sim.world import World

Undo = Callable[[], None] | None
LIMIT = 2000
"""Bytes of a message that a topic with this fault still takes: one of a single row without a long text."""
_PARKED_TOPIC = "__headrace_parked"


def refuse(world: World, fault: Fault) -> Undo:
    """A topic of Kafka takes no large messages; RabbitMQ nacks them."""
    if world.plan.sink(fault.target) == "rabbitmq":
        broker = world.rabbit.broker
        if broker.largest:
            return None
        broker.largest = LIMIT
        return lambda: setattr(broker, "largest", 0)
    topic = world.kafka.topics.get(fault.target)
    if topic is None:
        return None
    before = topic.setting("max.message.bytes")
    if before == str(LIMIT):
        return None
    topic.configure({"max.message.bytes": str(LIMIT)})
    return lambda: topic.configure({"max.message.bytes": before})


KINDS: dict[str, Callable[[World, Fault], Undo]] = {"refuse messages": refuse}


async def retry(world: World, destination: str) -> None:
    """Does what `headrace parked retry` does with the messages that need an operator. Raises HeadraceError."""
    from sim.daemon import SIMULATED

    settings = Loader(SIMULATED, {}).load(world.daemons["a"].folder / "headrace.toml")
    wiring = Wiring(settings, SIMULATED, command=True)
    try:
        await wiring.open()
        store, _ = wiring.parking_stores(settings.destinations[destination])
        assert store is not None
        await store.open()
        try:
            waiting = [one for one in await store.entries() if one.state is ParkingState.NEEDS_OPERATOR]
            fresh = [replace(one, attempts=0, state=ParkingState.PENDING, due_us=runtime.now_us()) for one in waiting]
            if fresh:
                await store.update(None, fresh)
        finally:
            await store.close()
    finally:
        await wiring.close()


def _records(world: World) -> Iterator[Record]:
    topic = world.kafka.topics.get(_PARKED_TOPIC)
    for number in range(len(topic.partitions) if topic is not None else 0):
        yield from world.kafka.records(_PARKED_TOPIC, number)


def ids(world: World) -> dict[str, None]:
    """Returns the headrace-ids of all messages that were ever parked."""
    found = dict[str, None]()
    for transaction in world.mysql.history:
        for change in transaction.changes:
            if change.table == "headrace_parked_message" and change.after is not None:
                found[str(change.values(change.after)["id"])] = None
    for record in _records(world):
        if record.value is not None and record.key is not None and record.key.count(b"/") == 2:
            found[orjson.loads(record.value)["id"]] = None
    return found


def left(world: World) -> dict[str, int]:
    """Returns how many messages are parked, by destination."""
    found = dict[str, int]()
    session = world.mysql.session()
    with suppress(SqlError):  # the daemons create the table when they need it
        for row in session.query("SELECT destination FROM headrace.headrace_parked_message"):
            found[row["destination"]] = found.get(row["destination"], 0) + 1
    session.close()
    for name in world.plan.destinations:
        log = ParkingLog(name)
        for record in _records(world):
            log.take(record.offset, record.key, record.value)
        if log.entries:
            found[name] = found.get(name, 0) + len(log.entries)
    return found
