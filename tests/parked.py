"""What tests of parked messages share: batches about rows, a sink that refuses what it is told to, and a parking."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.destination.status import DestinationStatus
from headrace.lease import Guard, Lease
from headrace.model import MessageBatch, Unit
from headrace.parking.parking import OrderedParking
from headrace.ports.finding import Finding
from headrace.ports.parking import ParkingStore
from headrace.ports.sink import MessageRefused, Sink
from headrace.settings.adapters import ParkingSettings


def unit(*keys: str, table: str = "shop.t") -> Unit:
    return Unit((table,), keys)


def batch(*units: Unit, first: int = 1, topic: str = "shop") -> MessageBatch:
    """A message a unit: its id and body are numbers from `first` on."""
    numbers = range(first, first + len(units))
    return MessageBatch(
        topic,
        0,
        [b"body %d" % n for n in numbers],
        [[("headrace-id", b"g#%d" % n), ("headrace-pos", b"%d" % n)] for n in numbers],
        units=list(units),
        commit_time_us=5_000_000,
    )


def new_parking(store: ParkingStore, status: DestinationStatus | None = None, **more: Any) -> OrderedParking:
    made = ParkingSettings.model_validate({"delay": 0.02, "max_delay": 0.05, **more})
    return OrderedParking(made, store, "shop", (status or DestinationStatus("shop")).note_parked)


class RefusingSink(Sink):
    """Confirms what is sent again unless its body is in `refuses`."""

    def __init__(self) -> None:
        super().__init__(Lease())
        self.refuses: set[bytes] = set()
        self.sent: list[bytes | None] = []
        self.error: Exception | None = None
        self.under_way = self.most = 0

    async def start(self) -> None: ...

    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        raise AssertionError("not used here")

    async def resend(self, batch: MessageBatch) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if self.error is not None:
            raise self.error
        if batch.values[0] in self.refuses:
            raise MessageRefused("NO_ROUTE")
        self.sent.append(batch.values[0])

    async def abort(self) -> None: ...

    async def close(self) -> None: ...

    async def check(self) -> list[Finding]:
        return []


async def until(condition: Any, limit: float = 10.0) -> None:
    """Gives the loop turns until it holds."""
    async with asyncio.timeout(limit):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


GUARD = Guard(1, 0)
