"""Exactly-once delivery to Kafka: messages and position in the same Kafka transactions, each with many small MySQL
ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from headrace import runtime
from headrace.adapters.kafka.oversize import Sizes
from headrace.adapters.kafka.parking import KafkaParkingStore, Record
from headrace.adapters.kafka.producer import largest_of
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.state_topic import StateTopic
from headrace.adapters.kafka.topics import Topics
from headrace.adapters.kafka.transactor import Transactor
from headrace.errors import HeadraceError, SinkError
from headrace.model import MessageBatch, Position
from headrace.ports.finding import Finding, problem
from headrace.ports.parking import ParkedMessage
from headrace.ports.sink import Parking, Sink, SinkRouting
from headrace.ports.state import StateChange
from headrace.tasks import cancel, confirmation, settle

_IDLE_INTERVAL = 1.0
"""Seconds between two commits that only move the position."""
_OFTEN = 0.1
"""Commit interval in seconds that is short enough while brokers are busy: below it commits take a third of the time at
most, above it two thirds."""
_BACKLOG = 0.06
"""Seconds from the end of a commit of several reads to the next commit, if transaction_interval is shorter. Several
reads between two commits mean a backlog."""
_CLOCK = 0.003
"""Seconds by which the clock commits later than publish(), so that what is read at that moment is committed too."""
_EACH_MIB = 0.0125
"""Seconds between two commits for each MiB/s that comes: only a destination that catches up has many, and its rows wait
in the queue anyway."""
_LONG = 0.2
"""Maximum seconds between two commits because much comes; transaction_interval may be longer."""
_SLOW_MOST = 1.0
"""Maximum seconds between two commits because commits take long; transaction_interval may be longer."""


class ExactlyOnceKafkaSink(Sink):
    """Publishes all batches, also those that only move the position. A Kafka transaction ends at the first batch with a
    position that comes transaction_interval after the begin of the last commit, or that makes transaction_bytes: within
    a long MySQL transaction this may be in the middle of it. Reading rests as long, so that one read is one commit.
    If more comes, or commits take long, it collects for longer after each: 60 ms or more of a backlog, and after a slow
    commit twice its time up to a tenth of a second, and half of it beyond that. Otherwise most of the time would be
    spent on small commits, and the backlog would grow.

    start() fences every other producer of the destination. Then the state must be read, and an epoch begun, through the
    KafkaStore with the same Transactor, before anything is published."""

    keeps_position = True

    def __init__(
        self,
        settings: KafkaSinkSettings,
        transactor: Transactor,
        parking: Parking | None = None,
        routing: SinkRouting | None = None,
        parked: KafkaParkingStore | None = None,
    ) -> None:
        super().__init__(transactor.lease, parking)
        self._transactor, self._parked = transactor, parked
        routing = routing or SinkRouting()
        self._sizes = Sizes(settings, Topics(settings, routing.partitions), routing, parking)
        # The brokers end a transaction that takes longer than its timeout, so it is committed long before that.
        self._longest = settings.transaction_timeout / 4
        self._interval = min(settings.transaction_interval, self._longest)
        self._bytes = settings.transaction_bytes
        self._turn = asyncio.Lock()
        """Held by the user of the transactor: publish(), or the clock."""
        self._waiting: list[asyncio.Future[None]] = []
        """Confirmations of the next commit."""
        self._position: Position | None = None
        self._entries: list[dict[str, Any]] = []
        self._complete = True
        """Whether the last batch had a position: a batch without one is part of what follows."""
        self._size = self._reads = 0
        """Bytes, and reads that publish something, since the last commit."""
        self._since = self._began_at = self._committed_at = 0.0
        """On the monotonic clock: when the first message since the last commit came, 0 for none; and when that commit
        began and ended."""
        self._took = 0.0
        """Seconds that the last commit took."""
        self.rests_until = 0.0
        self._hurried = self._flushed = False
        self._changed = asyncio.Event()
        self._clock: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:  # type: ignore[override]
        """Returns the version of the stored position, which each commit increments."""
        return self._transactor.head.version

    async def start(self) -> None:
        """Starts the producer; from now on an older producer of this destination can't write any more."""
        await self._transactor.start()
        self._began_at = self._committed_at = now = runtime.monotonic()
        self.rests_until = now + self._interval
        self._clock = asyncio.create_task(self._run_clock(), name=f"{self._transactor.transactional_id}: commits")

    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        """Publishes a batch. It is confirmed once its Kafka transaction is committed, with the position; waits during a
        commit."""
        done = confirmation()
        async with self._using():
            if not self._transactor.known:
                raise SinkError("the state topic was not read before publishing")
            wake = not self._waiting or not self._complete or (batch.values and not self._since)
            self._waiting.append(done)
            if batch.values:
                batch = await self._sizes.fit(self._transactor.producer, batch)
            if batch.values:
                await self._send(batch)
            self._size += batch.size
            self._complete = batch.position is not None
            if batch.position is not None:
                self._position = batch.position
                self._reads += bool(batch.values)
            self._entries += batch.schema_entries
            if self._size >= self._bytes or runtime.monotonic() >= self._due:
                await self._commit()
        if wake:
            self._changed.set()
        return done

    @contextlib.asynccontextmanager
    async def _using(self) -> AsyncIterator[None]:
        """Gives one user access to the transactor; an error within ends the sink."""
        async with self._turn:
            self._check()
            try:
                yield
            except HeadraceError as error:
                self._fail(error)
                raise

    async def _send(self, batch: MessageBatch) -> None:
        """Sends a batch within the present Kafka transaction."""
        self._since = self._since or runtime.monotonic()
        largest = largest_of(batch)
        if batch.barrier:
            await self._transactor.settle()
        for part in self._transactor.build(batch, self._sizes.limit(batch.topic)):
            await self._transactor.send(part, batch.topic, batch.partition, largest=largest)
        if batch.barrier:
            await self._transactor.settle()

    async def resend(self, batch: MessageBatch) -> None:
        """Sends a message within the present Kafka transaction, or its own; it is confirmed once that is committed."""
        self._check()
        # Not part of the transaction: an error here ends nothing, and publish() does not wait for it.
        await self._sizes.check_again(self._transactor.producer, batch)
        done = confirmation()
        async with self._using():
            self._waiting.append(done)
            await self._send(batch)
            if self._parked is not None:
                await self._transactor.send_records(self._parked.topic, self._parked.removed([batch.parked]))
        self._changed.set()
        await done

    async def write(self, topic: StateTopic, records: Sequence[Record]) -> None:
        """Writes records of the parked messages, as resend() sends a message."""
        done = confirmation()
        async with self._using():
            await self._transactor.send_records(topic, records)
            self._since = self._since or runtime.monotonic()
            self._waiting.append(done)
        self._changed.set()
        await done

    def hurry(self) -> None:
        """From now on commits what is complete at once: a stop waits for it."""
        self._hurried = True
        self._changed.set()

    def flush(self) -> None:
        self._flushed = True
        self._changed.set()

    @property
    def _due(self) -> float:
        """Returns when a commit is due, if what came by then is complete."""
        if self._hurried or self._flushed:
            return 0.0
        return max(self._since, self.rests_until) if self._since else self._committed_at + _IDLE_INTERVAL

    async def _run_clock(self) -> None:
        """Commits what no further batch commits."""
        while True:
            self._changed.clear()
            ready = self._waiting and self._complete
            due = self._due
            with contextlib.suppress(TimeoutError):
                async with runtime.timeout_at((due and due + _CLOCK) if ready else None):
                    await self._changed.wait()
            if not self._waiting:
                continue
            with contextlib.suppress(HeadraceError):
                async with self._using():
                    if runtime.monotonic() >= self._due:
                        await self._commit()

    async def _commit(self) -> None:
        position = self._position or self._transactor.head.position
        if not self._complete or not self._waiting or position is None:
            return
        parked: Sequence[ParkedMessage] = ()
        if self._parked is not None and self._parking is not None:
            parked = self._parking.unstored()
            await self._transactor.send_records(self._parked.topic, self._parked.added(parked))
        began = runtime.monotonic()
        mib_per_second = self._size / (1 << 20) / max(began - self._began_at, self._interval)
        interval = min(max(self._interval, min(_EACH_MIB * mib_per_second, _LONG)), self._longest)
        pause = min(max(_BACKLOG, self._interval), self._longest)
        after = pause if self._reads > 1 else 0.0
        self._began_at, self.rests_until = began, began + max(interval, self._took + after)
        await self._transactor.commit(StateChange(position, tuple(self._entries)))
        if parked and self._parking is not None:
            self._parking.stored(parked)
        waiting, self._waiting = self._waiting, []
        self._entries, self._size, self._reads, self._since, self._flushed = [], 0, 0, 0.0, False
        self._committed_at = now = runtime.monotonic()
        self._took = now - began
        if 2 * self._took > pause:
            after = max(after, min(max(min(2 * self._took, _OFTEN), self._took / 2), _SLOW_MOST, self._longest))
        self.rests_until = max(began + interval, now + after)
        for done in waiting:
            settle(done)

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _fail(self, error: HeadraceError) -> None:
        self.failure = self.failure or error
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            settle(done, error)

    async def problem(self) -> str:
        return await self._transactor.problem()

    async def abort(self) -> None:
        self.failure = self.failure or SinkError("the producer was ended")
        await self._transactor.abort()
        await cancel(self._clock)
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done.cancel()

    async def close(self) -> None:
        """Commits first what is complete and not committed yet."""
        with contextlib.suppress(HeadraceError):
            async with self._using():
                await self._commit()
        await cancel(self._clock)
        if self.failure is not None:
            await self.abort()
        else:
            await self._transactor.close()

    async def check(self) -> list[Finding]:
        """Checks the brokers and the state topic, and fences no producer."""
        return [problem("sink", text) for text in await self._transactor.topic.problems()]
