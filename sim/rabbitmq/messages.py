"""Messages and queues."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from pamqp.commands import Basic
from pamqp.header import ContentHeader

PERSISTENT = 2


class Publisher(Protocol):
    """A channel that waits for what becomes of a message."""

    def settled(self, tags: list[int], accepted: bool) -> None:
        """Takes delivery tags of which one queue more has taken or refused the message."""


class Message:
    """A message as it was published. Its properties are decoded only when somebody asks for them."""

    __slots__ = ("_properties", "body", "durable", "exchange", "header", "redelivered", "routing_key")

    def __init__(self, exchange: str, routing_key: str, header: bytes, body: bytes) -> None:
        """`header` is the payload of the content header's frame."""
        self.exchange, self.routing_key, self.header, self.body = exchange, routing_key, header, body
        self.durable = False
        """Whether the broker has promised to keep it: it was confirmed."""
        self.redelivered = False
        self._properties: Basic.Properties | None = None

    @property
    def properties(self) -> Basic.Properties:
        """Returns the properties."""
        if self._properties is None:
            header = ContentHeader()
            header.unmarshal(self.header)
            self._properties = header.properties
        return self._properties

    @property
    def id(self) -> str:
        """Returns the message id; "" without one."""
        return self.properties.message_id or ""

    @property
    def headers(self) -> dict[str, Any]:
        """Returns the table of headers."""
        return dict(self.properties.headers or {})

    @property
    def persistent(self) -> bool:
        """Returns whether it outlives the broker in a durable queue."""
        return self.properties.delivery_mode == PERSISTENT


class Queue:
    """One queue. It takes a message at once, and confirms it after `confirm_time` seconds, all of that time together,
    as one does that writes to a disk or to other nodes first."""

    def __init__(self, name: str, durable: bool, arguments: dict[str, Any], owner: object | None) -> None:
        self.name, self.durable, self.arguments, self.owner = name, durable, arguments, owner
        self.messages: deque[Message] = deque()
        self.auto_delete = False
        """How it was declared: the model deletes no queue by itself."""
        self.confirm_time = 0.0
        self.stalled = False
        """Whether it confirms nothing: a quorum queue without a majority of its members."""
        self.deleted = False
        self.consumers: list[Callable[[], bool]] = []
        """Each takes one message if it can, and returns whether it did."""
        self._waiting: dict[Publisher, list[int]] = {}
        """Delivery tags that are not confirmed yet, by channel."""
        self._written: list[Message] = []
        self._timer: asyncio.Handle | None = None

    @property
    def kind(self) -> str:
        """Returns its type."""
        return str(self.arguments.get("x-queue-type", "classic"))

    def full(self, size: int) -> bool:
        """Returns whether a message of a size in bytes exceeds a limit of the queue."""
        count, most = self.arguments.get("x-max-length"), self.arguments.get("x-max-length-bytes")
        if count is not None and len(self.messages) >= int(count):
            return True
        return most is not None and sum(len(one.body) for one in self.messages) + size > int(most)

    def offer(self, message: Message, publisher: Publisher | None, tag: int) -> bool:
        """Takes a message, whose publisher is told later if there is one. Returns False if the queue refuses it."""
        if self.full(len(message.body)):
            if str(self.arguments.get("x-overflow", "drop-head")).startswith("reject-publish"):
                return False
            while self.messages and self.full(len(message.body)):
                self.messages.popleft()
        self.messages.append(message)
        if publisher is not None:
            self._waiting.setdefault(publisher, []).append(tag)
            self._written.append(message)
            self._plan()
        if self.consumers:
            self.serve()
        return True

    def _plan(self) -> None:
        if self._timer is not None or self.stalled or not self._waiting:
            return
        loop = asyncio.get_running_loop()
        self._timer = (
            loop.call_later(self.confirm_time, self._confirm) if self.confirm_time else loop.call_soon(self._confirm)
        )

    def _confirm(self) -> None:
        self._timer = None
        if self.stalled:
            return
        waiting, self._waiting = self._waiting, {}
        for message in self._written:
            message.durable = True
        self._written = []
        for publisher, tags in waiting.items():
            publisher.settled(tags, True)

    def stall(self) -> None:
        """Confirms nothing from now on."""
        self.stalled = True

    def resume(self) -> None:
        """Ends stall(): what waits is confirmed."""
        self.stalled = False
        self._plan()

    def forget(self, publisher: Publisher) -> None:
        """Forgets a channel that has ended. Its messages stay."""
        self._waiting.pop(publisher, None)

    def fail(self) -> None:
        """Ends the queue: what is not confirmed is refused."""
        self.deleted = True
        waiting, self._waiting = self._waiting, {}
        for publisher, tags in waiting.items():
            publisher.settled(tags, False)

    def lose(self, count: int) -> int:
        """Removes up to `count` of the last messages that were not confirmed; returns how many."""
        lost = 0
        while lost < count and self.messages and not self.messages[-1].durable:
            self.messages.pop()
            lost += 1
        return lost

    def take(self) -> Message | None:
        """Takes the first message out; None if there is none."""
        return self.messages.popleft() if self.messages else None

    def give_back(self, message: Message) -> None:
        """Puts a message back to the head."""
        message.redelivered = True
        self.messages.appendleft(message)

    def serve(self) -> None:
        """Hands messages to consumers in turn, as long as one takes any."""
        while self.messages and self.consumers:
            for _ in range(len(self.consumers)):
                consumer = self.consumers.pop(0)
                self.consumers.append(consumer)
                if consumer():
                    break
            else:
                return
