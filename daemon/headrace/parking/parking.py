"""The parking of one run: parks messages, knows which wait for them, and stores them before the position."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from headrace import runtime
from headrace.errors import SinkRejected, StateStoreError
from headrace.lease import Guard
from headrace.model import MessageBatch, Unit
from headrace.parking.ordering import Blocks
from headrace.ports.parking import ParkedContent, ParkedEntry, ParkedMessage, ParkingState, ParkingStore
from headrace.ports.sink import Parking
from headrace.settings.adapters import ParkingSettings

log = structlog.get_logger(__name__)

_REPORT_EVERY = 10.0
"""Seconds between two log lines about further messages."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The messages that wait to be sent again."""

    messages: int = 0
    bytes: int = 0
    needs_operator: int = 0
    """Messages that need an operator."""
    oldest_us: int = 0
    """When the oldest was parked, in microseconds since 1970 UTC; 0 if there is none."""


class OrderedParking(Parking):
    """The parking, opened once the run's epoch is known. In memory it keeps each message's entry, not its content.
    `on_change` is called with the waiting messages whenever they change."""

    def __init__(
        self, settings: ParkingSettings, store: ParkingStore, destination: str, on_change: Callable[[Waiting], None]
    ) -> None:
        self._settings, self.store, self._on_change = settings, store, on_change
        self._log = log.bind(destination=destination)
        self._entries: dict[int, ParkedEntry] = {}
        """By number, in the order of parking."""
        self._numbers: dict[tuple[str, str, int], int] = {}
        """By id, topic and partition, which identify a message."""
        self._blocks = Blocks()
        self._pending: list[ParkedMessage] = []
        """Not stored yet."""
        self._storing = asyncio.Lock()
        self._bytes = self._needs_operator = 0
        self._next = 1
        self._reported = 0.0
        self.changed = asyncio.Event()
        """Set when something may have to be sent."""

    async def open(self, guard: Guard) -> None:
        """Takes the store over and reads the waiting messages. Raises StateStoreError or Fenced."""
        await self.store.open()
        await self.store.begin(guard)
        await self.reload()

    async def reload(self) -> None:
        """Reads the store again: somebody else has changed it."""
        async with self._storing:
            # A sink may store these while the others are read, and park more.
            before, first = [one.entry for one in self._pending], self._next
            stored = await self.store.entries()
            entries = [*stored, *before, *(entry for number, entry in self._entries.items() if number >= first)]
            self._entries, self._numbers, self._blocks, self._bytes, self._needs_operator = {}, {}, Blocks(), 0, 0
            for _, entry in sorted({entry.number: entry for entry in entries}.items()):
                self._note(entry)
        self._report_status()

    # -- parking ----------------------------------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        return not self._entries

    def blocked(self, scope: str, unit: Unit) -> bool:
        return bool(self._entries) and self._blocks.blocks(scope, unit)

    def park(self, scope: str, batch: MessageBatch, index: int, reason: str, attempts: int) -> None:
        """Parks a message. If it is already parked, and comes again because the position is before it, it goes to the
        end: messages before it in the binlog may have been parked after it since."""
        headers = batch.headers[index]
        id_ = headers[0][1].decode("utf-8", "replace") if headers else ""
        known, replaces = self._forget((id_, batch.topic, batch.partition))
        body = batch.values[index]
        key = batch.keys[index] if batch.keys is not None else None
        size = len(body or b"") + len(key or b"") + sum(len(name) + len(value) for name, value in headers)
        self._ensure_room(size, reason)
        now = runtime.now_us()
        entry = ParkedEntry(
            number=self._next,
            id=id_,
            scope=scope,
            topic=batch.topic,
            partition=batch.partition,
            unit=batch.units[index] if batch.units is not None else Unit(()),
            reason=reason or "waits for one that was parked",
            attempts=attempts,
            state=ParkingState.PENDING,
            created_us=now,
            tried_us=now if attempts else 0,
            due_us=now + self.wait_us() if attempts else now,
            size=size,
        )
        if known is not None and known.attempts > attempts:
            entry = replace(
                known, number=entry.number, unit=entry.unit, scope=scope, size=size
            )  # its history, with its present content
        tag = batch.tags[index] if batch.tags is not None else ""
        content = ParkedContent(body, key, tuple(headers), tag, batch.commit_time_us)
        self._pending.append(ParkedMessage(entry, content, replaces))
        self._note(entry)
        self._report(entry)

    def wait_us(self, former_us: int = 0) -> int:
        """Returns the microseconds to wait before a message is sent again; `former_us`: the wait before this one, 0 for
        the first."""
        settings = self._settings
        wait: float = former_us * settings.delay_factor if former_us else settings.delay * 1e6
        return int(min(settings.max_delay * 1e6, wait))

    def _ensure_room(self, size: int, reason: str) -> None:
        settings, count = self._settings, len(self._entries)
        if count < settings.max_messages and self._bytes + size <= settings.max_bytes:
            return
        raise SinkRejected(
            f"{count:,} messages with {self._bytes:,} bytes are parked, and no more may be"
            + (f" (the next is refused: {reason})" if reason else ""),
            remedy="correct what the sink refuses (`headrace parked list DESTINATION`), or raise [parking] "
            "max_messages or max_bytes",
        )

    def _forget(self, name: tuple[str, str, int]) -> tuple[ParkedEntry | None, int]:
        """Removes a message, stored or not; returns its entry, and the number that it is stored under, or 0."""
        entry = self._entries.get(self._numbers.get(name, 0))
        if entry is None:
            return None, 0
        stored = next((one.replaces for one in self._pending if one.entry.number == entry.number), entry.number)
        self._pending = [one for one in self._pending if one.entry.number != entry.number]
        self._drop(entry.number)
        return entry, stored

    def _drop(self, number: int) -> None:
        if (entry := self._entries.pop(number, None)) is not None:
            self._needs_operator -= entry.state is ParkingState.NEEDS_OPERATOR
            self._numbers.pop((entry.id, entry.topic, entry.partition), None)
            self._blocks.remove(entry.scope, entry.unit)
            self._bytes -= entry.size

    def _note(self, entry: ParkedEntry) -> None:
        self._entries[entry.number] = entry
        self._numbers[entry.id, entry.topic, entry.partition] = entry.number
        self._blocks.add(entry.scope, entry.unit)
        self._bytes += entry.size
        self._needs_operator += entry.state is ParkingState.NEEDS_OPERATOR
        self._next = max(self._next, entry.number + 1)

    def _report(self, entry: ParkedEntry) -> None:
        now = runtime.monotonic()
        if now - self._reported > _REPORT_EVERY:
            self._reported = now
            self._log.error(
                "a message was parked; later messages of its rows wait for it",
                id=entry.id,
                topic=entry.topic,
                reason=entry.reason,
                waiting=len(self._entries),
            )
        self._report_status()

    # -- storing ----------------------------------------------------------------------------------------------------

    def unstored(self) -> list[ParkedMessage]:
        return list(self._pending)

    def stored(self, messages: Sequence[ParkedMessage]) -> None:
        done = {one.entry.number for one in messages}
        self._pending = [one for one in self._pending if one.entry.number not in done]
        self.changed.set()

    async def flush(self, guard: Guard) -> None:
        """Stores what was parked by now: must be awaited before a position after it. Raises StateStoreError or
        Fenced."""
        if not self._pending:
            return
        async with self._storing:
            messages = self.unstored()
            await self.store.add(guard, messages)
            self.stored(messages)

    # -- for the redelivery loop ------------------------------------------------------------------------------------

    def waiting(self) -> list[ParkedEntry]:
        """Returns the stored messages, in the order of parking."""
        pending = {message.entry.number for message in self._pending}
        return [entry for entry in self._entries.values() if entry.number not in pending]

    def delivered(self, entries: Sequence[ParkedEntry]) -> None:
        """Records that those were removed from the store: messages that waited for them may be sent."""
        for entry in entries:
            self._drop(entry.number)
        self._report_status()

    def tried(self, entries: Sequence[ParkedEntry]) -> None:
        """Records that those were refused once more; each is as the store has it now."""
        for entry in entries:
            if (known := self._entries.get(entry.number)) is not None:
                self._needs_operator += (entry.state is ParkingState.NEEDS_OPERATOR) - (
                    known.state is ParkingState.NEEDS_OPERATOR
                )
                self._entries[entry.number] = entry
        self._report_status()

    def _report_status(self) -> None:
        oldest = next(iter(self._entries.values())).created_us if self._entries else 0
        self._on_change(Waiting(len(self._entries), self._bytes, self._needs_operator, oldest))


async def ensure_delivered(destination: str, stores: Sequence[ParkingStore]) -> None:
    """Raises StateStoreError if messages wait in stores that are no longer used: changes of the same rows would be
    published before them, and nobody would ever send them."""
    for store in stores:
        try:
            waiting = await store.entries()
        finally:
            await store.close()
        if waiting:
            raise StateStoreError(
                f"{len(waiting):,} parked messages of {destination} wait to be sent again, in a store that [parking] "
                "and [sink] do not ask for any more",
                remedy='let [parking] name it again, and [sink] say "park", until they are delivered or given up: '
                "headrace parked list DESTINATION",
                retriable=False,
            )
