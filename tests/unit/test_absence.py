"""When a wait for what was away ends: at once after an ordinary outage, and not for what comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, cycle, repeat
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.destination.absence import Absence
from headrace.errors import HeadraceError, SinkError, SourceUnreachable, StateStoreError
from tests.virtual_time import timeless

KINDS: dict[str, Callable[[], HeadraceError]] = {
    "source": lambda: SourceUnreachable("away"),
    "sink": lambda: SinkError("away"),
    "store": lambda: StateStoreError("away"),
}


class Outage:
    """Source, sink and store at once: there or away, one answer after the other."""

    def __init__(self, answers: Iterable[bool]) -> None:
        self._answers: Iterator[bool] = iter(answers)
        parts: Any = SimpleNamespace(store=self, probe_sink=lambda: self)
        self.absence = Absence("shop", parts, self, SimpleNamespace(goes_on=lambda _: None))  # type: ignore[arg-type]

    async def reachable(self) -> bool:
        return next(self._answers)

    async def problem(self) -> str:
        return "" if next(self._answers) else "away"

    async def load(self, name: str) -> Any:
        if not next(self._answers):
            raise StateStoreError("away")
        return object()

    async def attempts(self, kind: str, seconds: float) -> int:
        """How many attempts there are when each fails at once, and nothing but the return ends a wait."""
        loop, count = asyncio.get_running_loop(), 0
        end = loop.time() + seconds
        while True:
            count += 1
            self.absence.begin()
            self.absence.failed(KINDS[kind]())
            try:
                async with asyncio.timeout_at(end):
                    await self.absence.over()
            except TimeoutError:
                return count


async def waited(kind: str, answers: Iterable[bool]) -> float:
    """The seconds of a first wait."""
    outage, loop = Outage(answers), asyncio.get_running_loop()
    outage.absence.begin()
    outage.absence.failed(KINDS[kind]())
    began = loop.time()
    await outage.absence.over()
    return loop.time() - began


@pytest.mark.parametrize("kind", KINDS)
def test_the_wait_of_an_ordinary_outage_ends_within_two_seconds_of_its_return(kind: str) -> None:
    @timeless
    async def test() -> None:
        assert await waited(kind, [*[False] * 100, *[True] * 10]) <= 100 + 2

    test()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answers", [[False, True], [True, False, True], [False, True, True]], ids=str)
def test_a_flapping_dependency_is_not_tried_each_second(kind: str, answers: list[bool]) -> None:
    @timeless
    async def test() -> None:
        assert await Outage(cycle(answers)).attempts(kind, 300) <= 5

    test()


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_outage_soon_after_the_first_is_waited_for_as_the_first_was(kind: str) -> None:
    @timeless
    async def test() -> None:
        outage = Outage(chain([False] * 30, [True], [False] * 30, repeat(True)))
        loop = asyncio.get_running_loop()
        for _ in range(2):
            outage.absence.begin()
            outage.absence.failed(KINDS[kind]())
            began = loop.time()
            await outage.absence.over()
            assert loop.time() - began <= 30 + 2

    test()


@pytest.mark.parametrize("kind", KINDS)
def test_once_a_run_has_lasted_the_return_is_believed_again(kind: str) -> None:
    @timeless
    async def test() -> None:
        outage = Outage(chain(cycle([False, True])))
        await outage.attempts(kind, 60)
        outage.absence.begin()
        outage.absence.opened()
        await asyncio.sleep(61)
        outage.absence.failed(KINDS[kind]())
        async with asyncio.timeout(4):
            await outage.absence.over()

    test()
