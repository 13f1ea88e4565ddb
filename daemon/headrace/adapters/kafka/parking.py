"""Parked messages of an exactly-once destination: written in the same Kafka transactions as everything else of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from headrace.adapters.kafka.parking_topic import ParkingLog, ParkingTopic, Record
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.lease import Guard
from headrace.ports.parking import ParkedContent, ParkedEntry, ParkedMessage, ParkingStore

Writer = Callable[[Sequence[Record]], Awaitable[None]]


class KafkaParkingStore(ParkingStore):
    """`topic` makes the records. New messages are written by the sink, together with the position behind them; what the
    compensation loop changes goes through `writer`, which is the run's sink too. An operator's changes are written by a
    producer of their own, outside of transactions: the daemon's would be fenced."""

    def __init__(self, settings: KafkaSinkSettings, destination: str, name: str) -> None:
        self.topic = ParkingTopic(settings, destination, name)
        self.writer: Writer | None = None

    async def open(self) -> None:
        await self.topic.topic.ensure()

    async def begin(self, guard: Guard) -> None:
        """Whoever was before us is fenced by the brokers; what it took away we have to see."""
        self.topic.log = ParkingLog(self.topic.log.destination)

    async def entries(self) -> list[ParkedEntry]:
        log = await self.topic.refresh(settled=True)
        return [stored.entry for _, stored in sorted(log.entries.items())]

    async def contents(self, numbers: Sequence[int]) -> dict[int, ParkedContent]:
        return await self.topic.contents(numbers)

    async def add(self, guard: Guard, messages: Sequence[ParkedMessage]) -> None:
        """The sink writes them, so there is nothing left to do."""

    async def remove(self, guard: Guard | None, numbers: Sequence[int]) -> int:
        """What the sink has sent again it has removed in the same transaction; an entry may be there
        again all the same, when an operator changed it at that moment."""
        log = await self.topic.refresh()
        known = [number for number in numbers if number in log.entries]
        if guard is None:
            await self.topic.write_apart([*self.topic.removed(known), self.topic.told()])
            return len(known)
        if known and self.writer is not None:
            await self.writer(self.topic.removed(known))
        return len(numbers)

    async def update(self, guard: Guard | None, entries: Sequence[ParkedEntry]) -> int:
        await self.topic.refresh()
        records = self.topic.updated(entries)
        if guard is None:
            await self.topic.write_apart([*records, self.topic.told()])
        elif self.writer is not None:
            await self.writer(records)
        return len(records)

    async def changes(self) -> int:
        return (await self.topic.refresh()).changes

    async def problems(self) -> list[str]:
        return await self.topic.topic.problems()
