"""One run of a destination from an open source to an open sink: the tasks between them, and what it says of itself."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import structlog

from headrace.destination.delivery import Delivery
from headrace.destination.heartbeat_writer import Companion
from headrace.destination.sending import Sending
from headrace.destination.stall import Liveness
from headrace.destination.status import DestinationStatus
from headrace.errors import Fenced, HeadraceError, PositionLost, SourceEnded, SourceSilent
from headrace.model import MessageBatch, Position
from headrace.parking.compensation import Compensation
from headrace.parking.parking import Parking
from headrace.pipeline.byte_queue import ByteQueue
from headrace.pipeline.message_builder import make_outlet
from headrace.ports.source import OpenSource, Progress, Receiver
from headrace.ports.state import Guard, StateChange
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings

log = structlog.get_logger(__name__)

_STEADY = 10.0
"""A dump that lasted so long, in seconds, and then ended is begun again in place; one that ends sooner is a failure."""
_BLOCKED = 5.0
"""After waiting so long for the sink, in seconds, an ended dump is what was to be expected, however short it was."""


@dataclass(slots=True)
class Behind:
    """What outlives a run: since when the oldest message waits that no run has had confirmed yet; 0 for none."""

    since: float = 0.0


class Stream:
    """Tasks: read, send, watch (the clock's), and the companion's beats. `guard` is the newest one."""

    def __init__(
        self,
        settings: DestinationSettings,
        daemon: DaemonSettings,
        status: DestinationStatus,
        *,
        source: OpenSource,
        delivery: Delivery,
        guard: Guard,
        companion: Companion,
        behind: Behind,
    ) -> None:
        self._settings, self._daemon, self._status = settings, daemon, status
        self._name, self._log = settings.name, log.bind(destination=settings.name)
        self._delivery, self.guard, self._companion, self._behind = delivery, guard, companion, behind
        self._queue = ByteQueue(settings.queue.bytes)
        self._sending = Sending(delivery, self._queue, status, self._note_confirmed, self._log)
        self._compensation = self._make_compensation(delivery.parking)
        self._compensating: asyncio.Task[None] | None = None
        self._confirmed: Position | None = None
        self._entries: list[dict[str, Any]] = []
        """Of the schema history: confirmed with the position, and not stored yet."""
        self._saved: Position | None = None
        self._waiting_since: deque[float] = deque()
        self._failing = False
        self._blocked_until = self._confirmed_at = self._stored_at = 0.0
        self._opened_at = time.monotonic()
        self._liveness = Liveness(settings.source, status, companion, self._log)
        self._due = asyncio.Event()
        """A checkpoint is due before its time."""
        self._since_checkpoint = 0
        """Transactions confirmed."""
        self._outlet = outlet = make_outlet(settings, source.start.server_uuid, guard.epoch)
        self._source = source.stream(
            Receiver(
                rows=outlet.emit,
                statement=outlet.emit_schema,
                mark=outlet.emit_mark if settings.wants_marks else None,
                heartbeat=companion.seen,
                begin=outlet.tick,
                full=outlet.full,
            )
        )
        self._version = source.version
        self._told = Progress("", 0, 0)
        """What the status knows of the stream."""

    @property
    def unconfirmed(self) -> bool:
        """Whether messages that this run read still wait for confirmation."""
        return bool(self._waiting_since)

    async def run(self, stop: asyncio.Event) -> None:
        """Streams; after `stop` it reads nothing more and waits for what is in flight, within drain_timeout."""
        self._log.info("streaming", position=str(self._source.position()), server=self._version)
        works = {"read": self._read, "send": self._sending.run, "watch": self._watch}
        tasks = [asyncio.create_task(work(), name=f"{self._name}: {name}") for name, work in works.items()]
        if self._compensation is not None:
            self._compensating = asyncio.create_task(self._compensation.run(), name=f"{self._name}: failed")
            tasks.append(self._compensating)
        beats = asyncio.create_task(self._companion.run(self._log), name=f"{self._name}: heartbeat")
        stopping = asyncio.create_task(stop.wait(), name=f"{self._name}: stop")
        try:
            done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            if stopping in done:
                await self._drain(tasks)
            else:
                await self._fail(tasks, done)
        finally:
            await _end(*tasks, stopping, beats)
            # Whoever could hand something over is gone by now.
            resent = self._compensation is None or self._compensation.idle
            await self._delivery.rest(idle=self._sending.idle and resent)
            await self._source.close()
            # What is not saved is sent again; the first error is the one to tell.
            with contextlib.suppress(HeadraceError):
                await self._checkpoint()
            self._behind.since = self._oldest()
            for holder in (self._queue, self._sending, self._outlet):  # this run may be kept by a cycle for long
                holder.clear()

    async def _fail(self, tasks: list[asyncio.Task[None]], done: set[asyncio.Task[Any]]) -> None:
        """Raises what ended the run. When only reading failed, what was read before is confirmed first: nothing of it
        is sent twice, and the stored position is the very place of the failure."""
        error = next(map(_failure, done))
        # That the source is silent is noticed by the clock's task too.
        if len(done) > 1 or (tasks[0] not in done and not isinstance(error, SourceSilent)):
            _raise_first(done)
        if isinstance(error, HeadraceError) and not isinstance(error, Fenced):
            self._failing = True
            if isinstance(error, PositionLost):
                self._status.lost_kind = error.kind.value
            error.remedy = error.remedy.replace("DESTINATION", self._name)
            self._status.failed(str(error))
            self._status.enter(error.state, error.reason, str(error))
            with contextlib.suppress(HeadraceError):  # the first error is the one to tell
                await self._drain([task for task in tasks if task is tasks[0] or task not in done])
        _raise_first(done)

    async def _drain(self, tasks: list[asyncio.Task[None]]) -> None:
        """Waits for what was read, and for what is being sent again."""
        reader, *others = (task for task in tasks if task is not self._compensating)
        await _end(reader)
        if self._compensation is not None:
            self._compensation.end()
        self._delivery.sink.hurry()
        empty = asyncio.create_task(self._empty(), name=f"{self._name}: drain")
        try:
            async with asyncio.timeout(self._daemon.drain_timeout):
                done, _ = await asyncio.wait([empty, *others], return_when=asyncio.FIRST_COMPLETED)
            _raise_first({empty} if empty in done else done)
        except TimeoutError:
            self._log.warning("not all in flight was confirmed in time; it is sent again after the next start")
        finally:
            await _end(empty)

    async def _empty(self) -> None:
        await self._queue.empty()
        if self._compensating is not None:
            await asyncio.wait([self._compensating])
            _raise_first({self._compensating})

    # -- reading --------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Changes to batches. A stream that ended and can go on at once, behind what was read, is no failure."""
        while True:
            try:
                await self._source.read()
            except SourceEnded as error:
                await self._begin_again(error)
            else:
                await self._take()

    async def _take(self) -> None:
        """What the stream gave, into the queue; waits when that is full."""
        source, before, status = self._source, self._told, self._status
        now = source.progress()
        batches = self._outlet.take(source.position(), now.received)
        last, self._told = batches[-1], now
        last.transactions = now.transactions - before.transactions
        last.schema_entries = source.take_entries()
        status.skipped_events += now.skipped - before.skipped
        status.events += now.events - before.events
        status.bytes_received += now.bytes - before.bytes
        status.received_file, status.received_offset = now.file, now.offset
        status.last_event_at = time.monotonic()
        if now.commit_time_us != before.commit_time_us:  # an idle source has no lag that grows
            status.lag_seconds = max(0.0, time.time() - now.commit_time_us / 1e6)
        self._waiting_since += [now.received for batch in batches if batch.values]
        if self._delivery.sink.keeps_position:  # none of them is confirmed before the last, which has the position
            await self._put(*batches)
            return
        for batch in batches:
            await self._put(batch)

    async def _put(self, *batches: MessageBatch) -> None:
        if self._queue.fits(batches[0]):
            await self._queue.put(*batches)
            return
        began = time.monotonic()
        await self._queue.put(*batches)
        now = time.monotonic()
        if now - began > _BLOCKED:
            self._blocked_until = now

    async def _begin_again(self, error: SourceEnded) -> None:
        """The server gives up a dump that is not read for net_write_timeout, and any dump when it restarts."""
        now = time.monotonic()
        if now - self._opened_at < _STEADY and now - self._blocked_until > 2 * _STEADY:
            raise error
        if self._settings.wants_marks and self._source.in_transaction():
            raise error  # its begin was told, and a position between two transactions comes only with its end
        try:
            self._status.server_id = await self._source.reopen()
        except HeadraceError as second:
            raise error from second
        self._opened_at = time.monotonic()
        self._status.reconnects += 1
        self._log.info("the dump is begun again", position=str(self._source.position()), ended=str(error))

    # -- publishing -----------------------------------------------------------------------------------------------

    def _note_confirmed(self, batch: MessageBatch) -> None:
        status = self._status
        if batch.values:
            self._waiting_since.popleft()
            self._behind.since, self._confirmed_at = 0.0, time.monotonic()
        if batch.position is not None:  # only the last of those taken together
            self._confirmed = batch.position
            self._entries += batch.schema_entries
        status.messages += len(batch.values)
        status.rows += batch.rows
        status.transactions += batch.transactions
        self._since_checkpoint += batch.transactions
        if self._since_checkpoint >= self._daemon.checkpoint_transactions:
            self._due.set()
        status.bytes_published += sum(len(value) for value in batch.values if value)

    # -- the clock's ----------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Saves the position, after a time and after a number of transactions, and tells a stall from lag."""
        interval = self._daemon.checkpoint_interval
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(interval, 1.0)):
                    await self._due.wait()
            self._status.queue_bytes = self._queue.used
            self._companion.check()
            if not self._failing:
                await self._liveness.look(self._source)
            self._status.oldest_unconfirmed_at = self._oldest()
            if not self._failing and not self._sending.suspended and self._told.events:
                self._liveness.judge(self._oldest(), self._confirmed_at)
            if self._due.is_set() or time.monotonic() - self._stored_at >= 0.9 * interval:
                self._due.clear()
                self._since_checkpoint, self._stored_at = 0, time.monotonic()
                await self._checkpoint()

    def _oldest(self) -> float:
        """When the oldest unconfirmed message was read, be it by an earlier run; 0 when all is confirmed."""
        return self._behind.since or (self._waiting_since[0] if self._waiting_since else 0.0)

    def _make_compensation(self, parking: Parking | None) -> Compensation | None:
        if parking is None:
            return None
        return Compensation(
            self._settings.failed, parking, lambda: self._delivery.resending, lambda: self.guard, self._log
        )

    async def _checkpoint(self) -> None:
        position, parking = self._confirmed, self._delivery.parking
        if parking is not None and not self._delivery.sink.keeps_position:
            # Before the position: what a crash leaves between the two is set aside already when it is read again.
            await parking.flush(self.guard)
        if position is None or (position == self._saved and not self._entries):
            return
        if self._delivery.sink.keeps_position:
            self._note_kept(position)
            return
        entries = tuple(self._entries)  # kept until they are written: no position may be stored without them
        store = self._delivery.store
        commit = asyncio.ensure_future(store.commit(self._name, self.guard, StateChange(position, entries)))
        try:
            # A write that has begun goes on when we are cancelled, and makes the guard that we have void.
            await asyncio.wait([commit])
        except asyncio.CancelledError:
            await asyncio.wait([commit])  # the store has a limit of its own
            with contextlib.suppress(HeadraceError):
                self._note_saved(commit, position, len(entries))
            raise
        self._note_saved(commit, position, len(entries))

    def _note_kept(self, position: Position) -> None:
        """The sink stored it with the messages that it confirmed."""
        self._entries.clear()
        self.guard = replace(self.guard, version=self._delivery.sink.version)
        self._saved = self._status.position = position
        self._status.last_checkpoint_at = time.monotonic()

    def _note_saved(self, commit: asyncio.Future[Guard], position: Position, entries: int) -> None:
        try:
            self.guard = commit.result()
        except Fenced:
            self._confirmed = None  # nothing more may be written, not even at the end
            raise
        del self._entries[:entries]
        self._saved = self._status.position = position
        self._status.last_checkpoint_at = time.monotonic()


def _failure(task: asyncio.Task[Any]) -> BaseException | None:
    """Why a task ended; a library that cancels us from within must not look like the end of the run."""
    if task.cancelled():
        return HeadraceError(f"the task '{task.get_name()}' was broken off from within")
    return task.exception()


def _raise_first(done: set[asyncio.Task[Any]]) -> None:
    for error in map(_failure, done):
        if error is not None:
            raise error


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancels tasks and waits until they are gone; their errors were told already or come second."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
