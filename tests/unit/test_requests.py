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
    await requests.do_all()
    assert await asyncio.gather(*asked) == done == [0, 1, 2]


async def test_an_error_is_that_of_the_request_alone() -> None:
    requests = Requests()

    async def fails() -> None:
        raise OSError("no")

    bad = asyncio.create_task(requests.ask(fails, limit=5))
    good = asyncio.create_task(requests.ask(seven, limit=5))
    await asyncio.sleep(0)
    await requests.do_all()
    with pytest.raises(OSError, match="no"):
        await bad
    assert await good == 7


async def test_what_can_not_begin_in_time_is_given_up_and_not_done_later() -> None:
    requests, done = Requests(), list[int]()

    async def late() -> None:
        done.append(1)

    with pytest.raises(RequestRefused, match=r"could not begin within 0\.01 s"):
        await requests.ask(late, limit=0.01)
    await requests.do_all()
    assert done == []


async def test_what_has_begun_and_takes_long_says_so() -> None:
    requests, go = Requests(), asyncio.Event()
    asked = asyncio.create_task(requests.ask(go.wait, limit=0.05))
    await asyncio.sleep(0)
    doing = asyncio.create_task(requests.do_all())
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
    doing = asyncio.create_task(requests.do_all())
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
    await requests.do_all()
    assert await asyncio.gather(*asked) == [7] * 10
