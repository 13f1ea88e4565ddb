"""The event loop of the simulator: virtual time, and an order of steps that a seed decides.

asyncio runs callbacks in the order in which they were scheduled. Here that holds within a `Lane`: the steps of a
task, or the events of a connection. Which is next is random, so that everything that may happen in another order on
another machine does so under some seed. Time advances only when no lane has anything to do."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import Any, TypeVar

_T = TypeVar("_T")
_MOST_STEPS = 1_000_000
"""Steps without progress of the time that mean that something spins."""
_SWEEP = 1_000
"""Cancelled timers that are kept before they are removed."""


class Spinning(Exception):
    """Tasks wake each other without end, and time does not advance."""


class Stuck(Exception):
    """No step is left and no timer: the simulation would wait forever."""


class Lane:
    """Callbacks that run in order: of one task or one connection of a process."""

    __slots__ = ("handles", "process")

    def __init__(self, process: Process) -> None:
        self.process = process
        self.handles = deque[Handle]()


class Process:
    """What is frozen and ends as one: a daemon, or a server. Its tasks are kept until the simulation ends, because
    collecting them would run their `finally` blocks after its end."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.loop, self.name = loop, name
        self.base = copy_context()
        """What its tasks and connections inherit."""
        self.alive, self.frozen = True, False
        self.freezes = 0
        """How often it was frozen."""
        self.held = list[Lane]()
        """While it is frozen: its lanes that have something to do."""
        self.tasks = list[asyncio.Task[Any]]()
        self.on_end = list[Callable[[], None]]()
        """Called when it ends, as the operating system closes files and sockets."""

    def context(self) -> Context:
        """Returns a new context with a lane of its own, as for a new task or connection."""
        context = self.base.run(copy_context)
        context.run(LANE.set, Lane(self))
        return context

    def freeze(self) -> None:
        """Stops all its steps, as SIGSTOP does. Its timers go on, and what is due runs after thaw()."""
        self.frozen = True
        self.freezes += 1
        self.loop.hold(self)

    def thaw(self) -> None:
        """Continues after freeze()."""
        self.frozen = False
        self.loop.release(self)

    def end(self) -> None:
        """Ends it between two steps, as SIGKILL does."""
        if self.alive:
            self.alive = False
            self.loop.hold(self)
            self.held.clear()
            for call in self.on_end:
                call()


class Handle:
    """A scheduled callback."""

    __slots__ = ("args", "callback", "context", "done", "lane", "loop", "moment")

    def __init__(
        self, loop: SimLoop, lane: Lane, moment: float, callback: Callable[..., Any], args: Any, context: Context
    ) -> None:
        self.loop, self.lane, self.moment = loop, lane, moment
        self.callback: Callable[..., Any] | None = callback
        self.args, self.context = args, context
        self.done = False
        """Whether it is in its lane, or has run."""

    def cancel(self) -> None:
        """Keeps the callback from running."""
        if self.callback is not None:
            self.callback = self.args = None
            if not self.done and self.moment:
                self.loop.note_cancelled()

    def cancelled(self) -> bool:
        """Returns whether cancel() was called."""
        return self.callback is None

    def when(self) -> float:
        """Returns when it is due."""
        return self.moment


class _Task(asyncio.Task[_T]):
    """A task whose place in a set does not depend on its address."""

    def __init__(self, number: int, coro: Any, **more: Any) -> None:
        self.number = number  # first: asyncio puts it into a set
        super().__init__(coro, **more)

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[_T]):
    """The same for futures."""

    number = 0

    def __hash__(self) -> int:
        return self.number


# What asyncio asks of a loop is typed more narrowly than it is written here.
_Base: Any = asyncio.AbstractEventLoop

LANE: ContextVar[Lane] = ContextVar("lane")


class SimLoop(_Base):  # type: ignore[misc]
    """An event loop in virtual time. `rng` decides the order of lanes."""

    def __init__(self, rng: random.Random, start: float = 1000.0) -> None:
        self._random = rng.random
        self._now = start
        self.steps = 0
        """Callbacks that have run."""
        self._most = _MOST_STEPS
        """How many may have run until time advances."""
        self._calls = list[tuple[int, int, Context, Callable[[], None]]]()
        """What is called after a number of steps."""
        self._runnable = list[Lane]()
        self._timers = list[tuple[float, int, Handle]]()
        self._cancelled = 0
        self._serial = count(1)
        self._numbers = count(1)
        self._stopping = False
        self.world = Process(self, "world")
        """What is no process of its own: the network, faults, the checker."""
        self._lane = Lane(self.world)
        self.on_error: Callable[[dict[str, Any]], None] = _raise
        self.connect: Callable[..., Coroutine[Any, Any, Any]] | None = None
        """Serves create_connection()."""
        self.listen: Callable[[Process, str, int], Any] | None = None
        """Returns what sock_accept() is given."""

    # -- time and callbacks ---------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        if context is None:
            lane, context = self._lane, copy_context()
        else:
            lane = context.get(LANE, self._lane)
        handle = Handle(self, lane, 0.0, callback, args, context)
        handle.done = True
        handles = lane.handles
        handles.append(handle)
        if len(handles) == 1:
            self._wake(lane)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        if context is None:
            lane, context = self._lane, copy_context()
        else:
            lane = context.get(LANE, self._lane)
        handle = Handle(self, lane, when, callback, args, context)
        heapq.heappush(self._timers, (when, next(self._serial), handle))
        return handle

    def after_steps(self, steps: int, call: Callable[[], None]) -> None:
        """Calls something as the world once this many further steps have run, whatever is left to run then."""
        heapq.heappush(self._calls, (self.steps + steps, next(self._serial), self.world.context(), call))

    def _wake(self, lane: Lane) -> None:
        """Takes a lane that has something to do into those that run."""
        process = lane.process
        if process.alive:
            (process.held if process.frozen else self._runnable).append(lane)

    def hold(self, process: Process) -> None:
        """Takes a process's lanes out of those that run."""
        process.held += [lane for lane in self._runnable if lane.process is process]
        self._runnable = [lane for lane in self._runnable if lane.process is not process]

    def release(self, process: Process) -> None:
        """Puts them back."""
        if process.alive:
            self._runnable += process.held
        process.held = []

    def note_cancelled(self) -> None:
        """Counts a cancelled timer; many are removed together."""
        self._cancelled += 1
        if self._cancelled > _SWEEP and self._cancelled * 2 > len(self._timers):
            self._timers = [timer for timer in self._timers if timer[2].callback is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    # -- running --------------------------------------------------------------------------------------------------

    def run_forever(self) -> None:
        """Runs until stop(). Raises Stuck, Spinning, and what a step raises that is no task's error."""
        asyncio._set_running_loop(self)
        self._stopping = False
        pick = self._random
        try:
            while not self._stopping:
                while self._calls and self._calls[0][0] <= self.steps:
                    _, _, context, call = heapq.heappop(self._calls)
                    self._lane = context[LANE]
                    context.run(call)
                runnable = self._runnable  # another list after a freeze or an end
                count = len(runnable)
                if count > 1:
                    index = int(pick() * count)
                elif count:
                    index = 0
                else:
                    self._advance()
                    continue
                lane = runnable[index]
                handle = lane.handles.popleft()
                if not lane.handles:
                    last = runnable.pop()
                    if last is not lane:
                        runnable[index] = last
                callback = handle.callback
                if callback is None:
                    continue
                self.steps += 1
                if self.steps > self._most:
                    raise Spinning(f"{_MOST_STEPS} steps at {self._now}; now {lane.process.name} runs {callback}")
                self._lane = lane
                try:
                    handle.context.run(callback, *handle.args)
                except (SystemExit, KeyboardInterrupt, Failure):
                    raise
                except BaseException as error:
                    found = {"message": "a callback failed", "exception": error, "process": lane.process}
                    self.call_exception_handler(found)
        finally:
            asyncio._set_running_loop(None)

    def _advance(self) -> None:
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
            self._cancelled -= 1
        if not timers:
            raise Stuck("nothing will ever happen: each task waits for another")
        now = timers[0][0]
        if now > self._now:
            self._now, self._most = now, self.steps + _MOST_STEPS
        else:
            now = self._now
        while timers and timers[0][0] <= now:
            _, _, handle = heapq.heappop(timers)
            if handle.callback is None:
                self._cancelled -= 1
                continue
            handle.done = True
            handle.lane.handles.append(handle)
            if len(handle.lane.handles) == 1:
                self._wake(handle.lane)

    def run_until_complete(self, future: Any) -> Any:
        task = asyncio.ensure_future(future, loop=self)
        task.add_done_callback(lambda _: self.stop(), context=self.world.context())
        self.run_forever()
        return task.result()

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return False

    def close(self) -> None:
        """Does nothing: the simulation's process ends with it."""

    def get_debug(self) -> bool:
        return False

    async def shutdown_asyncgens(self) -> None:
        """Does nothing."""

    # -- tasks, futures, threads ----------------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        made = _Future[Any](loop=self)
        made.number = next(self._numbers)
        return made

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        number = next(self._numbers)
        process = (context.get(LANE, self._lane) if context is not None else self._lane).process
        context = copy_context() if context is None else context
        context.run(LANE.set, Lane(process))
        made = _Task[Any](number, coro, loop=self, name=name or f"Task-{number}", context=context)
        process.tasks.append(made)
        if len(process.tasks) % _SWEEP == 0 and process.alive:
            process.tasks = [task for task in process.tasks if not task.done()]
        return made

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> Any:
        """Runs the call in this thread, some time later, in order with the executor's other calls."""
        done = self.create_future()
        delay = executor.delay() if isinstance(executor, Worker) else self._random() * 0.001

        def run() -> None:
            if done.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        self.call_later(delay, run, context=self._lane.process.context())
        return done

    # -- errors ---------------------------------------------------------------------------------------------------

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        process = context.get("process", self._lane.process)
        if process.alive:
            self.on_error(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.on_error(context)

    # -- the operating system -------------------------------------------------------------------------------------

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        assert self.connect is not None
        return await self.connect(protocol_factory, host, port, **more)

    async def sock_accept(self, sock: Any) -> tuple[Any, Any]:
        end = await sock.accept()
        return end, end.get_extra_info("peername")

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **_: Any) -> tuple[Any, Any]:
        protocol = protocol_factory()
        sock.begin(protocol)
        return sock, protocol

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(2, 1, 6, "", (host, port))]

    def add_signal_handler(self, sig: int, callback: Any, *args: Any) -> None:
        """Does nothing: nobody sends signals here."""

    def remove_signal_handler(self, sig: int) -> bool:
        return False


class Failure(Exception):
    """What the checker has found; ends the simulation."""


class Worker(Executor):
    """An executor that runs its calls in the loop's thread, in order, each after a random time."""

    def __init__(self, loop: SimLoop, rng: random.Random, longest: float = 0.002) -> None:
        self._loop, self._rng, self._longest, self._free_at = loop, rng, longest, 0.0

    def delay(self) -> float:
        """Returns the seconds until a call that is given now has run."""
        self._free_at = max(self._free_at, self._loop.time()) + self._rng.random() * self._longest
        return self._free_at - self._loop.time()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the call at once."""
        from concurrent.futures import Future

        done = Future[Any]()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Does nothing."""


def _raise(context: dict[str, Any]) -> None:
    raise Failure(context["message"]) from context.get("exception")
