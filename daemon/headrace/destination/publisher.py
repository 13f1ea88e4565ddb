"""Moves batches from the queue to the sink and confirms them, under the lease: in order, resumed after a lapse, aborted
if necessary."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from itertools import islice

from headrace import runtime
from headrace.cluster.watchdog import Cover, Watchdog
from headrace.destination.dependencies import Context, Dependencies
from headrace.errors import LeaseLapsed
from headrace.lease import Lease
from headrace.model import MessageBatch, State
from headrace.parking.parking import OrderedParking
from headrace.pipeline.byte_queue import ByteQueue
from headrace.pipeline.gathering import Target, joined, target_of, together
from headrace.ports.sink import Sink
from headrace.ports.state import StateStore
from headrace.tasks import beside, ended, result_of

_PROOF_LIMIT = 10.0
"""Maximum seconds that a lock which was just taken may wait for its first proof."""


class Publisher:
    """The sink session of one run: it alone creates a sink, calls publish() and ends the sink.

    When the lease lapses, the sink is aborted, and its unconfirmed batches are handed to a new sink once the lock is
    proved again. So a successor's messages can't be overtaken by ours, and nothing has to be read twice."""

    def __init__(
        self,
        context: Context,
        dependencies: Dependencies,
        lease: Lease,
        parking: OrderedParking | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._dependencies, self._status, self._log, self._watchdog = (
            dependencies,
            context.status,
            context.log,
            watchdog or runtime.only(Watchdog),
        )
        self.lease, self.parking = lease, parking
        self._one_log = context.settings.sink.capabilities.one_log
        self.queue = ByteQueue(context.settings.queue_bytes, dependencies.budget, starved=lambda: self.sink.flush())
        self.sink: Sink = dependencies.new_sink(lease, parking)
        self.resending: Sink | None = None
        """The sink while parked messages may be sent again through it: from its start to its end."""
        self._cover: Cover | None = None
        self.hangs: Callable[[], str] = str
        """See watchdog.Cover.note."""
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
    def store(self) -> StateStore:
        """Returns the store of the run: the destination's, unless the sink keeps the position itself."""
        return self.sink.store or self._dependencies.store

    @property
    def idle(self) -> bool:
        """Returns whether the sink has no unconfirmed messages of ours."""
        return not self._handed and not self._unsent

    @property
    def passes(self) -> bool:
        """Returns whether a batch without messages is confirmed at once: all before it are, and the sink is not
        involved."""
        return self.idle and not len(self.queue) and not self.suspended and not self.sink.keeps_position

    # -- the sink -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects. Raises SinkError, Fenced or LeaseLapsed; the sink has ended then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PROOF_LIMIT):
                await self.lease.proved()
        self.lease.check()
        try:
            await self.sink.start()
        except BaseException:
            await self.abort()
            raise
        self.resending = self.sink

    async def rest(self, *, resent: bool) -> None:
        """Hands over nothing more in this run. A sink with unconfirmed messages is aborted, because nothing checks the
        lease any more; an idle sink can do no harm, however long the end takes. `resent`: whether all parked messages
        that were sent again are answered."""
        self.resending = None
        if self.idle and resent:
            self._uncover()
        else:
            await self.abort()

    async def abort(self) -> None:
        """Aborts everything: after it returns nothing more leaves. Never raises."""
        self.resending = None
        await self.sink.abort()
        self._uncover()

    async def close(self) -> None:
        """Ends in order after the last confirmation."""
        self.resending = None
        await self.sink.close()
        self._uncover()

    def clear(self) -> None:
        """Drops what is not confirmed, at the end of a run."""
        self._unsent.clear()
        self._handed.clear()
        self.queue.clear()

    def _uncover(self) -> None:
        cover, self._cover = self._cover, None
        if cover is not None:
            self._watchdog.uncover(cover)

    # -- publishing -----------------------------------------------------------------------------------------------

    async def run(self, on_confirmed: Callable[[MessageBatch], None]) -> None:
        """Publishes what comes through the queue until it is cancelled; calls `on_confirmed` with each batch once it
        and all before it are confirmed. Raises SinkError, Fenced, and LeaseLapsed if the sink keeps the position
        itself."""
        while True:
            await self._until_lapse(on_confirmed)
            await self.abort()
            await self._resume()

    async def _until_lapse(self, on_confirmed: Callable[[MessageBatch], None]) -> None:
        """Publishes and confirms until the lease lapses; raises errors that end both permanently."""
        if self._cover is None:
            # From here on the sink may have data that could still leave, so the process ends unless somebody aborts in
            # time after a lapse. Not before: nothing checks the lease while a source is opened, and nothing is lost by
            # it.
            self._cover = self._watchdog.cover(self.lease, lambda: self.hangs())
        works = {"lapsed": self.lease.lapsed(), "publish": self._publish(), "confirm": self._confirm(on_confirmed)}
        async with beside(works) as tasks:
            done = await ended(tasks.values())
            if tasks["lapsed"] in done:  # it decides, whatever else happened
                return
            for task in done:
                try:
                    result_of(task)
                except LeaseLapsed:
                    return

    async def _resume(self) -> None:
        """Waits for a proof of the lock, and prepares to hand over again what is not confirmed."""
        if not self.lease.lost:
            self.suspended = True
            text = "the lock can't be proved, so nothing is published; what is read waits"
            self._status.enter(State.STALLED, "lock", text)
            self._log.warning("suspended: the lease has lapsed", unconfirmed=len(self._handed))
        if self.sink.keeps_position and not self.lease.lost:
            raise LeaseLapsed(
                "the lease lapsed within a Kafka transaction, which is given up",
                remedy="check whether the lock service can be reached",
            )
        await self.lease.proved()
        self.sink = self._dependencies.new_sink(self.lease, self.parking)
        await self.start()
        self._unsent.extendleft(batch for batch, _ in reversed(self._handed))
        self._handed.clear()
        self._nothing_handed.set()
        self.suspended = False
        self._status.holding.resume()
        self._log.info("resumed in place: the lock is still ours", again=len(self._unsent))

    async def _publish(self) -> None:
        sink = self.sink
        while True:
            if not self._unsent:
                self._unsent.append(await self.queue.get())
            if len(self.queue):
                self._unsent += self.queue.take_waiting()
            if (count := together(self._unsent, one_log=self._one_log)) > 1:
                await self._publish_together(sink, list(islice(self._unsent, count)))
                continue
            batch = self._unsent[0]
            apart = batch.barrier and not sink.keeps_position  # such a sink does that itself
            if apart:
                await self._nothing_handed.wait()
            charged = batch.size
            confirmation = await sink.publish(batch) if batch.values or sink.keeps_position else None
            self.queue.give_back(charged - batch.size)  # what the sink has put on disk
            self._note_handed(batch, confirmation)
            if apart:
                await self._nothing_handed.wait()

    async def _publish_together(self, sink: Sink, batches: list[MessageBatch]) -> None:
        """Publishes small batches that gathered while the sink was slow. Each is confirmed as if it had been published
        alone."""
        confirmations: dict[Target, asyncio.Future[None]] = {}
        last: asyncio.Future[None] | None = None
        for batch in joined(batches):
            if batch.values or sink.keeps_position:
                last = confirmations[target_of(batch)] = await sink.publish(batch)
        if not sink.keeps_position:
            last = None
        for batch in batches:
            self._note_handed(batch, confirmations[target_of(batch)] if batch.values else last)

    def _note_handed(self, batch: MessageBatch, confirmation: asyncio.Future[None] | None) -> None:
        self._unsent.popleft()
        self._handed.append((batch, confirmation))
        self._nothing_handed.clear()
        self._handed_event.set()

    async def _confirm(self, on_confirmed: Callable[[MessageBatch], None]) -> None:
        """Confirms in order: the position never passes a message that is not confirmed."""
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
            on_confirmed(batch)
            self.queue.release(batch.size)


@contextlib.asynccontextmanager
async def publishing(
    context: Context, dependencies: Dependencies, lease: Lease, parking: OrderedParking | None
) -> AsyncIterator[Publisher]:
    """Yields a started publisher. It is aborted if the body fails, and otherwise ended in order."""
    publisher = Publisher(context, dependencies, lease, parking)
    await publisher.start()
    publisher.queue.join()
    try:
        yield publisher
    except BaseException:
        await publisher.abort()
        raise
    finally:
        publisher.queue.leave()
    await publisher.close()
