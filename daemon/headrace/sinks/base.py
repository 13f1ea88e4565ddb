"""The base of sinks: batches go in, in order; each is confirmed as a whole or the sink is finished."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from headrace.lease import Lease
from headrace.model import MessageBatch


class Sink(ABC):
    """Where the messages go. One sink object lives from start to the first failure: it never repairs itself, because
    only the confirmed position says what has to be sent again.

    The lease is asked right before each hand-over to a client library or the system: what is handed over may leave
    at any later time, so at most `max_in_flight_bytes` of it may be unconfirmed.
    """

    keeps_position: bool = False
    """Whether publish() stores each batch's position and schema entries itself, in one transaction with the messages:
    then batches without messages are published too, and nobody else writes the position while the sink is open."""
    version: int = 0
    """Of the stored position, where `keeps_position`."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    @abstractmethod
    async def start(self) -> None:
        """Connects, within a time limit. Raises SinkError."""

    @abstractmethod
    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        """Hands the batch over in the order of the calls and returns its confirmation: done when every message is
        confirmed, or with SinkError. Waits while the sink has too much in flight. Raises what Lease.check()
        raises."""

    def hurry(self) -> None:  # noqa: B027 - most sinks delay nothing
        """A stop waits for what was published: it is to be confirmed without further delay."""

    @abstractmethod
    async def abort(self) -> None:
        """Cuts the connections and ends the tasks: after it returns nothing more leaves. Never raises."""

    @abstractmethod
    async def close(self) -> None:
        """Ends in order after the last confirmation. Safe after abort."""

    @abstractmethod
    async def check(self) -> list[str]:
        """What stands in the way of publishing, a sentence each; empty when all is well."""
