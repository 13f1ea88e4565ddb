"""A sink in one file: what a new one needs besides a line of registration."""

from __future__ import annotations

import asyncio
from typing import Literal

from pydantic import Field

from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.ports.finding import Finding
from headrace.ports.sink import Sink, SinkAdapter, SinkUse
from headrace.settings.adapters import SinkCapabilities, SinkSettings

SHELVES: dict[str, list[tuple[str, int, bytes | None]]] = {}
"""By name, what was put on each shelf: topic, partition and value."""


class ToySinkSettings(SinkSettings):
    """[sink] type = "toy": puts messages on a shelf in memory."""

    type: Literal["toy"] = Field(description="The kind of sink.")
    shelf: str = Field(description="The shelf's name.")

    @property
    def capabilities(self) -> SinkCapabilities:
        return SinkCapabilities()


class ToySink(Sink):
    def __init__(self, shelf: str, lease: Lease) -> None:
        super().__init__(lease)
        self._shelf = SHELVES.setdefault(shelf, [])

    async def start(self) -> None:
        pass

    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        self._lease.check()
        self._shelf.extend((batch.topic, batch.partition, value) for value in batch.values)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def abort(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def check(self) -> list[Finding]:
        return []


class ToySinkAdapter(SinkAdapter):
    section = ToySinkSettings

    def sink(self, settings: ToySinkSettings, use: SinkUse) -> Sink:
        return ToySink(settings.shelf, use.lease)
