"""The base of sinks whose brokers confirm or refuse each message: many in flight, retries, order kept."""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from headrace import runtime
from headrace.errors import HeadraceError, SinkError
from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.parking.retries import Retries
from headrace.parking.settings import RetrySettings
from headrace.parking.window import Entry, Refusals, Window
from headrace.ports.sink import Parking, Sink
from headrace.tasks import cancel, confirmation

log = structlog.get_logger(__name__)


class ConfirmingSink(Sink):
    """One connection, from start to its failure. Tags number what is handed over, from 1 on.

    A refused message is sent again up to `retries` times, while others continue: see retries. After the last retry the
    sink fails or, with a parking, the message is parked with those that wait for it. What is in flight: see window."""

    def __init__(self, settings: RetrySettings, lease: Lease, parking: Parking | None = None) -> None:
        super().__init__(lease, parking if settings.capabilities.parks else None)
        self._timeout = settings.request_timeout
        self._window = Window(settings.max_in_flight, settings.max_in_flight_bytes)
        self._retries = Retries(settings, self._window, self._parking, self._scope)
        self._refused: Refusals = {}
        """Not handled yet."""
        self._work, self._room = asyncio.Event(), asyncio.Event()
        """Set when the task of retries may have something to do; and when publish() may hand over something."""
        self._turning = asyncio.Lock()
        """Held while messages are handed over: held-back messages change only under it."""
        self._handing: asyncio.Timeout | None = None
        """Set while the client library takes messages."""
        self._tasks: list[asyncio.Task[None]] = []
        self._heard_at = 0.0
        """When the broker last answered, on the monotonic clock."""

    # -- what an adapter has to do ----------------------------------------------------------------------------------

    @abstractmethod
    async def _transmit(self, batch: MessageBatch, indexes: Sequence[int], first_tag: int) -> None:
        """Hands messages of a batch to the client library, in order; they have the tags from `first_tag` on. Raises
        SinkError. It is ended when _lost() is called."""

    @abstractmethod
    def _scope(self, batch: MessageBatch) -> str:
        """Returns the topic or exchange that the messages go to."""

    def _paused(self) -> bool:
        """Returns whether the broker has asked us to wait, so that answers may take longer than usual."""
        return False

    def _settled(self, low: int, high: int, refusal: str = "") -> None:
        """Handles the broker's answer to the tags from `low` to `high`: confirmed, or refused with a reason."""
        if self.failure is not None:
            return
        self._heard_at = runtime.monotonic()
        for run in self._window.settle(low, high, refusal, self._refused):
            if not refusal:
                self._retries.confirmed(run.entry.batch.topic)
            if run.again:
                self._work.set()
        if self._refused or self._retries.impatient:
            self._work.set()
        self._window.advance()
        self._room.set()

    def _lost(self, error: HeadraceError) -> None:
        """Records that the connection is lost, or not reliable any more: nothing is confirmed from here on."""
        if self.failure is not None:
            return
        self.failure = error
        self._window.fail(error)
        self._room.set()
        if self._handing is not None:
            self._handing.reschedule(asyncio.get_running_loop().time())

    def _begin_tasks(self, name: str) -> None:
        """Starts the tasks; must be called at the end of start()."""
        works = {"retries": self._work_off, "answers": self._watch}
        self._tasks = [asyncio.create_task(self._guarded(work), name=f"{name}: {what}") for what, work in works.items()]

    async def _end_tasks(self) -> None:
        """Ends the tasks; must be called by abort() and close(). All waiting callers are notified."""
        self._lost(SinkError("the sink was ended"))
        tasks, self._tasks = self._tasks, []
        await cancel(*tasks)
        self._window.cancel()

    # -- handing over -----------------------------------------------------------------------------------------------

    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        """Publishes a batch; waits while max_in_flight messages or max_in_flight_bytes are unconfirmed."""
        self._check()
        entry = Entry(batch, confirmation())
        self._window.entries.append(entry)
        at, count = 0, len(batch.values)
        while at < count:
            await self._wait_for_room(entry, at)
            async with self._turning:
                self._check()
                self._take_refused()
                stop = self._fitting(entry, at)
                chosen = self._retries.sift(entry, range(at, stop))
                if len(chosen) < stop - at:
                    self._work.set()
                if chosen:
                    await self._send(entry, chosen)
                at = stop
        self._window.advance()
        return entry.done

    async def resend(self, batch: MessageBatch) -> None:
        self._check()
        entry = Entry(batch, confirmation(), alone=True)
        at = 0
        while not at:
            await self._wait_for_room(entry, at)
            async with self._turning:
                self._check()
                if at := self._fitting(entry, 0):
                    await self._send(entry, range(at))
        await entry.done

    async def _send(self, entry: Entry, indexes: Sequence[int], *, again: bool = False) -> None:
        self._lease.check()
        first = self._window.sent(entry, indexes, runtime.monotonic(), again=again)
        try:
            async with asyncio.timeout(None) as self._handing:  # _lost() sets its limit
                try:
                    await self._transmit(entry.batch, indexes, first)
                finally:
                    self._handing = None
        except TimeoutError:
            if self.failure is None:
                raise
        except HeadraceError as error:
            self._lost(error)
            raise
        self._check()

    def _fitting(self, entry: Entry, at: int) -> int:
        """Returns where the messages end, from `at` on, that may be sent now."""
        takes = entry.alone or self._retries.takes(entry.batch)
        return self._window.fitting(entry, at) if takes else at

    async def _wait_for_room(self, entry: Entry, at: int) -> None:
        while self._fitting(entry, at) == at:
            self._check()
            self._room.clear()
            await self._room.wait()

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    # -- tasks ------------------------------------------------------------------------------------------------------

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a task so that its end, for whatever reason, does not leave others waiting."""
        try:
            await work()
        except HeadraceError as error:
            self._lost(error)
        except Exception as error:
            log.exception("unexpected error of the sink")
            self._lost(SinkError(f"an unexpected error, {type(error).__name__}: {error}"))

    async def _watch(self) -> None:
        """Detects a dead connection: no answer comes, whatever the kernel reports. Answers to other messages count: a
        sink may send one message at a time of the many that it was given."""
        quiet_from, runs = runtime.monotonic(), self._window.runs
        while self.failure is None:
            await asyncio.sleep(min(1.0, self._timeout / 4))
            if self._paused() or not runs:
                quiet_from = runtime.monotonic()
            elif runtime.monotonic() - max(runs[0].sent_at, quiet_from, self._heard_at) > self._timeout:
                raise SinkError(f"the broker did not confirm a message within {self._timeout:g} s")

    async def _work_off(self) -> None:
        """Sends refused messages again when they are due, and then those that wait for them."""
        while self.failure is None:
            with contextlib.suppress(TimeoutError):
                async with runtime.timeout_at(self._retries.due):
                    await self._work.wait()
            self._work.clear()
            async with self._turning:
                self._check()
                self._take_refused()
                for entry, indexes in self._retries.release(runtime.monotonic()):
                    await self._send(entry, indexes, again=True)
            self._window.advance()
            self._room.set()

    def _take_refused(self) -> None:
        if self._refused:
            refused, self._refused = self._refused, {}
            self._work.set()
            try:
                self._retries.take(refused, runtime.monotonic())
            except HeadraceError as error:
                self._lost(error)
                raise
