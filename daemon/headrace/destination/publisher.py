"""Passes batches from the queue to the sink, in order, while the lease is valid, and confirms them. After a lapse of
the lease it resumes."""

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
from headrace.tasks import alongside, ended, raise_if_cancelled, result_of

_PROOF_LIMIT = 10.0
"""Maximum time in seconds to wait for the first proof of a lock that was just taken."""


class Publisher:
    """Owns the sink of one run. Only this class creates a sink, calls its publish() and ends it.

    When the lease lapses, the publisher aborts the sink. Once the lock is proved again, it passes the unconfirmed
    batches to a new sink. So our old messages can't arrive after those of a successor, and no change is read twice."""

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
        """The sink through which parked messages may be sent again: set from the start of the sink to its end,
        otherwise None."""
        self._cover: Cover | None = None
        self.hangs: Callable[[], str] = str
        """See watchdog.Cover.note."""
        self._unsent: deque[MessageBatch] = deque()
        """Batches that were taken from the queue and not yet passed to the sink."""
        self._handed: deque[tuple[MessageBatch, asyncio.Future[None] | None]] = deque()
        self._handed_event = asyncio.Event()
        self._nothing_handed = asyncio.Event()
        """Set while every batch that was passed to the sink is confirmed."""
        self._nothing_handed.set()
        self.suspended = False
        """Whether the lease has lapsed and the lock is not yet proved again."""

    @property
    def store(self) -> StateStore:
        """Returns the state store of the run: the destination's store, unless the sink stores the position itself."""
        return self.sink.store or self._dependencies.store

    @property
    def idle(self) -> bool:
        """Returns whether every batch that was taken from the queue is confirmed."""
        return not self._handed and not self._unsent

    @property
    def passes(self) -> bool:
        """Returns whether a batch without messages can be confirmed at once. It can if all earlier batches are
        confirmed, the lease has not lapsed, and the sink does not store the position itself."""
        return self.idle and not len(self.queue) and not self.suspended and not self.sink.keeps_position

    # -- the sink -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects to the sink. Raises SinkError, Fenced or LeaseLapsed; in each case the sink has ended."""
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
        """Stops publishing for the rest of the run. If the sink has unconfirmed messages, it is aborted, because
        nothing checks the lease any more. An idle sink remains open, because it can send nothing. `resent`: whether the
        sink has answered every parked message that was sent again."""
        self.resending = None
        if self.idle and resent:
            self._uncover()
        else:
            await self.abort()

    async def abort(self) -> None:
        """Aborts the sink. After this method returns, the sink sends nothing more. Never raises."""
        self.resending = None
        await self.sink.abort()
        self._uncover()

    async def close(self) -> None:
        """Ends the sink in order. Called after the last confirmation."""
        self.resending = None
        await self.sink.close()
        self._uncover()

    def clear(self) -> None:
        """Discards all unconfirmed batches, at the end of a run."""
        self._unsent.clear()
        self._handed.clear()
        self.queue.clear()

    def _uncover(self) -> None:
        cover, self._cover = self._cover, None
        if cover is not None:
            self._watchdog.uncover(cover)

    # -- publishing -----------------------------------------------------------------------------------------------

    async def run(self, on_confirmed: Callable[[MessageBatch], None]) -> None:
        """Publishes the batches of the queue until it is cancelled. Calls `on_confirmed` with a batch once this batch
        and all earlier ones are confirmed. Raises SinkError and Fenced; also LeaseLapsed, if the sink stores the
        position itself."""
        while True:
            await self._until_lapse(on_confirmed)
            await self.abort()
            raise_if_cancelled()
            await self._resume()

    async def _until_lapse(self, on_confirmed: Callable[[MessageBatch], None]) -> None:
        """Publishes and confirms until the lease lapses. Raises the error if either fails for another reason."""
        if self._cover is None:
            # From here on the sink may have data that it could still send. So if the sink is not aborted in time after
            # a lapse, the watchdog ends the process. The cover does not begin earlier: while a source is opened nothing
            # checks the lease, and the sink has no data yet.
            self._cover = self._watchdog.cover(self.lease, lambda: self.hangs())
        works = {"lapsed": self.lease.lapsed(), "publish": self._publish(), "confirm": self._confirm(on_confirmed)}
        async with alongside(works) as tasks:
            done = await ended(tasks.values())
            if tasks["lapsed"] in done:  # a lapse takes precedence over errors of the other tasks
                return
            for task in done:
                try:
                    result_of(task)
                except LeaseLapsed:
                    return

    async def _resume(self) -> None:
        """Waits for a proof of the lock, starts a new sink, and prepares to pass all unconfirmed batches to it."""
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
            # a sink that stores the position separates barriers itself
            apart = batch.barrier and not sink.keeps_position
            if apart:
                await self._nothing_handed.wait()
            charged = batch.size
            confirmation = await sink.publish(batch) if batch.values or sink.keeps_position else None
            self.queue.give_back(charged - batch.size)  # the bytes that the sink has moved to the disk
            self._note_handed(batch, confirmation)
            if apart:
                await self._nothing_handed.wait()

    async def _publish_together(self, sink: Sink, batches: list[MessageBatch]) -> None:
        """Publishes several small batches together, which collected while the sink was slow. Each batch is confirmed as
        if it had been published alone."""
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
        """Confirms batches in order, so that the position never passes an unconfirmed message."""
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
    """Yields a publisher whose sink is started. If the body raises, the publisher is aborted; otherwise it ends in
    order."""
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
