"""What every lock promises (ports.cluster.Lock), tried with each of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.errors import Fenced
from headrace.tasks import cancel


async def nothing_known() -> int:
    return 0


async def test_one_holds_it_and_the_next_has_it_once_it_is_released(make_lock: Any) -> None:
    one, two = await make_lock("one"), await make_lock("two")
    assert await one.try_acquire(nothing_known)
    async with asyncio.timeout(10):
        await one.lease.proved()
    assert not await two.try_acquire(nothing_known)
    waiting = asyncio.create_task(two.acquire(nothing_known))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await one.release()
    async with asyncio.timeout(20):
        await waiting
    assert not await one.try_acquire(nothing_known)


async def test_it_can_be_acquired_again_after_it_was_released(make_lock: Any) -> None:
    lock = await make_lock("one")
    first = None
    for _ in range(3):
        async with asyncio.timeout(20):
            await lock.acquire(nothing_known)
        if lock.shared:
            assert lock.lease is not first, "a lease that can be lost is that of one holding"
        first = lock.lease
        await lock.release()
    await lock.release()


async def test_a_lease_is_good_while_the_lock_is_held_and_a_shared_one_is_lost_with_it(make_lock: Any) -> None:
    lock = await make_lock("one")
    assert await lock.try_acquire(nothing_known)
    lease = lock.lease
    async with asyncio.timeout(10):
        await lease.proved()
    lease.check()
    await lock.release()
    if lock.shared:
        with pytest.raises(Fenced):
            lease.check()


async def test_waiting_that_is_cancelled_leaves_no_lock(make_lock: Any) -> None:
    one, two, three = await make_lock("one"), await make_lock("two"), await make_lock("three")
    assert await one.try_acquire(nothing_known)
    waiting = asyncio.create_task(two.acquire(nothing_known))
    await asyncio.sleep(0.1)
    await cancel(waiting)
    await one.release()
    async with asyncio.timeout(20):
        await three.acquire(nothing_known)


async def test_everybody_sees_who_holds_it(make_lock: Any) -> None:
    one, two = await make_lock("one"), await make_lock("two")
    assert await two.find_holder() == ""
    assert await one.try_acquire(nothing_known)
    assert "one" in await two.find_holder()
    assert not await two.try_acquire(nothing_known)
    assert "one" in two.holder
    await one.release()
    assert await two.find_holder() == ""


async def test_epochs_of_a_shared_lock_grow_and_are_above_what_is_known_elsewhere(make_lock: Any) -> None:
    one, two = await make_lock("one"), await make_lock("two")

    async def known() -> int:
        return 41

    assert await one.try_acquire(nothing_known)
    first = one.term
    await one.release()
    assert await two.try_acquire(known)
    if two.shared:
        assert two.term.epoch >= 42 > first.epoch > 0
        assert two.term.fence != first.fence
    else:
        assert (first.epoch, two.term.epoch) == (0, 0), "the state store counts them"


async def test_release_without_holding_is_harmless(make_lock: Any) -> None:
    one, two = await make_lock("one"), await make_lock("two")
    assert await one.try_acquire(nothing_known)
    await two.release()
    assert not await two.try_acquire(nothing_known)
