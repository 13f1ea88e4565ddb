"""An event loop whose clock stands still while there is work, and jumps when there is none: timers take no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import wraps
from typing import Any, TypeVar

from headrace.runtime import CURRENT, Runtime

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """Never waits: the time that it was to wait has passed at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if not events:
            if timeout is None:
                raise RuntimeError("nothing will ever happen: every task waits for another")
            self.now += timeout
        return events


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.virtual = _Selector()
        super().__init__(self.virtual)

    def time(self) -> float:
        return self.virtual.now


class _Runtime(Runtime):
    """Its monotonic clock runs with the loop's, and is another, as it may be with a real loop."""

    def __init__(self, loop: _Loop) -> None:
        super().__init__()
        self.monotonic = lambda: 1000 + loop.time()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run(), in virtual time. A deadlock is an error."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        context, loop = copy_context(), runner.get_loop()
        assert isinstance(loop, _Loop)
        context.run(CURRENT.set, _Runtime(loop))
        return runner.run(main, context=context)


def timeless(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs a test in it."""

    @wraps(test)
    def in_virtual_time() -> None:
        run(test())

    del in_virtual_time.__wrapped__  # type: ignore[attr-defined]  # for pytest it is no coroutine function
    return in_virtual_time
