"""What operators ask that is done between two runs."""

from __future__ import annotations

import asyncio

import pytest

from headrace.destination.requests import RequestRefused, Requests


async def seven() -> int:
    return 7


async def test_what_is_asked_is_done_in_order_and_answered() -> None:
    requests, done = Requests(), list[int]()

    async def one(number: int) -> int:
        done.append(number)
        return number

    asked = [asyncio.create_task(requests.ask(lambda n=n: one(n), limit=5)) for n in range(3)]  # type: ignore[misc]
    async with asyncio.timeout(1):
        await requests.some()
    await requests.do_all(asyncio.Event())
    assert await asyncio.gather(*asked) == done == [0, 1, 2]


async def test_an_error_is_that_of_the_request_alone() -> None:
    requests = Requests()

    async def fails() -> None:
        raise OSError("no")

    bad = asyncio.create_task(requests.ask(fails, limit=5))
    good = asyncio.create_task(requests.ask(seven, limit=5))
    await asyncio.sleep(0)
    await requests.do_all(asyncio.Event())
    with pytest.raises(OSError, match="no"):
        await bad
    assert await good == 7


async def test_what_can_not_begin_in_time_is_given_up_and_not_done_later() -> None:
    requests, done = Requests(), list[int]()

    async def late() -> None:
        done.append(1)

    with pytest.raises(RequestRefused, match=r"could not begin within 0\.01 s"):
        await requests.ask(late, limit=0.01)
    await requests.do_all(asyncio.Event())
    assert done == []


async def test_what_has_begun_and_takes_long_says_so() -> None:
    requests, go = Requests(), asyncio.Event()
    asked = asyncio.create_task(requests.ask(go.wait, limit=0.05))
    await asyncio.sleep(0)
    doing = asyncio.create_task(requests.do_all(asyncio.Event()))
    with pytest.raises(RequestRefused, match="has begun and has not ended"):
        await asked
    go.set()
    await doing


async def test_a_standby_refuses_what_waits() -> None:
    requests = Requests()
    asked = asyncio.create_task(requests.ask(seven, limit=5))
    await asyncio.sleep(0)
    requests.refuse("shop is run by relay-2: ask that one")
    with pytest.raises(RequestRefused, match="run by relay-2"):
        await asked


async def test_a_destination_that_is_stopped_refuses_what_it_was_doing() -> None:
    requests = Requests()
    asked = asyncio.create_task(requests.ask(asyncio.Event().wait, limit=5))
    await asyncio.sleep(0)
    doing = asyncio.create_task(requests.do_all(asyncio.Event()))
    await asyncio.sleep(0)
    doing.cancel()
    with pytest.raises(RequestRefused, match="stopped meanwhile"):
        await asked


async def test_no_more_wait_than_somebody_can_mean() -> None:
    requests = Requests()
    asked = [asyncio.create_task(requests.ask(seven, limit=5)) for _ in range(10)]
    await asyncio.sleep(0)
    with pytest.raises(RequestRefused, match="10 requests wait already"):
        await requests.ask(seven, limit=5)
    await requests.do_all(asyncio.Event())
    assert await asyncio.gather(*asked) == [7] * 10


async def test_what_has_begun_is_cancelled_at_its_limit_and_the_next_is_done() -> None:
    requests = Requests()
    late = asyncio.create_task(requests.ask(asyncio.Event().wait, limit=0.05))
    good = asyncio.create_task(requests.ask(seven, limit=5))
    await asyncio.sleep(0)
    async with asyncio.timeout(1):
        await requests.do_all(asyncio.Event())
        assert await good == 7
    with pytest.raises(RequestRefused, match="it is cancelled, unless it was being stored"):
        await late


async def test_what_is_done_for_somebody_who_is_gone_is_cancelled() -> None:
    requests, begun = Requests(), asyncio.Event()

    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    asked = asyncio.create_task(requests.ask(long, limit=60))
    await asyncio.sleep(0)
    doing = asyncio.create_task(requests.do_all(asyncio.Event()))
    async with asyncio.timeout(1):
        await begun.wait()
        asked.cancel()
        await doing
    assert asked.cancelled()


async def test_a_stop_cancels_what_is_being_done_and_begins_nothing_more() -> None:
    requests, halt, done = Requests(), asyncio.Event(), list[int]()

    async def other() -> None:
        done.append(1)

    asked = asyncio.create_task(requests.ask(asyncio.Event().wait, limit=60))
    behind = asyncio.create_task(requests.ask(other, limit=60))
    await asyncio.sleep(0)
    doing = asyncio.create_task(requests.do_all(halt))
    await asyncio.sleep(0)
    halt.set()
    async with asyncio.timeout(1):
        await doing
        with pytest.raises(RequestRefused, match="stopped meanwhile"):
            await asked
    assert done == []
    requests.refuse("shop is stopped")
    with pytest.raises(RequestRefused, match="shop is stopped"):
        await behind
