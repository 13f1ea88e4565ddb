"""Operators' requests that are handled between two runs of a destination, under its lock."""

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
"""Maximum number of waiting requests."""
_REMEDY = "headrace position history DESTINATION shows what was stored"
"""The remedy if a request is cancelled: what was being stored then is stored."""


class RequestRefused(Refusal):
    """The request can't be done in the present state; the text says why."""


class Requests:
    """The waiting requests, in order. ask() is for the operator's side, the rest for the destination."""

    def __init__(self) -> None:
        self._waiting: deque[_Entry] = deque()
        self._some = asyncio.Event()

    async def ask(self, do: Callable[[], Coroutine[Any, Any, _Result]], *, limit: float) -> _Result:
        """Returns the result of `do`, once it was executed; a running run ends in order before it. Raises its error,
        and RequestRefused if another daemon runs the destination, or it was not executed within `limit` seconds. An
        execution that has begun is cancelled then, and if the caller is cancelled."""
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
                remedy=_REMEDY,
            )
        raise RequestRefused(f"it could not begin within {limit:g} s, and is given up")

    @property
    def waiting(self) -> bool:
        """Returns whether any request waits."""
        return bool(self._waiting)

    async def some(self) -> None:
        """Waits until any request waits."""
        while not self._waiting:
            self._some.clear()
            await self._some.wait()

    async def do_all(self, halt: asyncio.Event) -> None:
        """Handles the waiting requests, until `halt`, which cancels the present one. An error concerns only its
        request."""
        while self._waiting and not halt.is_set():
            do, done = self._waiting.popleft()
            stopped = RequestRefused("the destination was stopped meanwhile", remedy=_REMEDY)
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
        """Refuses the waiting requests."""
        while self._waiting:
            _settle(self._waiting.popleft()[1], RequestRefused(why))


async def _ended(done: asyncio.Future[Any]) -> None:
    await asyncio.wait([done])


def _settle(done: asyncio.Future[Any], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
        done.exception()  # the caller may be gone
