"""One session with the broker: writes messages in batches to Elasticsearch, and acknowledges them when that has
confirmed them.

A message is in one of four states: in the inbox, in the batch that is being written, held for a retry, or on its way to
the dead letters. In all of them it is unacknowledged and counts for the prefetch, which limits what is in memory."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog

from headrace_consume.applying import Applier, Outcome
from headrace_consume.broker import Broker, BrokerError
from headrace_consume.dead_letter_queues import DeadLetterQueues
from headrace_consume.duplicates import Duplicates
from headrace_consume.message import Message
from headrace_consume.settings import Settings
from headrace_consume.status import State, Status
from headrace_consume.threads import in_thread
from headrace_documents.dead_letters import MAX_REASON
from headrace_documents.errors import BulkError

FIRST = 0.25


class Backoff:
    """The waits: a quarter of a second, then twice as long each time up to a limit, randomly a little shorter, so that
    many consumers do not return at the same moment."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._wait = FIRST

    def next(self) -> float:
        """Returns the next wait in seconds."""
        wait = min(self._wait, self._longest)
        self._wait = min(self._wait * 2, self._longest)
        return wait * random.uniform(0.75, 1.0)

    def reset(self) -> None:
        """Starts again with the first wait: something has worked."""
        self._wait = FIRST


class AckWindow:
    """The unacknowledged delivery tags of one channel. Tags grow from 1 in the order of delivery."""

    def __init__(self) -> None:
        # A dict keeps the order of delivery, and a tag is removed from its middle at no cost.
        self._open: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, tag: int) -> None:
        """Records a delivered message."""
        self._open[tag] = None

    def settle(self, tags: Iterable[int]) -> tuple[int, list[int]]:
        """Removes what is done; returns the tag up to which all may be acknowledged at once (0: none), and those that
        need a separate acknowledgement, because an older message is still open (it waits for a retry)."""
        settled = sorted(tag for tag in set(tags) if tag in self._open)
        for tag in settled:
            del self._open[tag]
        oldest = next(iter(self._open), None)
        if oldest is None:
            return (settled[-1] if settled else 0), []
        before = [tag for tag in settled if tag < oldest]
        return (before[-1] if before else 0), settled[len(before) :]


log = structlog.get_logger(__name__)


class Session:
    """Works until the connection ends or `stop` is set; then everything unacknowledged comes again."""

    def __init__(
        self,
        settings: Settings,
        broker: Broker,
        dead_letters: DeadLetterQueues,
        applier: Applier,
        duplicates: Duplicates,
        status: Status,
        stop: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._broker = broker
        self._dead_letters = dead_letters
        self._applier = applier
        self._duplicates = duplicates
        self._status = status
        self._stop = stop
        self._acks = AckWindow()
        self._inbox: list[Message] = []
        self._arrived = asyncio.Event()
        self._full = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._delays = settings.retry.delays()
        self._held: dict[int, asyncio.TimerHandle] = {}
        self._dying: deque[Message] = deque()
        self._some_dying = asyncio.Event()
        self._none_dying = asyncio.Event()
        self._none_dying.set()
        # Many messages that can't be applied must not block those that can.
        self._most_held = max(1, settings.rabbitmq.prefetch // 2)
        self.worked = False
        """Whether anything was acknowledged."""

    async def run(self) -> str:
        """Runs the session; returns why it has ended, "" if it was stopped in order."""
        tasks: list[asyncio.Task[str]] = []
        try:
            await self._broker.consume(self._settings.rabbitmq.queue, self._settings.rabbitmq.prefetch, self._take)
            self._status.enter(State.RUNNING)
            works: list[Callable[[], Awaitable[str]]]
            works = [self._broker.closed, self._pump, self._publish_dead_letters, self._drain]
            tasks = [asyncio.ensure_future(_as_coroutine(work)) for work in works]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            reason = ""
            for task in done:
                error = task.exception()
                if error is not None and not isinstance(error, BrokerError):
                    raise error
                reason = str(error) if error is not None else task.result()
            return reason
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for timer in self._held.values():
                timer.cancel()
            self._gauge()

    def _take(self, message: Message) -> None:
        """Takes a message."""
        self._acks.open(message.tag)
        self._status.counts["received"] += 1
        self._status.counts["redelivered"] += message.redelivered
        self._put([message])

    def _put(self, messages: Sequence[Message]) -> None:
        self._inbox += messages
        self._idle.clear()
        self._arrived.set()
        # Held messages count for the prefetch: without them in the sum a batch would wait for messages that can't come.
        if len(self._inbox) + len(self._held) + len(self._dying) >= self._settings.rabbitmq.prefetch:
            self._full.set()

    async def _pump(self) -> str:
        """Takes what is in the inbox, and applies it, until the session ends."""
        while True:
            await self._arrived.wait()
            if not self._full.is_set() and not self._stop.is_set():
                await _until(self._full, self._settings.rabbitmq.linger)
            batch, self._inbox = self._inbox, []
            self._arrived.clear()
            self._full.clear()
            await self._work(batch)
            if not self._inbox:
                self._idle.set()
            self._gauge()

    async def _work(self, batch: list[Message]) -> None:
        counts, tally = self._status.counts, self._applier.writer.tally
        known = await self._duplicates.seen([message.identity for message in batch])
        self._status.troubles["duplicates"] = self._duplicates.trouble
        fresh = [message for message in batch if message.identity not in known]
        repeated = [message for message in batch if message.identity in known]
        outcome = await self._apply(fresh) if fresh else Outcome()
        await self._duplicates.note([message.identity for message in outcome.done])
        await self._settle(outcome.done + repeated)
        counts["duplicates"] += len(repeated)
        counts["applied"] += len(outcome.done)
        counts["rows"], counts["ddl_ignored"] = self._applier.rows, self._applier.ignored
        counts["indexed"], counts["deleted"], counts["stale"] = tally.indexed, tally.deleted, tally.stale
        for message in outcome.failed:
            self._failed(message)

    async def _apply(self, batch: list[Message]) -> Outcome:
        """Writes, and waits while Elasticsearch accepts nothing: no message is the cause."""
        backoff = Backoff(self._settings.run.reconnect_max)
        while True:
            try:
                outcome = await in_thread(self._applier.apply, batch)
            except BulkError as error:
                if self._stop.is_set():
                    raise BrokerError("stopped while Elasticsearch takes nothing") from None
                wait = backoff.next()
                self._status.enter(State.WAITING, "elasticsearch", str(error))
                log.warning(
                    "Elasticsearch takes nothing; the messages wait",
                    messages=len(batch),
                    seconds=round(wait, 2),
                    reason=str(error),
                )
                await _until(self._stop, wait)
            else:
                if self._status.state is State.WAITING:
                    self._status.enter(State.RUNNING)
                return outcome

    async def _settle(self, messages: Sequence[Message]) -> None:
        """Acknowledges messages."""
        up_to, single = self._acks.settle(message.tag for message in messages)
        await self._broker.acknowledge(up_to, single)
        self.worked = self.worked or bool(messages)

    def _failed(self, message: Message) -> None:
        """Handles a message that could not be applied: it waits for its next attempt, or becomes a dead letter."""
        tried = message.attempts
        message.attempts += 1
        if tried >= len(self._delays) or len(self._held) + len(self._dying) >= self._most_held:
            self._dying.append(message)
            self._some_dying.set()
            self._none_dying.clear()
            return
        delay = self._delays[tried]
        self._status.counts["retried"] += 1
        log.warning(
            "a message can't be applied; it is tried again",
            id=message.id,
            attempt=message.attempts,
            seconds=delay,
            reason=message.reason[:MAX_REASON],
        )
        self._held[message.tag] = asyncio.get_running_loop().call_later(delay, self._retry, message)

    def _retry(self, message: Message) -> None:
        del self._held[message.tag]
        self._put([message])

    async def _publish_dead_letters(self) -> str:
        """Publishes dead letters, one at a time. Each stays unacknowledged until the broker has confirmed it."""
        backoff = Backoff(self._settings.run.reconnect_max)
        while True:
            await self._some_dying.wait()
            while self._dying:
                message = self._dying[0]
                try:
                    needs_operator = await self._dead_letters.publish(message)
                except BrokerError as error:
                    wait = backoff.next()
                    self._status.troubles["dead letters"] = str(error)
                    log.error(
                        "a dead letter can't be published; its message stays in the queue",
                        id=message.id,
                        seconds=round(wait, 2),
                        reason=str(error),
                    )
                    # The broker may refuse only this one: the others come first the next time.
                    self._dying.rotate(-1)
                    await asyncio.sleep(wait)
                    continue
                backoff.reset()
                self._status.troubles["dead letters"] = ""
                self._dying.popleft()
                self._status.counts["dead_letters"] += 1
                log.error(
                    "dead letter",
                    id=message.id,
                    waits_for="an operator" if needs_operator else "the scan",
                    attempts=message.attempts,
                    resends=message.resends,
                    reason=message.reason[:MAX_REASON],
                )
                await self._settle([message])
                self._gauge()
            self._some_dying.clear()
            self._none_dying.set()

    async def _drain(self) -> str:
        """Stops after the request: takes no more, and finishes what it has, within the limit. Messages that are held
        for a retry go back to the queue."""
        await self._stop.wait()
        await self._broker.stop_consuming()
        try:
            async with asyncio.timeout(self._settings.run.drain_timeout):
                while not (self._idle.is_set() and self._none_dying.is_set()):
                    await self._idle.wait()
                    await self._none_dying.wait()
        except TimeoutError:
            log.warning(
                "not all that was in hand could be finished; it goes back to the queue",
                messages=len(self._acks),
                seconds=self._settings.run.drain_timeout,
            )
        return ""

    def _gauge(self) -> None:
        self._status.gauges["in_hand"] = len(self._acks)
        self._status.gauges["held"] = len(self._held) + len(self._dying)


async def _as_coroutine(work: Callable[[], Awaitable[str]]) -> str:
    return await work()


async def _until(event: asyncio.Event, seconds: float) -> None:
    """Waits for the event, at most this many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
