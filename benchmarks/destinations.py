"""The destinations that are measured, by their jobs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headrace.cli.wiring import ADAPTERS, Wiring
from headrace.destination.destination import Destination
from headrace.destination.operator import Operator
from headrace.destination.status import DestinationStatus
from headrace.lease import Lease
from headrace.ports.sink import Sink
from headrace.settings.daemon import DaemonSettings, StateSettings
from headrace.settings.destination import DestinationSettings, Settings
from headrace.settings.load import Loader

_POLL = 0.002
"""Seconds between two checks of a counter."""


def settings_of(job: dict[str, Any]) -> DestinationSettings:
    """Returns the destination of a job: from the start of its binlog file, unless its source says otherwise."""
    sink: dict[str, Any] = {"type": "null"}
    if job.get("pipe"):
        sink = {"type": "jsonl", "path": job["pipe"]}
    elif job.get("kafka"):
        sink = {"type": "kafka", "bootstrap_servers": job["kafka"], **job.get("kafka_sink", {})}
    source = {"start": f"{job['file']}:4", "tls": "disabled", "server_id": os.getpid() + 1000, **job["source"]}
    return Loader(ADAPTERS, {}).make_destination(
        {
            # A new one for each run: with exactly once, the brokers remember the position of the last one.
            "name": job.get("destination", job.get("topic", "bench")),
            "source": source,
            "message": {"rows_per_message": job.get("rows_per_message", 0), "format": job.get("format", "canal")},
            "route": {"topic": job.get("topic", "bench")},
            "filter": {"include": f"bench\\.{job['table']}", **job.get("filter", {})},
            "sink": sink,
            "heartbeat": {"enabled": job.get("heartbeat", True)},
        }
    )


@dataclass(frozen=True, slots=True)
class Running:
    """A running destination."""

    status: DestinationStatus
    operator: Operator
    task: asyncio.Task[None]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits; raises the error that has ended the destination, if any."""
        while not condition():
            await asyncio.sleep(_POLL)  # a counter has no event
            if self.task.done():
                self.task.result()
                raise AssertionError("nobody has told it to end")


@asynccontextmanager
async def running(job: dict[str, Any], new_sink: Callable[[Lease], Sink] | None = None) -> AsyncIterator[Running]:
    """Yields the destination of a job, in a new process; `new_sink` makes its sink in place of the one that the job
    names."""
    with TemporaryDirectory() as folder:
        settings = settings_of(job)
        state = StateSettings(path=Path(folder) / "state.db")
        wiring = Wiring(Settings(state=state, destinations={settings.name: settings}))
        await wiring.open()
        dependencies = wiring.dependencies(settings)
        if new_sink is not None:
            made = new_sink
            dependencies = replace(dependencies, new_sink=lambda lease, parking: made(lease))
        status, stop = DestinationStatus("bench"), asyncio.Event()
        destination = Destination(settings, DaemonSettings(), dependencies, status)
        task = asyncio.create_task(destination.run(stop))
        try:
            yield Running(status, destination.operator, task)
        finally:
            stop.set()
            await task
            await wiring.close()
