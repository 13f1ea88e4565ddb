"""What operators ask of a destination that is done between two of its runs, under its lock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from headrace.errors import Refusal
from headrace.tasks import first

_Result = TypeVar("_Result")
_Entry = tuple[Callable[[], Coroutine[Any, Any, Any]], asyncio.Future[Any]]
_MOST = 10
"""Requests that may wait."""
_LOOK = "headrace position history DESTINATION shows what was stored"
"""The remedy where a request is cancelled: what was being stored then is stored."""


class RequestRefused(Refusal):
    """The request can't be done as things are; the text says why."""


class Requests:
    """Those that wait, in order. ask() is for whoever asks, the rest for the destination."""

    def __init__(self) -> None:
        self._waiting: deque[_Entry] = deque()
        self._some = asyncio.Event()

    async def ask(self, do: Callable[[], Coroutine[Any, Any, _Result]], *, limit: float) -> _Result:
        """Returns what `do` returns, once it was done; a run that is under way ends in order before it. Raises its
        error, and RequestRefused when somebody else runs the destination, or it was not done within `limit` seconds.
        What has begun is cancelled then, and when whoever asks is."""
        if len(self._waiting) >= _MOST:
            raise RequestRefused(f"{_MOST} requests wait already")
        entry: _Entry = do, asyncio.get_running_loop().create_future()
        self._waiting.append(entry)
        self._some.set()
        done = entry[1]
        try:
            await asyncio.wait([done], timeout=limit)
            if done.done():
                result: _Result = done.result()
                return result
            begun = entry not in self._waiting
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
            done.cancel()
        if begun:
            raise RequestRefused(
                f"it has begun and has not ended within {limit:g} s: it is cancelled, unless it was being stored",
                remedy=_LOOK,
            )
        raise RequestRefused(f"it could not begin within {limit:g} s, and is given up")

    @property
    def waiting(self) -> bool:
        """Whether any waits."""
        return bool(self._waiting)

    async def some(self) -> None:
        """Returns once any waits."""
        while not self._waiting:
            self._some.clear()
            await self._some.wait()

    async def do_all(self, halt: asyncio.Event) -> None:
        """Does what waits, until `halt`, which cancels what is being done. An error is that of the request alone."""
        while self._waiting and not halt.is_set():
            do, done = self._waiting.popleft()
            stopped = RequestRefused("the destination was stopped meanwhile", remedy=_LOOK)
            try:
                ended = await first({"request": do(), "given up": _ended(done), "halt": halt.wait()})
            except asyncio.CancelledError:
                _settle(done, stopped)
                raise
            except Exception as error:
                _settle(done, error)
            else:
                if "request" not in ended:
                    _settle(done, stopped)
                elif not done.done():
                    done.set_result(ended["request"])

    def refuse(self, why: str) -> None:
        """Refuses what waits."""
        while self._waiting:
            _settle(self._waiting.popleft()[1], RequestRefused(why))


async def _ended(done: asyncio.Future[Any]) -> None:
    await asyncio.wait([done])


def _settle(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
        done.exception()  # whoever asked may be gone
