"""A daemon that waits for a lock: what it tells, and what does not end the wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.cli.wiring import ADAPTERS
from headrace.destination.dependencies import Context
from headrace.destination.standby import Standby
from headrace.destination.status import DestinationStatus
from headrace.errors import LockServiceError, SourceUnreachable, StateStoreError
from headrace.lease import Lease
from headrace.model import State
from headrace.ports.sink import SinkUse
from tests.configured import parts_of
from tests.streams import daemon_settings, settings, until


class TakenLock:
    """A lock that is free once `free` is set."""

    holder, declined = "one (one:9180)", ""

    def __init__(self) -> None:
        self.free, self.reported = asyncio.Event(), list[bool]()

    async def acquire(self, known_epoch: Any) -> None:
        await self.free.wait()

    async def set_ready(self, ready: bool) -> None:
        self.reported.append(ready)


class Wait:
    """One wait for it; `problems` is what a check finds, or raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, problems: list[str] | Exception) -> None:
        async def found(_: Any) -> list[str]:
            if isinstance(problems, Exception):
                raise problems
            return problems

        monkeypatch.setattr(Standby, "_problems", found)
        self.lock, self.status, self.stop = TakenLock(), DestinationStatus("shop"), asyncio.Event()
        parts = parts_of(settings(), store=object(), lock=self.lock)
        made: Any = Standby(Context(settings(), daemon_settings(), self.status), parts, parts.new_source())
        self.task = asyncio.create_task(made.wait(None, self.stop))


async def test_a_check_that_fails_unexpectedly_is_reported_and_the_wait_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait = Wait(monkeypatch, ValueError("odd"))
    await until(lambda: wait.lock.reported == [False])
    assert wait.status.holding.problems == ["an unexpected error, ValueError: odd"]
    assert not wait.task.done()
    wait.lock.free.set()
    assert await asyncio.wait_for(wait.task, 2)


async def test_a_standby_reports_who_runs_the_destination_and_why_it_could_not_take_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait = Wait(monkeypatch, ["the sink is away"])
    await until(lambda: wait.lock.reported == [False])
    await until(lambda: "the sink is away" in wait.status.message)
    assert wait.status.state is State.STANDBY
    assert wait.status.message == "run by one (one:9180); we could not take over: the sink is away"
    wait.lock.holder, wait.lock.declined = "", "this daemon is drained"
    await until(lambda: wait.status.holding.holder == "")
    assert wait.status.message.startswith("run by nobody; this daemon is drained")
    wait.stop.set()
    assert not await asyncio.wait_for(wait.task, 2)


async def test_a_lock_that_can_not_be_waited_for_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = Wait(monkeypatch, [])

    async def fail(self: Any, known_epoch: Any) -> None:
        raise LockServiceError("away")

    monkeypatch.setattr(TakenLock, "acquire", fail)
    with pytest.raises(LockServiceError):
        await asyncio.wait_for(wait.task, 2)


async def test_a_standby_checks_source_sink_and_store(monkeypatch: pytest.MonkeyPatch) -> None:
    class Away:
        async def load(self, name: str) -> Any:
            raise StateStoreError("the store is away")

    async def nowhere(address: Any) -> Any:
        raise SourceUnreachable("the source is away", remedy="headrace position show DESTINATION")

    monkeypatch.setattr("headrace.mysql.source.SourceConnection.open", nowhere)
    monkeypatch.setattr("headrace.adapters.jsonl.sink.JsonlSink._check", lambda self: ["the sink is away"])
    config = settings(sink={"type": "jsonl", "path": "out"})
    sink = ADAPTERS.sink_adapter("jsonl").probe(config.sink, SinkUse("shop", Lease()))
    parts = parts_of(config, store=Away(), lock=TakenLock(), sink=sink)
    made = Standby(Context(config, daemon_settings(), DestinationStatus("shop")), parts, parts.new_source())
    see = "see docs/troubleshooting.md#"
    assert await made._problems() == [
        f"the source is away -> headrace position show shop -> {see}source",
        f"the sink is away -> {see}sink",
        f"the store is away -> {see}state",
    ]
