"""A sink in one file: what a new one needs besides a line of registration."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

from pydantic import Field

from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.ports.finding import Finding
from headrace.ports.sink import Sink, SinkAdapter, SinkUse
from headrace.settings.adapters import SinkCapabilities, SinkSettings
from headrace.tasks import confirmation, settle


class ToySinkSettings(SinkSettings):
    """[sink] type = "toy": appends messages to a file, a line each: topic, partition and value."""

    type: Literal["toy"] = Field(description="The kind of sink.")
    shelf: Path = Field(description="The file.")

    @property
    def capabilities(self) -> SinkCapabilities:
        return SinkCapabilities()


class ToySink(Sink):
    def __init__(self, shelf: Path, lease: Lease) -> None:
        super().__init__(lease)
        self._shelf = shelf

    async def start(self) -> None:
        pass

    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        self._lease.check()
        with self._shelf.open("ab") as file:
            file.writelines(b"%s %d %s\n" % (batch.topic.encode(), batch.partition, one or b"") for one in batch.values)
        done = confirmation()
        settle(done)
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
