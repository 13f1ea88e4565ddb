"""Redelivers parked messages: in order, with increasing waits, until an operator is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace import runtime
from headrace.errors import Fenced, HeadraceError, LeaseLapsed, SinkError
from headrace.lease import Guard
from headrace.model import MessageBatch
from headrace.parking.ordering import Blocks
from headrace.parking.parking import OrderedParking
from headrace.ports.parking import ParkedContent, ParkedEntry, ParkingState
from headrace.ports.sink import MessageRefused, Sink
from headrace.settings.adapters import ParkingSettings
from headrace.tasks import cancel, set_within

_POLL = 1.0
"""Seconds between two checks of what is due, and whether an operator has changed something."""
_GROUP = 50
"""Messages that are sent at the same time; no two of them share a row."""
_BREATH = 500
"""Entries that are processed without a pause for the event loop."""


class _SinkEnded(SinkError):
    """The sink was aborted, for example after a lapse of the lease: another one replaces it, or the run ends."""


class Redelivery:
    """The redelivery of one run. `sink` returns the present sink, which is replaced after a lapse of the lease; None if
    there is none. `guard` is the run's."""

    def __init__(
        self,
        settings: ParkingSettings,
        parking: OrderedParking,
        sink: Callable[[], Sink | None],
        guard: Callable[[], Guard],
        log: Any,
    ) -> None:
        self._settings, self._parking, self._store = settings, parking, parking.store
        self._sink, self._guard, self._log = sink, guard, log
        self._changes = -1
        self._ending = self._delivered = False
        self.idle = True
        """Whether the sink has no unanswered message of ours. False if run() was cancelled in between."""

    def end(self) -> None:
        """Sends no more messages again; run() returns once all that were sent are answered."""
        self._ending = True
        self._parking.changed.set()

    async def run(self) -> None:
        """Runs until end(), or until it is cancelled. Raises Fenced, and what ended the sink: with a quiet source,
        nothing else would notice. Other errors are retried."""
        while True:
            pause = _POLL
            if not self._ending and self._parking.waiting() and self._sink() is not None:
                began, self._delivered = runtime.monotonic(), False
                try:
                    changes = await self._store.changes()
                    if self._changes not in (-1, changes):  # an operator discarded some, or requested to send others
                        await self._parking.reload()
                    self._changes = changes
                    await self._pass()
                except Fenced:
                    raise
                except (LeaseLapsed, _SinkEnded):
                    pass  # nothing may be sent now; the lock is being proved
                except HeadraceError as error:
                    self._log.warning("messages that were parked can't be sent again now", error=error.operator_text())
                failure = sink.failure if (sink := self._sink()) is not None else None
                if failure is not None and not isinstance(failure, LeaseLapsed):  # the publisher handles that
                    raise failure
                if not self._delivered:  # a pass over many messages costs, and brought nothing
                    took = runtime.monotonic() - began
                    pause = max(_POLL, min(4 * took, self._settings.max_delay))
            self._parking.changed.clear()
            if self._ending:
                return
            await set_within(self._parking.changed, pause if self._parking.waiting() else None)

    async def _pass(self) -> None:
        """Sends all that is due and does not wait for an undelivered message. An error at one address delays none of
        the others; the first error is raised at the end."""
        stuck, group, busy = Blocks(), list[ParkedEntry](), Blocks()
        failures: dict[tuple[str, int], HeadraceError] = {}
        longest = int(self._settings.max_delay * 1e6)
        for number, entry in enumerate(self._parking.waiting()):
            if number % _BREATH == 0:
                await asyncio.sleep(0)
            if group and (len(group) >= _GROUP or busy.blocks(entry.scope, entry.unit)):
                await self._send_group(group, stuck, failures)
                group, busy = [], Blocks()
            if self._ending:
                return
            # A time that is further ahead comes from a wrong clock: ours, or that of the daemon that parked it.
            early = 0 < entry.due_us - runtime.now_us() <= longest
            due = entry.state is ParkingState.PENDING and not early
            if not due or (entry.topic, entry.partition) in failures or stuck.blocks(entry.scope, entry.unit):
                stuck.add(entry.scope, entry.unit)
                continue
            group.append(entry)
            busy.add(entry.scope, entry.unit)
        if group:
            await self._send_group(group, stuck, failures)
        for error in failures.values():
            raise error

    async def _send_group(
        self, group: list[ParkedEntry], stuck: Blocks, failures: dict[tuple[str, int], HeadraceError]
    ) -> None:
        contents = await self._store.contents([entry.number for entry in group])
        gone = [entry for entry in group if entry.number not in contents]  # discarded a moment ago
        group = [entry for entry in group if entry.number in contents]
        if (sink := self._sink()) is None:
            raise _SinkEnded("there is no sink now")
        batches = [_batch(entry, contents[entry.number]) for entry in group]
        results = list(zip(group, await self._send(sink, batches), strict=True))
        delivered = [*gone, *(entry for entry, result in results if result is None)]
        refused = [
            self._tried(entry, str(result.args[0])) for entry, result in results if isinstance(result, MessageRefused)
        ]
        await self._note(delivered, refused)
        for entry, result in results:
            if result is not None:
                stuck.add(entry.scope, entry.unit)
                if not isinstance(result, MessageRefused):
                    if not isinstance(result, SinkError) or isinstance(result, _SinkEnded):
                        raise result  # it is not about this message
                    failures.setdefault((entry.topic, entry.partition), result)
        if failures and self._sink() is not sink:
            raise _SinkEnded("the sink was ended")

    async def _send(self, sink: Sink, batches: list[MessageBatch]) -> list[BaseException | None]:
        """Sends all at the same time; returns the result of each."""
        self.idle = False
        sendings = [asyncio.ensure_future(sink.resend(batch)) for batch in batches]
        try:
            await asyncio.wait(sendings) if sendings else None
        finally:
            await cancel(*sendings)
        # A sink that is aborted cancels its confirmations.
        results = [_SinkEnded("the sink was ended") if one.cancelled() else one.exception() for one in sendings]
        self.idle = all(result is None or isinstance(result, MessageRefused) for result in results)
        return results

    async def _note(self, delivered: list[ParkedEntry], refused: list[ParkedEntry]) -> None:
        if delivered:
            await self._store.remove(self._guard(), [entry.number for entry in delivered])
            self._parking.delivered(delivered)
            self._delivered = True
            self._log.info("messages that were parked are delivered", messages=len(delivered))
        if refused:
            await self._store.update(self._guard(), refused)
            self._parking.tried(refused)
            if manual := [entry for entry in refused if entry.state is ParkingState.NEEDS_OPERATOR]:
                one = manual[0]
                self._log.error(
                    "parked messages need an operator",
                    messages=len(manual),
                    id=one.id,
                    topic=one.topic,
                    reason=one.reason,
                )

    def _tried(self, entry: ParkedEntry, reason: str) -> ParkedEntry:
        """Returns the entry after one more refusal."""
        now, attempts = runtime.now_us(), entry.attempts + 1
        # Not from the attempts: some sinks make several before they park a message.
        former = entry.due_us - entry.tried_us if entry.attempts else 0
        manual = attempts >= self._settings.attempts
        return replace(
            entry,
            reason=reason,
            attempts=attempts,
            state=ParkingState.NEEDS_OPERATOR if manual else ParkingState.PENDING,
            tried_us=now,
            due_us=now + self._parking.wait_us(former),
        )


def _batch(entry: ParkedEntry, content: ParkedContent) -> MessageBatch:
    """Returns the message as it was first published."""
    return MessageBatch(
        entry.topic,
        entry.partition,
        [content.body],
        [list(content.headers)],
        size=entry.size,
        keys=[content.key] if content.key is not None else None,
        units=[entry.unit],
        tags=[content.tag] if content.tag else None,
        commit_time_us=content.commit_time_us,
        parked=entry.number,
    )
