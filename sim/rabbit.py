"""RabbitMQ in the simulated world: one node, the queue of a destination, its faults, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from sim.loop import Process
from sim.plan import RABBIT, Fault
from sim.rabbitmq.broker import ALL, Broker
from sim.rabbitmq.messages import Queue

if TYPE_CHECKING:
    from sim.world import World

Undo = Callable[[], None] | None
EXCHANGE, PORT = "headrace", 5672
_CONFIRM_TIMES = (0.0, 0.01, 0.2)
REFUSALS = ("nack messages", "return messages", "revoke rights", "refuse messages")
"""Faults after which messages come again after later ones about the same row."""


class Node:
    """One node, whose queues outlive its crashes. The account is guest/guest."""

    def __init__(self, world: World) -> None:
        self._network, self.process = world.network, Process(world.loop, RABBIT)
        self.broker = Broker()
        self.broker.confirm_time = world.rng("rabbitmq").choice(_CONFIRM_TIMES)
        self.listen()

    def listen(self) -> None:
        """Accepts connections."""
        self._network.listen(self.process, RABBIT, PORT, self.broker.protocol)

    def refuse(self) -> None:
        """Accepts no new connections."""
        self._network.close(RABBIT, PORT)

    def at(self, call: Callable[[], object]) -> None:
        """Calls something as a step of the node."""
        self.process.context().run(call)

    def queue(self, name: str) -> Queue | None:
        """Returns a queue, if it is declared."""
        return self.broker.vhosts["/"].queues.get(name)

    def records(self, name: str, start: int) -> Iterator[tuple[dict[str, bytes], bytes]]:
        """Yields headers and body of the messages of a queue from a number on, as far as no crash can lose them."""
        queue = self.queue(name)
        for message in islice(queue.messages, start, None) if queue is not None else ():
            if not message.durable:
                return
            headers = {
                key: value.encode() if isinstance(value, str) else value for key, value in message.headers.items()
            }
            yield headers | {"headrace-id": message.id.encode()}, message.body


def _crash(world: World, fault: Fault) -> Undo:
    node = world.rabbit
    if not node.broker.up:
        return None
    node.refuse()
    node.at(lambda: node.broker.crash(lose=int(fault.number)))

    def undo() -> None:
        node.at(node.broker.start)
        node.listen()

    return undo


def _nack(world: World, fault: Fault) -> Undo:
    world.rabbit.broker.nack_next(int(fault.number))
    return world.rabbit.broker.end_losses


def _lose_confirms(world: World, fault: Fault) -> Undo:
    world.rabbit.broker.lose_confirms(int(fault.number))
    return world.rabbit.broker.end_losses


def _return(world: World, fault: Fault) -> Undo:
    """Nothing is bound to the exchange, so that messages reach no queue."""
    exchange = world.rabbit.broker.vhosts["/"].exchanges.get(EXCHANGE)
    if exchange is None or not exchange.bindings:
        return None
    bindings, exchange.bindings = exchange.bindings, {}

    def undo() -> None:
        exchange.bindings = bindings | exchange.bindings

    return undo


def _revoke(world: World, fault: Fault) -> Undo:
    """The account may not publish: the broker closes each channel that does."""
    world.rabbit.broker.allow("guest", write="^$")
    return lambda: world.rabbit.broker.allow("guest", write=ALL)


def _late_confirms(world: World, fault: Fault) -> Undo:
    """A queue confirms nothing, like a quorum queue without a majority."""
    queue = world.rabbit.queue(fault.target)
    if queue is None or queue.stalled:
        return None
    queue.stall()
    return lambda: world.rabbit.at(queue.resume)


def _alarm(world: World, fault: Fault) -> Undo:
    node = world.rabbit
    if node.broker.alarm:
        return None
    node.broker.raise_alarm()
    return lambda: node.at(node.broker.end_alarm)


KINDS: dict[str, Callable[[World, Fault], Undo]] = {
    "crash rabbitmq": _crash,
    "nack messages": _nack,
    "lose confirms": _lose_confirms,
    "return messages": _return,
    "revoke rights": _revoke,
    "late confirms": _late_confirms,
    "memory alarm": _alarm,
}
