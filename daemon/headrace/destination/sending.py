"""From the queue to the sink and back: hands batches over under the lease, in order, and takes their confirmations."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.destination.delivery import Delivery
from headrace.destination.status import DestinationStatus
from headrace.errors import LeaseLapsed
from headrace.model import MessageBatch, State
from headrace.pipeline.byte_queue import ByteQueue
from headrace.tasks import beside, result_of


class Sending:
    """The only one that calls publish(). Ends with an error of the sink or the lock, or when it is cancelled.

    When the lease lapses the sink is cut off, and what it had not confirmed is handed to a new one once the lock is
    proved again: the successor's messages can't be overtaken by ours, and nothing has to be read twice.
    """

    def __init__(
        self,
        delivery: Delivery,
        queue: ByteQueue,
        status: DestinationStatus,
        on_confirmed: Callable[[MessageBatch], None],
        log: Any,
    ) -> None:
        self._delivery, self._lease = delivery, delivery.lease
        self._queue, self._status, self._on_confirmed, self._log = queue, status, on_confirmed, log
        self._unsent: deque[MessageBatch] = deque()
        """Taken from the queue and not handed over."""
        self._handed: deque[tuple[MessageBatch, asyncio.Future[None] | None]] = deque()
        self._handed_event = asyncio.Event()
        self._nothing_handed = asyncio.Event()
        """Set while all that was handed over is confirmed."""
        self._nothing_handed.set()
        self.suspended = False
        """Whether the lease has lapsed and the lock is not proved yet."""

    @property
    def idle(self) -> bool:
        """Whether the sink has nothing of ours that is not confirmed."""
        return not self._handed and not self._unsent

    def clear(self) -> None:
        """Lets go of what is not confirmed, at the end of a run."""
        self._unsent.clear()
        self._handed.clear()

    async def run(self) -> None:
        """Until cancelled. Raises SinkError, Fenced, and LeaseLapsed when the sink keeps the position itself."""
        while True:
            await self._until_lapse()
            await self._delivery.abort()
            await self._resume()

    async def _until_lapse(self) -> None:
        """Publishes and confirms as long as the lease holds; raises what ends both for good."""
        self._delivery.hand_over()
        works = {"lapsed": self._lease.lapsed(), "publish": self._publish(), "confirm": self._confirm()}
        async with beside(works) as tasks:
            done, _ = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            if tasks["lapsed"] in done:  # whatever else happened, it decides
                return
            for task in done:
                try:
                    result_of(task)
                except LeaseLapsed:
                    return

    async def _resume(self) -> None:
        """Waits for a proof of the lock, and makes ready for handing over again what no one has confirmed."""
        if not self._lease.lost:
            self.suspended = True
            text = "the lock can't be proved, so nothing is published; what is read waits"
            self._status.enter(State.STALLED, "lock", text)
            self._log.warning("suspended: the lease has lapsed", unconfirmed=len(self._handed))
        if self._delivery.sink.keeps_position and not self._lease.lost:
            raise LeaseLapsed(
                "the lease lapsed within a Kafka transaction, which is given up",
                remedy="look whether the lock service can be reached",
            )
        await self._lease.proved()
        await self._delivery.renew()
        self._unsent.extendleft(batch for batch, _ in reversed(self._handed))
        self._handed.clear()
        self._nothing_handed.set()
        self.suspended = False
        self._status.resumes += 1
        self._log.info("resumed in place: the lock is still ours", again=len(self._unsent))

    async def _publish(self) -> None:
        sink = self._delivery.sink
        while True:
            if not self._unsent:
                self._unsent.append(await self._queue.get())
            batch = self._unsent[0]
            apart = batch.barrier and not sink.keeps_position  # such a sink sees to that itself
            if apart:
                await self._nothing_handed.wait()
            confirmation = await sink.publish(batch) if batch.values or sink.keeps_position else None
            self._unsent.popleft()
            self._handed.append((batch, confirmation))
            self._nothing_handed.clear()
            self._handed_event.set()
            if apart:
                await self._nothing_handed.wait()

    async def _confirm(self) -> None:
        """In order: the position never passes a message that is not confirmed."""
        while True:
            while not self._handed:
                self._handed_event.clear()
                await self._handed_event.wait()
            batch, confirmation = self._handed[0]
            if confirmation is not None:
                await confirmation
            self._handed.popleft()
            if not self._handed:
                self._nothing_handed.set()
            self._on_confirmed(batch)
            await self._queue.release(batch.size)
