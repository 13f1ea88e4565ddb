"""A sink that confirms at once and publishes nowhere: for measuring what comes before a sink."""

from __future__ import annotations

import asyncio
from typing import Literal

from pydantic import Field

from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.ports.finding import Finding
from headrace.ports.sink import Sink, SinkAdapter, SinkUse
from headrace.rules.topics import KAFKA
from headrace.settings.adapters import SinkCapabilities, SinkSettings


class NullSinkSettings(SinkSettings):
    """[sink] type = "null": publishes nowhere and confirms at once; for measuring."""

    type: Literal["null"] = Field(description="The kind of sink.")

    @property
    def capabilities(self) -> SinkCapabilities:
        return SinkCapabilities(topic_names=KAFKA)


class NullSink(Sink):
    """Counts and drops messages."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(lease)
        self.messages = self.rows = self.bytes = 0

    async def start(self) -> None:
        """Does nothing."""

    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        self._lease.check()
        self.messages += len(batch.values)
        self.rows += batch.rows
        self.bytes += batch.size
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def abort(self) -> None:
        """Does nothing."""

    async def close(self) -> None:
        """Does nothing."""

    async def check(self) -> list[Finding]:
        return []


class NullAdapter(SinkAdapter):
    section = NullSinkSettings

    def sink(self, settings: NullSinkSettings, use: SinkUse) -> Sink:
        return NullSink(use.lease)
