"""Tasks: the first of several, work beside other work, the end of all; and a cancellation in each of their awaits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import runtime
from headrace.tasks import TaskBroken, again, all_of, alongside, cancel, finish, first, result_of
from tests.virtual_time import timeless


class Work:
    """Waits until it is let go, and notes how it ended; it may take its time over a cancellation."""

    def __init__(self, *, slow_end: float = 0.0) -> None:
        self.go, self.ended, self._slow_end = asyncio.Event(), "", slow_end
        self.begun = asyncio.Event()

    async def run(self, result: Any = None) -> Any:
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(self._slow_end)
            self.ended = "cancelled"
            raise
        self.ended = "done"
        if isinstance(result, Exception):
            raise result
        return result


async def test_the_first_to_end_ends_the_others_and_its_result_is_known_by_name() -> None:
    fast, slow = Work(), Work(slow_end=0.02)
    fast.go.set()
    assert await first({"fast": fast.run(7), "slow": slow.run()}) == {"fast": 7}
    assert (fast.ended, slow.ended) == ("done", "cancelled")


async def test_of_several_that_ended_the_error_of_the_first_named_is_raised() -> None:
    one, two, three = Work(), Work(), Work(slow_end=0.02)
    one.go.set()
    two.go.set()
    with pytest.raises(ValueError, match="one"):
        await first({"one": one.run(ValueError("one")), "two": two.run(ValueError("two")), "three": three.run()})
    assert three.ended == "cancelled"


async def test_nothing_that_ends_in_time_is_no_result() -> None:
    work = Work()
    assert await first({"work": work.run()}, limit=0.02) == {}
    assert work.ended == "cancelled"


async def test_a_cancellation_from_within_a_library_is_not_taken_for_ours() -> None:
    async def broken() -> None:
        raise asyncio.CancelledError

    with pytest.raises(TaskBroken, match="odd"):
        await first({"odd": broken(), "work": Work().run()})


async def test_the_caller_of_first_is_cancelled_once_all_works_have_ended() -> None:
    one, two = Work(slow_end=0.05), Work(slow_end=0.02)
    racing = asyncio.create_task(first({"one": one.run(), "two": two.run()}))
    await asyncio.gather(one.begun.wait(), two.begun.wait())
    racing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await racing
    assert (one.ended, two.ended) == ("cancelled", "cancelled")


async def test_a_cancellation_before_anything_ran_leaves_nothing() -> None:
    work = Work()

    async def cancelled_at_once() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await first({"work": work.run()})

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(cancelled_at_once())
    assert work.begun.is_set() == (work.ended == "cancelled")


async def test_a_second_cancellation_does_not_shorten_the_cleanup() -> None:
    work = Work(slow_end=0.05)
    racing = asyncio.create_task(first({"work": work.run()}))
    await work.begun.wait()
    racing.cancel()
    await asyncio.sleep(0.01)
    racing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await racing
    assert work.ended == "cancelled"


async def test_parallel_work_ends_with_its_block_even_after_an_error() -> None:
    work = Work(slow_end=0.02)
    with pytest.raises(ValueError, match="inside"):
        await _fail_beside(work)
    assert work.ended == "cancelled"


async def test_cancel_passes_over_none_and_what_has_ended_and_drops_errors() -> None:
    failed = asyncio.create_task(Work.run(_let_go(Work()), ValueError("dropped")))
    await asyncio.wait([failed])
    running = Work()
    task = asyncio.create_task(running.run())
    await running.begun.wait()
    await cancel(None, failed, task)
    assert (running.ended, task.cancelled()) == ("cancelled", True)


async def test_cancel_waits_for_its_limit_at_most() -> None:
    stubborn = Work(slow_end=30.0)
    task = asyncio.create_task(stubborn.run())
    await stubborn.begun.wait()
    async with asyncio.timeout(5):
        await cancel(task, limit=0.02)
    assert not task.done()
    await cancel(task)  # the second cancellation meets the slow end


async def test_what_can_not_be_taken_back_is_waited_for_before_the_cancellation_goes_on() -> None:
    work = Work()
    inner = asyncio.ensure_future(work.run("written"))
    waiting = asyncio.create_task(finish(inner))
    await work.begun.wait()
    waiting.cancel()
    await asyncio.sleep(0.01)
    assert not waiting.done()
    work.go.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert inner.result() == "written"


async def test_finish_returns_the_result_or_raises_the_error() -> None:
    assert await finish(asyncio.ensure_future(_let_go(Work()).run(3))) == 3
    with pytest.raises(ValueError, match="no"):
        await finish(asyncio.ensure_future(_let_go(Work()).run(ValueError("no"))))


async def test_the_result_of_a_task_is_what_it_returned_or_raised() -> None:
    task = asyncio.create_task(_let_go(Work()).run(5))
    await asyncio.wait([task])
    assert result_of(task) == 5


async def _fail_beside(work: Work) -> None:
    async with alongside({"work": work.run()}) as tasks:
        await work.begun.wait()
        assert not tasks["work"].done()
        raise ValueError("inside")


def _let_go(work: Work) -> Work:
    work.go.set()
    return work


async def test_works_that_are_gathered_end_with_the_first_error() -> None:
    ended = asyncio.Event()

    async def long() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def wrong() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await all_of(long(), wrong())
    assert ended.is_set()
    assert await all_of(asyncio.sleep(0.01, "a"), asyncio.sleep(0, "b")) == ["a", "b"]


@timeless
async def test_work_that_fails_is_begun_again_after_waits_that_double_until_it_lasted() -> None:
    began, lasts = list[float](), [0.0] * 8 + [31.0, 0.0]

    async def work() -> None:
        began.append(runtime.monotonic())
        if len(began) > len(lasts):
            raise ValueError("the end of the test")
        await asyncio.sleep(lasts[len(began) - 1])

    with pytest.raises(ValueError, match="the end of the test"):
        await again(work)
    waits = [after - before - lasted for before, after, lasted in zip(began[:-1], began[1:], lasts, strict=True)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 1, 2]
