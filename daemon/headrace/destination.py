"""The actor of one destination: lock, position, source, sink, and the tasks between them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import structlog

from headrace.batching import ByteQueue, Outlet
from headrace.errors import Fenced, HeadraceError, StateStoreError
from headrace.formats.registry import make_format
from headrace.layouts import Layouts
from headrace.lock.base import Lock
from headrace.model import MessageBatch, Position, State
from headrace.mysql.decoder import Decoder
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.source import OpenSource, open_source
from headrace.settings import DaemonSettings, DestinationSettings
from headrace.sinks.base import Sink
from headrace.sinks.registry import make_sink
from headrace.state.base import Guard, StateChange, StateStore
from headrace.status import DestinationStatus

log = structlog.get_logger(__name__)

_LOOK_AT_STORE = 1.0
"""Seconds between two looks at the state store while a destination waits for an operator."""


class Destination:
    """Runs one destination from lock to drain. run() may be called again after it raised."""

    def __init__(
        self,
        settings: DestinationSettings,
        daemon: DaemonSettings,
        store: StateStore,
        lock: Lock,
        status: DestinationStatus,
    ) -> None:
        self._settings, self._daemon = settings, daemon
        self._store, self._lock, self.status = store, lock, status
        self._log = log.bind(destination=settings.name)
        self._version = 0
        """Of what is stored, as this daemon last saw it."""
        self.behind_since = 0.0
        """When the oldest message was read that no run has had confirmed yet; 0 when there is none."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set and everything in flight is confirmed, or something fails: then it raises."""
        if not self.behind_since:  # a stall goes on until something is confirmed, whatever is tried meanwhile
            self.status.enter(State.STARTING)
        try:
            if not await self._hold(stop):
                return
            stored = await self._store.load(self._settings.name)
            guard = await self._store.begin_epoch(self._settings.name)
            self.status.epoch, self.status.position = guard.epoch, stored.position
            self._version = guard.version
            async with self._open_sink() as sink:
                layouts = Layouts(self._settings, await self._store.schema_entries(self._settings.name))
                source = await open_source(
                    self._settings.source,
                    self._settings.source.server_id,
                    stored.position,
                    before_dump=layouts.open,
                    annotations=self._settings.filter.dml_queries,
                )
                try:
                    if stored.position is None:  # so that a crash before the first change does not begin elsewhere
                        first = StateChange(source.start, layouts.history.take_entries())
                        guard = await self._store.commit(self._settings.name, guard, first)
                    await _Stream(self, source, sink, guard, layouts).run(stop)
                finally:
                    await source.stream.close()
        finally:
            await self._lock.release()

    async def observe(self) -> None:
        """Looks after what matters also while run() fails and waits; until it is cancelled."""
        await asyncio.Event().wait()

    async def changed(self) -> None:
        """Returns once somebody else, such as `headrace position set`, has written to the state store."""
        seen = self._version
        while True:
            await asyncio.sleep(_LOOK_AT_STORE)  # a store has no event to wait for that every kind of it knows
            with contextlib.suppress(StateStoreError):
                if (await self._store.load(self._settings.name)).version != seen:
                    return

    async def _hold(self, stop: asyncio.Event) -> bool:
        """Waits for the lock as a standby; False when told to stop before it came."""
        if await self._lock.try_acquire():
            return True
        self.status.enter(State.STANDBY, "lock", f"run by {self._lock.holder or 'another daemon'}")
        self._log.info("standing by", holder=self._lock.holder)
        acquiring = asyncio.create_task(self._lock.acquire(), name=f"{self._settings.name}: lock")
        stopping = asyncio.create_task(stop.wait(), name=f"{self._settings.name}: stop")
        try:
            await asyncio.wait([acquiring, stopping], return_when=asyncio.FIRST_COMPLETED)
            if acquiring.done():
                acquiring.result()
                return not stop.is_set()
            return False
        finally:
            await _end(acquiring, stopping)

    @contextlib.asynccontextmanager
    async def _open_sink(self) -> AsyncIterator[Sink]:
        sink = make_sink(self._settings.sink)
        await sink.start()
        try:
            yield sink
        except BaseException:
            await sink.abort()
            raise
        await sink.close()

    @property
    def name(self) -> str:
        """The destination's name."""
        return self._settings.name


class _Stream:
    """One run from an open source to an open sink. Four tasks: read, publish, confirm, and the clock's."""

    def __init__(self, owner: Destination, source: OpenSource, sink: Sink, guard: Guard, layouts: Layouts) -> None:
        self._settings, self._daemon, self._store = owner._settings, owner._daemon, owner._store
        self._owner, self._status, self._log, self._name = owner, owner.status, owner._log, owner.name
        self._source, self._sink, self._guard = source, sink, guard
        self._queue = ByteQueue(self._settings.queue.bytes)
        self._handed: deque[tuple[MessageBatch, asyncio.Future[None] | None]] = deque()
        self._handed_event = asyncio.Event()
        self._layouts = layouts
        self._confirmed: Position | None = None
        self._entries: list[dict[str, Any]] = []
        """Of the schema history: confirmed with the position, and not stored yet."""
        self._saved: Position | None = None
        self._waiting_since: deque[float] = deque()
        message, route = self._settings.message, self._settings.route
        self._outlet = Outlet(
            make_format(self._settings),
            route.topic,
            route.partition,
            message.rows_per_message,
            source.start.server_uuid,
            one_log=self._settings.sink.type == "jsonl",
        )
        self._decoder = Decoder(
            source.start,
            captures=layouts.captures,
            emit=self._outlet.emit,
            emit_schema=self._outlet.emit_schema,
            emit_mark=self._outlet.emit_mark if self._settings.wants_marks else None,
            history=layouts.history,
            options=DecoderOptions.of(self._settings, owner._daemon),
            checksums=source.checksums,
            skip_before=source.skip_before,
            skip_until_us=source.skip_until_us,
        )
        self._outlet.bind(self._decoder)

    async def run(self, stop: asyncio.Event) -> None:
        """Streams; after `stop` it reads nothing more and waits for what is in flight, within drain_timeout."""
        self._judge()
        self._log.info("streaming", position=str(self._source.start), server=self._source.version)
        names = (self._read, self._publish, self._confirm, self._watch)
        tasks = [asyncio.create_task(work(), name=f"{self._name}: {work.__name__[1:]}") for work in names]
        stopping = asyncio.create_task(stop.wait(), name=f"{self._name}: stop")
        try:
            done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            if stopping not in done:
                _raise_first(done)
            await self._drain(tasks)
        finally:
            await _end(*tasks, stopping)
            self._decoder.close()
            with contextlib.suppress(
                HeadraceError
            ):  # what is not saved is sent again; the first error is the one to tell
                await self._checkpoint()
            self._owner.behind_since = self._oldest()

    async def _drain(self, tasks: list[asyncio.Task[None]]) -> None:
        reader, *others = tasks
        await _end(reader)
        empty = asyncio.create_task(self._empty(), name=f"{self._name}: drain")
        try:
            async with asyncio.timeout(self._daemon.drain_timeout):
                done, _ = await asyncio.wait([empty, *others], return_when=asyncio.FIRST_COMPLETED)
            if empty not in done:
                _raise_first(done)
        except TimeoutError:
            self._log.warning("not all in flight was confirmed in time; it is sent again after the next start")
        finally:
            await _end(empty)

    async def _empty(self) -> None:
        await self._queue.empty()

    async def _read(self) -> None:
        """Bytes to batches. Yields to the loop after every slice, and waits when the queue is full."""
        stream, decoder, outlet, status = self._source.stream, self._decoder, self._outlet, self._status
        deadline = 2 * self._settings.source.heartbeat + 1
        data, rest, counted, events, skipped, newest = b"", 0, 0, 0, 0, 0
        while True:
            data = await stream.read(data, decoder.need, deadline)
            received, at, more = stream.last_receive, 0, True
            status.bytes_received += len(data) - rest
            while more:
                outlet.tick()
                at, more = decoder.feed(data, at, outlet.full)
                batches = outlet.take(decoder.position(), received)
                batches[-1].transactions, counted = decoder.transactions - counted, decoder.transactions
                batches[-1].schema_entries = self._layouts.history.take_entries()
                for batch in batches:
                    if batch.values:
                        self._waiting_since.append(received)
                    await self._queue.put(batch)
                if decoder.wanted is not None:
                    decoder.learned(await self._layouts.learn(decoder.wanted, decoder.position()))
                    more = True
                await asyncio.sleep(0)
            status.skipped_events, skipped = status.skipped_events + decoder.skipped - skipped, decoder.skipped
            status.events, events = status.events + decoder.events - events, decoder.events
            status.received_file, status.received_offset = decoder.file, decoder.end
            status.last_event_at = time.monotonic()
            if decoder.commit_time_us != newest:  # an idle source has no lag that grows
                newest = decoder.commit_time_us
                status.lag_seconds = max(0.0, time.time() - decoder.commit_time_us / 1e6)
            data = data[at:]
            rest = len(data)

    async def _publish(self) -> None:
        """Batches to the sink, in order: the only task that calls publish()."""
        while True:
            batch = await self._queue.get()
            confirmation = await self._sink.publish(batch) if batch.values else None
            self._handed.append((batch, confirmation))
            self._handed_event.set()

    async def _confirm(self) -> None:
        """Confirmations in order: the position never passes a message that is not confirmed."""
        while True:
            while not self._handed:
                self._handed_event.clear()
                await self._handed_event.wait()
            batch, confirmation = self._handed[0]
            if confirmation is not None:
                await confirmation
                self._waiting_since.popleft()
                self._owner.behind_since = 0.0
            self._handed.popleft()
            if batch.position is not None:  # only the last of those taken together
                self._confirmed = batch.position
                self._entries += batch.schema_entries
            self._status.messages += len(batch.values)
            self._status.rows += batch.rows
            self._status.transactions += batch.transactions
            self._status.bytes_published += sum(len(value) for value in batch.values if value)
            await self._queue.release(batch.size)

    async def _watch(self) -> None:
        """Saves the position, and tells a stall from lag."""
        while True:
            await asyncio.sleep(min(self._daemon.checkpoint_interval, 1.0))
            self._status.queue_bytes = self._queue.used
            self._judge()
            await self._checkpoint()

    def _oldest(self) -> float:
        """When the oldest unconfirmed message was read, be it by an earlier run; 0 when all is confirmed."""
        return self._owner.behind_since or (self._waiting_since[0] if self._waiting_since else 0.0)

    def _judge(self) -> None:
        """STALLED once the oldest unconfirmed message is too old: a new connection alone does not end a stall."""
        oldest, stall_after = self._oldest(), self._settings.source.stall_after
        self._status.oldest_unconfirmed_at = oldest
        if oldest and time.monotonic() - oldest > stall_after:
            text = f"nothing was confirmed for more than {stall_after:g} s; reading waits, nothing is lost"
            if self._status.enter(State.STALLED, "sink", text):
                self._log.warning("stalled", reason="sink")
        elif self._status.enter(State.STREAMING) and self._status.restarts:
            self._log.info("streaming again")

    async def _checkpoint(self) -> None:
        position = self._confirmed
        if position is None or (position == self._saved and not self._entries):
            return
        entries = tuple(self._entries)  # kept until they are written: no position may be stored without them
        try:
            self._guard = await self._store.commit(self._name, self._guard, StateChange(position, entries))
        except Fenced:
            self._confirmed = None  # nothing more may be written, not even at the end
            raise
        self._owner._version = self._guard.version
        del self._entries[: len(entries)]
        self._saved = self._status.position = position
        self._status.last_checkpoint_at = time.monotonic()


def _raise_first(done: set[asyncio.Task[Any]]) -> None:
    for task in done:
        task.result()


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancels tasks and waits until they are gone; their errors were told already or come second."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
