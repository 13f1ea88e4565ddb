"""The lease: it runs from when a proof was asked for, a jump of the clocks voids it, and what is lost stays lost."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from headrace.errors import Fenced, LeaseLapsed
from headrace.lease import Lease


class Clocks:
    def __init__(self) -> None:
        self.mono, self.wall_clock = 1000.0, 1_700_000_000.0

    def monotonic(self) -> float:
        return self.mono

    def wall(self) -> float:
        return self.wall_clock

    def pass_(self, seconds: float) -> None:
        self.mono += seconds
        self.wall_clock += seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def lease(clocks: Clocks) -> Lease:
    return Lease(6.0, margin=3.0, monotonic=clocks.monotonic, wall=clocks.wall)


def test_a_lease_that_was_never_proved_is_not_good(lease: Lease) -> None:
    assert lease.remaining == 0
    with pytest.raises(LeaseLapsed):
        lease.check()


def test_it_runs_from_when_the_proof_was_asked_for(lease: Lease, clocks: Clocks) -> None:
    asked_at = clocks.mono
    clocks.pass_(4)  # the answer took its time
    lease.prove(asked_at)
    assert lease.remaining == pytest.approx(2)
    assert lease.deadline == pytest.approx(asked_at + 6)
    lease.check()
    clocks.pass_(1.9)
    lease.check()
    clocks.pass_(0.2)
    with pytest.raises(LeaseLapsed):
        lease.check()
    lease.prove(clocks.mono)
    lease.check()


def test_an_older_proof_that_comes_late_changes_nothing(lease: Lease, clocks: Clocks) -> None:
    first = clocks.mono
    clocks.pass_(2)
    lease.prove(clocks.mono)
    lease.prove(first)
    assert lease.remaining == pytest.approx(6)


def test_what_is_lost_stays_lost(lease: Lease, clocks: Clocks) -> None:
    lease.prove(clocks.mono)
    lease.lose("the session is over")
    lease.lose("for another reason")
    clocks.pass_(1)
    lease.prove(clocks.mono)
    assert lease.lost == "the session is over"
    assert lease.remaining == 0
    assert lease.deadline == -math.inf
    with pytest.raises(Fenced, match="the session is over"):
        lease.check()


@pytest.mark.parametrize("jump", [-30.0, -0.6, 0.6, 30.0])
def test_after_a_jump_of_the_wall_clock_a_new_proof_is_needed(lease: Lease, clocks: Clocks, jump: float) -> None:
    """A machine that was paused: its monotonic clock stood still, and the wall clock was set anew."""
    lease.prove(clocks.mono)
    under_way = clocks.mono + 0.1
    clocks.pass_(0.2)
    lease.check()
    clocks.wall_clock += jump
    with pytest.raises(LeaseLapsed):
        lease.check()
    lease.prove(under_way)  # asked for before the jump
    with pytest.raises(LeaseLapsed):
        lease.check()
    clocks.pass_(0.1)
    lease.prove(clocks.mono)
    lease.check()


def test_an_answer_that_brings_the_jump_to_notice_does_not_count(lease: Lease, clocks: Clocks) -> None:
    lease.prove(clocks.mono)
    clocks.pass_(0.1)
    asked_at = clocks.mono
    clocks.pass_(0.1)
    clocks.wall_clock += 20
    lease.prove(asked_at)
    assert lease.remaining == 0


def test_slewing_is_no_jump(lease: Lease, clocks: Clocks) -> None:
    for _ in range(100):
        lease.prove(clocks.mono)
        clocks.pass_(1)
        clocks.wall_clock += 0.01
        lease.check()


def test_a_process_that_was_stopped_has_no_lease_when_it_goes_on(lease: Lease, clocks: Clocks) -> None:
    lease.prove(clocks.mono)
    clocks.pass_(40)
    with pytest.raises(LeaseLapsed):
        lease.check()


def test_a_lock_that_cannot_be_lost_needs_no_proof(clocks: Clocks) -> None:
    lease = Lease(monotonic=clocks.monotonic, wall=clocks.wall)
    clocks.pass_(1e6)
    clocks.wall_clock -= 1e5
    lease.check()
    assert lease.remaining == math.inf
    assert not lease.limited


async def test_lapsed_wakes_at_the_deadline_and_not_before() -> None:
    lease = Lease(0.3)
    asked_at = time.monotonic()
    lease.prove(asked_at)
    waiting = asyncio.create_task(lease.lapsed())
    await asyncio.sleep(0.15)
    proved_at = time.monotonic()
    lease.prove(proved_at)
    async with asyncio.timeout(5):
        await waiting
    assert time.monotonic() >= proved_at + 0.3
    with pytest.raises(LeaseLapsed):
        lease.check()


async def test_lapsed_wakes_at_once_when_the_lock_is_lost() -> None:
    for lease in (Lease(), Lease(3600.0)):
        lease.prove(time.monotonic())
        waiting = asyncio.create_task(lease.lapsed())
        await asyncio.sleep(0)
        assert not waiting.done()
        lease.lose("gone")
        async with asyncio.timeout(5):
            await waiting


async def test_lapsed_notices_a_jump(clocks: Clocks) -> None:
    lease = Lease(3600.0, monotonic=clocks.monotonic, wall=clocks.wall)
    lease.prove(clocks.mono)
    waiting = asyncio.create_task(lease.lapsed())
    await asyncio.sleep(0)
    clocks.wall_clock += 60
    async with asyncio.timeout(5):
        await waiting


async def test_proved_wakes_all_who_wait_and_informs_those_whose_lock_is_lost(lease: Lease, clocks: Clocks) -> None:
    waiting = [asyncio.create_task(lease.proved()) for _ in range(3)]
    await asyncio.sleep(0)
    lease.prove(clocks.mono - 60)  # too old to be of use
    await asyncio.sleep(0.01)
    assert not any(task.done() for task in waiting)
    lease.prove(clocks.mono)
    async with asyncio.timeout(5):
        await asyncio.gather(*waiting)
        await lease.proved()
    clocks.pass_(10)
    late = asyncio.create_task(lease.proved())
    await asyncio.sleep(0)
    lease.lose("gone")
    with pytest.raises(Fenced, match="gone"):
        async with asyncio.timeout(5):
            await late
