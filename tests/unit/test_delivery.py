"""The sink of a run: started under a proved lock only, cut when that fails, made anew after a lapse."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from headrace.destination import delivery as module
from headrace.destination.delivery import Delivery
from headrace.errors import Fenced, LeaseLapsed, SinkError
from headrace.lease import Lease
from tests.configured import parts_of
from tests.streams import HeldSink, settings


class Sink(HeldSink):
    """Notes its start."""

    fails, made = False, list[Any]()

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)
        self.store: Any = f"store {len(self.made)}"
        self.started = self.closed = False

    async def start(self) -> None:
        self.started = True
        if self.fails:
            raise SinkError("away")

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def sinks(monkeypatch: pytest.MonkeyPatch) -> list[Sink]:
    """Those that the deliveries below have made."""
    made = list[Sink]()
    monkeypatch.setattr(module, "_PROOF_LIMIT", 0.2)
    monkeypatch.setattr(Sink, "made", made)
    return made


def delivery(lease: Lease) -> Delivery:
    return Delivery(replace(parts_of(settings()), new_sink=lambda *_: Sink()), lease)


async def test_a_sink_is_started_once_the_lock_is_proved(sinks: list[Sink]) -> None:
    lease = Lease(5.0)
    starting = asyncio.create_task(delivery(lease).start())
    await asyncio.sleep(0.02)
    assert not sinks[0].started
    lease.prove(time.monotonic())
    await asyncio.wait_for(starting, 1)
    assert sinks[0].started


async def test_without_a_proof_no_sink_is_started(sinks: list[Sink]) -> None:
    with pytest.raises(LeaseLapsed):
        await delivery(Lease(5.0)).start()
    lost = Lease(5.0)
    lost.lose("gone")
    with pytest.raises(Fenced):
        await delivery(lost).start()
    assert [sink.started for sink in sinks] == [False, False]


async def test_a_sink_whose_start_fails_is_cut(sinks: list[Sink], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sink, "fails", True)
    with pytest.raises(SinkError):
        await delivery(Lease()).start()
    assert sinks[0].aborted


async def test_after_a_lapse_another_sink_takes_the_place_and_is_watched_until_it_is_closed(
    sinks: list[Sink], monkeypatch: pytest.MonkeyPatch
) -> None:
    covers = set[Any]()

    class Dog:
        def cover(self, lease: Lease) -> object:
            covers.add(cover := object())
            return cover

        def uncover(self, cover: object) -> None:
            covers.remove(cover)

    monkeypatch.setattr(module, "WATCHDOG", Dog())
    made = delivery(Lease())
    await made.start()
    made.hand_over()
    made.hand_over()
    assert len(covers) == 1
    await made.abort()
    assert covers == set()
    await made.renew()
    made.hand_over()
    assert (made.sink, made.store, sinks[1].started) == (sinks[1], "store 2", True)
    await made.close()
    assert (covers, sinks[1].closed, sinks[1].aborted) == (set(), True, False)


async def test_messages_are_sent_again_only_through_a_sink_that_has_started_and_is_not_ended(
    sinks: list[Sink], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, starting, go = delivery(Lease()), asyncio.Event(), asyncio.Event()
    assert made.resending is None
    await made.start()
    assert made.resending is sinks[0]
    await made.abort()
    assert made.resending is None

    async def slow(self: Sink) -> None:
        starting.set()
        await go.wait()

    monkeypatch.setattr(Sink, "start", slow)
    renewing = asyncio.create_task(made.renew())
    await starting.wait()
    assert (made.sink, made.resending) == (sinks[1], None)
    go.set()
    await renewing
    assert made.resending is sinks[1]
    await made.rest(idle=True)
    assert made.resending is None
    await made.close()
