"""The base of sinks: batches go in, in order; each is confirmed as a whole or the sink is finished."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from headrace.model import MessageBatch


class Sink(ABC):
    """Where the messages go. One sink object lives from start to the first failure: it never repairs itself, because
    only the confirmed position says what has to be sent again."""

    @abstractmethod
    async def start(self) -> None:
        """Connects, within a time limit. Raises SinkError."""

    @abstractmethod
    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        """Hands the batch over in the order of the calls and returns its confirmation: done when every message is
        confirmed, or with SinkError. Waits while the sink has too much in flight."""

    @abstractmethod
    async def abort(self) -> None:
        """Cuts the connections and ends the tasks: after it returns nothing more leaves. Never raises."""

    @abstractmethod
    async def close(self) -> None:
        """Ends in order after the last confirmation. Safe after abort."""

    @abstractmethod
    async def check(self) -> list[str]:
        """What stands in the way of publishing, a sentence each; empty when all is well."""
