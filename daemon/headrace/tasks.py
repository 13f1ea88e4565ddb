"""Tasks: waits for the first of several, runs some alongside other work, waits despite a cancellation, and ends them
all.

Everything in the daemon that starts a task goes through here or keeps the task in an attribute that its close() ends
with `cancel`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from headrace import runtime
from headrace.errors import HeadraceError

_T = TypeVar("_T")
Work = Coroutine[Any, Any, Any]
Task = asyncio.Task[Any]
_FIRST, _MOST, _STEADY = 1.0, 60.0, 30.0
"""Of again(): the first and the longest wait, and the time of work after which the waits begin again, in seconds."""


async def cancel(*tasks: asyncio.Future[Any] | None, limit: float | None = None) -> None:
    """Cancels tasks and waits until they have ended, at most `limit` seconds.

    None and tasks that have ended are skipped. Errors are dropped: read them from the tasks before. If the caller is
    cancelled meanwhile, CancelledError is raised once the tasks have ended."""
    running = [task for task in tasks if task is not None and not task.done()]
    for task in running:
        task.cancel()
    if running:
        await _wait(running, limit)
    for ended in tasks:
        if ended is not None and ended.done() and not ended.cancelled():
            ended.exception()  # else asyncio logs an error that was never retrieved


async def first(works: Mapping[str, Work], *, limit: float | None = None) -> dict[str, Any]:
    """Runs works concurrently until one of them ends; returns the results of those that have ended, by name.

    The others are cancelled, and have ended when this returns or raises. Raises the error of the first, in the order of
    `works`, that ended with one. Returns {} if none ended within `limit` seconds. If the caller is cancelled, all works
    are."""
    async with alongside(works) as tasks:
        await asyncio.wait(tasks.values(), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        return {name: result_of(task) for name, task in tasks.items() if task.done()}


async def ended(tasks: Iterable[asyncio.Task[_T]], *, all_unless_error: bool = False) -> list[asyncio.Task[_T]]:
    """Waits until one of the tasks has ended, or with `all_unless_error` until all have, or one with an error. Returns
    those that have, in their order here: asyncio.wait() returns them in the order of their addresses."""
    awaited = list(tasks)
    await asyncio.wait(awaited, return_when=asyncio.FIRST_EXCEPTION if all_unless_error else asyncio.FIRST_COMPLETED)
    return [task for task in awaited if task.done()]


if TYPE_CHECKING:  # it has the types of the results
    all_of = asyncio.gather
else:

    async def all_of(*works):
        """Runs works concurrently and returns their results in order. Raises the first error, once the other works are
        cancelled and have ended: asyncio.gather() leaves them running."""
        tasks = [asyncio.create_task(work) for work in works]
        try:
            return await asyncio.gather(*tasks)
        finally:
            await cancel(*tasks)


@asynccontextmanager
async def alongside(works: Mapping[str, Work]) -> AsyncIterator[dict[str, asyncio.Task[Any]]]:
    """Runs works alongside the body; they are cancelled, and have ended, when the context is left. Their errors are
    only in the tasks."""
    tasks = {name: asyncio.create_task(work, name=name) for name, work in works.items()}
    try:
        yield tasks
    finally:
        await cancel(*tasks.values())


async def finish(future: asyncio.Future[_T]) -> _T:
    """Waits for a future to end, also if the caller is cancelled meanwhile; then raises CancelledError. For work that
    can't be undone once it has begun, and has its own time limit."""
    await _wait([future], None)
    return future.result()


def result_of(task: asyncio.Task[_T]) -> _T:
    """Returns the result of an ended task, or raises its error. If something within has cancelled the task, raises
    TaskBroken, so that this does not look like a cancellation of the caller."""
    if task.cancelled():
        raise TaskBroken(f"the task '{task.get_name()}' was cancelled from within")
    return task.result()


def raise_if_cancelled() -> None:
    """Raises CancelledError if the present task was cancelled, and a library has dropped that: a loop would go on."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def again(work: Callable[[], Awaitable[object]]) -> NoReturn:
    """Awaits work again and again, with waits of 1 s that double up to 60 s; after half a minute of work they begin at
    1 s again. Raises what the work raises."""
    wait = _FIRST
    while True:
        began = runtime.monotonic()
        await work()
        if runtime.monotonic() - began > _STEADY:
            wait = _FIRST
        await asyncio.sleep(wait)
        wait = min(_MOST, 2 * wait)


async def set_within(event: asyncio.Event, limit: float | None) -> bool:
    """Waits until the event is set, at most `limit` seconds; returns whether it is."""
    if not event.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await event.wait()
    return event.is_set()


def settle(done: asyncio.Future[None], error: BaseException | None = None) -> None:
    """Completes a confirmation, with or without an error, unless it is already done."""
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def confirmation() -> asyncio.Future[None]:
    """Returns a future that need not be awaited: only the first failure is reported, later ones have the same cause.
    Otherwise asyncio would log each."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.add_done_callback(lambda done: None if done.cancelled() else done.exception())
    return done


class TaskBroken(HeadraceError):
    """A library that a task awaited has cancelled it."""

    reason = "error"


async def _wait(futures: list[asyncio.Future[Any]], limit: float | None) -> None:
    """Waits until all have ended or the limit has passed, whatever happens to the caller; raises CancelledError
    then."""
    cancelled: asyncio.CancelledError | None = None
    pending = set(futures)
    deadline = None if limit is None else runtime.monotonic() + limit
    while pending and (deadline is None or runtime.monotonic() < deadline):
        try:
            rest = None if deadline is None else deadline - runtime.monotonic()
            _, pending = await asyncio.wait(pending, timeout=rest)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
