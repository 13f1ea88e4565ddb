"""The event loop of the simulator: order, time, processes that are frozen and end, and how it ends itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

import sim.loop
from sim.loop import Failure, Process, SimLoop, Spinning, Stuck, Worker

_MADE = list[SimLoop]()


def new(seed: int = 0) -> SimLoop:
    _MADE.append(SimLoop(random.Random(seed)))
    return _MADE[-1]


@pytest.fixture(autouse=True)
def _silent_end() -> Iterator[None]:
    """asyncio complains of pending tasks when their loop is collected."""
    yield
    for loop in _MADE:
        loop.on_error = lambda context: None
    _MADE.clear()


def started(loop: SimLoop, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return loop.create_task(work, context=process.context())


def run_for(loop: SimLoop, seconds: float) -> None:
    loop.call_later(seconds, loop.stop, context=loop.world.context())
    loop.run_forever()


def test_callbacks_of_a_lane_run_in_order_and_lanes_in_each_order() -> None:
    found = set()
    for seed in range(60):
        loop, ran = new(seed), list[str]()
        for name in ("a", "b", "c"):
            context = loop.world.context()
            for number in range(3):
                loop.call_soon(ran.append, f"{name}{number}", context=context)
        run_for(loop, 1)
        for name in ("a", "b", "c"):
            assert [one for one in ran if one[0] == name] == [f"{name}0", f"{name}1", f"{name}2"]
        found.add(tuple(one[0] for one in ran if one[1] == "0"))
    assert len(found) == 6


def test_a_seed_decides_the_order() -> None:
    def play(seed: int) -> list[int]:
        loop, ran = new(seed), list[int]()

        async def work(number: int) -> None:
            for _ in range(5):
                await asyncio.sleep(0)
                ran.append(number)

        for number in range(5):
            started(loop, loop.world, work(number))
        run_for(loop, 1)
        return ran

    assert play(1) == play(1)
    assert play(1) != play(2)


def test_steps_of_tasks_interleave_and_those_of_one_do_not_change_places() -> None:
    loop, ran = new(), list[tuple[int, int]]()

    async def work(number: int) -> None:
        for step in range(20):
            ran.append((number, step))
            await asyncio.sleep(0)

    for number in range(2):
        started(loop, loop.world, work(number))
    run_for(loop, 1)
    assert [number for number, _ in ran] != sorted(number for number, _ in ran)
    for number in range(2):
        assert [step for one, step in ran if one == number] == list(range(20))


def test_time_advances_to_the_next_timer_once_there_is_nothing_to_do() -> None:
    loop, seen = new(), list[tuple[str, float]]()
    began = loop.time()

    async def work() -> None:
        for _ in range(100):
            await asyncio.sleep(0)
        seen.append(("work", loop.time() - began))
        await asyncio.sleep(3600)
        seen.append(("slept", loop.time() - began))

    started(loop, loop.world, work())
    for after in (5.0, 0.5):
        loop.call_later(after, lambda: seen.append(("timer", loop.time() - began)), context=loop.world.context())
    run_for(loop, 4000)
    assert seen == [("work", 0), ("timer", 0.5), ("timer", 5.0), ("slept", 3600)]


def test_a_timer_that_is_due_earlier_runs_earlier_also_if_it_was_set_later() -> None:
    loop, ran = new(), list[int]()
    context = loop.world.context()
    for number in (3, 1, 2, 1):
        loop.call_later(number, ran.append, number, context=context)
    run_for(loop, 10)
    assert ran == [1, 1, 2, 3]


def test_cancelled_timers_do_not_run_do_not_move_time_and_are_removed() -> None:
    loop, ran = new(), list[str]()
    began = loop.time()
    handles = [loop.call_later(1 + number, ran.append, "never", context=loop.world.context()) for number in range(5000)]
    last = loop.call_later(7000, ran.append, "last", context=loop.world.context())
    for handle in handles:
        handle.cancel()
        handle.cancel()
    assert handles[0].cancelled()
    assert not last.cancelled()
    assert len(loop._timers) < 2500
    run_for(loop, 7000.5)
    assert ran == ["last"]
    assert loop.time() - began == 7000.5
    last.cancel()  # it has run
    loop.call_soon(ran.append, "cancelled when it was due", context=loop.world.context()).cancel()
    run_for(loop, 1)
    assert ran == ["last"]


def test_a_frozen_process_does_nothing_and_its_timers_are_due_after_it() -> None:
    loop = new()
    one, two = Process(loop, "one"), Process(loop, "two")
    ran = list[tuple[str, float]]()
    began = loop.time()

    async def tick(name: str) -> None:
        while True:
            await asyncio.sleep(1)
            ran.append((name, loop.time() - began))

    started(loop, one, tick("one"))
    started(loop, two, tick("two"))
    loop.call_later(2.5, one.freeze, context=loop.world.context())
    loop.call_later(9.5, one.thaw, context=loop.world.context())
    run_for(loop, 10.9)
    assert [at for name, at in ran if name == "two"] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert [at for name, at in ran if name == "one"] == [1, 2, 9.5, 10.5]


def test_what_was_ready_when_a_process_was_frozen_is_done_afterwards_in_its_order() -> None:
    loop, ran = new(), list[int]()
    process = Process(loop, "frozen")
    context = process.context()
    loop.call_soon(ran.append, 1, context=context)
    process.freeze()
    loop.call_soon(ran.append, 2, context=context)
    run_for(loop, 5)
    assert ran == []
    process.thaw()
    run_for(loop, 5)
    assert ran == [1, 2]


def test_an_ended_process_runs_no_step_more_not_even_finally() -> None:
    loop = new()
    process, other = Process(loop, "one"), Process(loop, "two")
    ran, ended = list[str](), list[str]()

    async def work() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                ran.append("step")
        finally:
            ran.append("finally")

    async def kill() -> None:
        await asyncio.sleep(2.5)
        process.end()
        process.end()
        process.thaw()

    process.on_end.append(lambda: ended.append("closed"))
    task = started(loop, process, work())
    killing = started(loop, other, kill())
    run_for(loop, 10)
    assert killing.done()
    assert ran == ["step", "step"]
    assert ended == ["closed"]
    assert not task.done()
    assert process.tasks == [task], "it is kept, so that nothing collects it"


def test_tasks_and_callbacks_belong_to_the_process_that_makes_them() -> None:
    loop = new()
    process = Process(loop, "one")
    found = list[str]()

    async def child() -> None:
        found.append(sim.loop.LANE.get().process.name)

    async def work() -> None:
        asyncio.get_running_loop().call_later(1, lambda: found.append(loop._lane.process.name))
        await asyncio.create_task(child())

    started(loop, process, work())
    run_for(loop, 5)
    assert found == ["one", "one"]
    assert len(process.tasks) == 2


def test_nothing_left_to_wait_for_is_an_error() -> None:
    loop = new()

    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck):
        loop.run_until_complete(started(loop, loop.world, wait()))


def test_cancelled_timers_are_nothing_to_wait_for() -> None:
    loop = new()
    loop.call_later(5, print, context=loop.world.context()).cancel()
    with pytest.raises(Stuck):
        loop.run_forever()


def test_tasks_that_wake_each_other_for_ever_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sim.loop._MOST_STEPS", 1000)
    loop = new()

    async def spin() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def slow() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    started(loop, loop.world, slow())
    run_for(loop, 30)
    assert loop.steps > 1000, "steps count only as long as time stands still"
    started(loop, Process(loop, "spinner"), spin())
    with pytest.raises(Spinning, match="spinner"):
        loop.run_forever()


def test_what_a_callback_raises_ends_the_simulation_unless_its_process_has_ended() -> None:
    loop = new()

    def fail() -> None:
        raise ValueError("no task's error")

    loop.call_soon(fail, context=loop.world.context())
    with pytest.raises(Failure, match="a callback failed") as raised:
        loop.run_forever()
    assert isinstance(raised.value.__cause__, ValueError)
    process = Process(loop, "one")

    def fail_and_end() -> None:
        process.end()
        fail()

    loop.call_soon(fail_and_end, context=process.context())
    run_for(loop, 1)


def test_what_a_task_raises_is_its_result() -> None:
    loop = new()

    async def fail() -> None:
        await asyncio.sleep(1)
        raise KeyError("result")

    with pytest.raises(KeyError, match="result"):
        loop.run_until_complete(started(loop, loop.world, fail()))


def test_calls_of_an_executor_end_later_in_their_order() -> None:
    loop = new()
    worker, ran = Worker(loop, random.Random(1), longest=0.5), list[int]()

    def call(number: int) -> int:
        ran.append(number)
        if number == 3:
            raise ValueError("three")
        return number * 2

    async def work() -> list[Any]:
        running = asyncio.get_running_loop()
        began = running.time()
        given = [running.run_in_executor(worker, call, number) for number in range(5)]
        assert ran == []
        found = await asyncio.gather(*given, return_exceptions=True)
        assert running.time() > began
        return found

    found = loop.run_until_complete(started(loop, loop.world, work()))
    assert ran == [0, 1, 2, 3, 4]
    assert [str(one) for one in found] == ["0", "2", "4", "three", "8"]


def test_the_order_in_sets_of_tasks_and_futures_is_that_of_their_making() -> None:
    def play() -> list[int]:
        loop = new()

        async def nothing() -> None:
            pass

        tasks = [started(loop, loop.world, nothing()) for _ in range(50)]
        order = [tasks.index(one) for one in set(tasks)]
        run_for(loop, 1)
        assert hash(loop.create_future()) == 51
        return order

    assert play() == play()
