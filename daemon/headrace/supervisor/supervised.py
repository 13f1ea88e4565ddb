"""Supervises one destination: it runs, fails, waits and runs again, until it is asked to stop."""

from __future__ import annotations

import asyncio
import gc
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from headrace import runtime, tasks
from headrace.destination.destination import Destination
from headrace.destination.handle import DestinationHandle
from headrace.destination.status import DestinationStatus
from headrace.errors import HeadraceError, ServerIdTaken
from headrace.model import State
from headrace.settings.destination import DestinationSettings

END_LIMIT = 5.0
"""Seconds that a cancelled task has to end; one that ignores it ends with the process."""

_SERVER_ID = "server_id"
"""The reason for counting failures in which the source disconnected us because of another replica."""

_REPORT_AGAIN = 60.0
"""Seconds after which the same error is logged again."""

log = structlog.get_logger(__name__)


ActorFactory = Callable[[DestinationSettings, DestinationStatus], Destination]


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a failed destination starts again; all values in seconds."""

    base: float = 1.0
    """The longest wait after the first failure for a reason; doubled by each further one."""
    cap: float = 60.0
    """The maximum of all waits."""
    healthy_after: float = 60.0
    """Failures are forgotten after this long in healthy states without interruption."""
    not_retriable: float = 60.0
    """The wait after an error that a retry can't fix: only a change from outside can."""
    taken_cap: float = 3600.0
    """The longest wait after ServerIdTaken, whose waits begin at `not_retriable` and double; also how long the
    destination must be healthy until they begin again from there."""
    floor: float = 0.5
    """The minimum of a wait that an event from outside can end, so that a repeated event makes no busy loop. A shorter
    delay is not extended."""
    observe_again: float = 10.0
    """The wait until observe() is started again after it failed."""

    def delay(self, failures: int, error: HeadraceError) -> float:
        """Returns the wait after the `failures`-th failure for the same reason, with full jitter, so that many
        destinations don't return at once.

        If the source disconnected us because of another replica (ServerIdTaken), each attempt disconnects the other
        one, or is disconnected by it. Two that return at the same pace would do so forever, so our wait grows without
        jitter."""
        power = 2.0 ** min(failures - 1, 30)
        if _reason(error) == _SERVER_ID:
            return min(self.taken_cap, self.not_retriable * power)
        if not error.retriable:
            return self.not_retriable
        return runtime.random().uniform(0, min(self.cap, self.base * power))


def _let_go(error: BaseException | None) -> None:
    """Clears the frames of an error and of its causes: frames and error refer to each other, and to everything that a
    run had. Errors may be each other's causes, so each is visited once."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _reason(error: HeadraceError) -> str:
    """Returns the reason that the failure counts under: an outage of one service must not make the waits for another
    long."""
    return _SERVER_ID if isinstance(error, ServerIdTaken) and error.disconnected else error.reason


class Supervised:
    """The tasks of one destination: run(), again and again, and observe() alongside it."""

    def __init__(
        self, settings: DestinationSettings, handle: DestinationHandle, factory: ActorFactory, policy: RestartPolicy
    ) -> None:
        self.settings, self.handle, self.status = settings, handle, handle.status
        self.failures: Counter[str] = Counter()
        """By reason, since the destination was last healthy for long enough."""
        self.gave_up = False
        """Whether it has ended with an error that this process can't recover from."""
        self._factory, self._policy = factory, policy
        self._actor: Destination | None = None
        self._observer: asyncio.Task[None] | None = None
        self.stop = asyncio.Event()
        """Asks it to drain and stop."""
        self._reported, self._reported_at = "", 0.0
        """The last error that was logged, and when."""
        self._try_now = asyncio.Event()
        self._healthy_since: float | None = None
        self._log = log.bind(destination=settings.name)
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the task, which ends only after `stop`."""
        self.task = asyncio.create_task(self._run(), name=f"destination {self.settings.name}")

    def try_now(self) -> None:
        """Ends a wait for the next attempt: an operator reports that something was fixed. If a failed run still drains,
        the next attempt begins right after it."""
        if not self.status.state.healthy:
            self._try_now.set()

    def forget_failures(self, now: float) -> None:
        """Forgets failures if the destination was healthy for long enough; `now` is on the monotonic clock."""
        if not self.status.state.healthy:
            self._healthy_since = None
            return
        since = self._healthy_since = now if self._healthy_since is None else self._healthy_since
        if now - since >= self._policy.taken_cap:
            self.failures.clear()
        elif now - since >= self._policy.healthy_after:
            self.failures = Counter({_SERVER_ID: taken} if (taken := self.failures[_SERVER_ID]) else {})

    async def _run(self) -> None:
        # For log lines of libraries in tasks that begin in this one.
        structlog.contextvars.bind_contextvars(destination=self.settings.name)
        try:
            while not self.stop.is_set():
                error = await self._attempt()
                if error is None:
                    break
                if self.stop.is_set():
                    self.status.note_error(error)
                    self._log.warning("failed while stopping", error=self.status.last_error)
                    break
                delay = self._note(error)
                _let_go(error)
                gc.collect(1)  # runs that fail in quick succession leave cycles, and the collector runs rarely
                if error.final:
                    self.gave_up = True
                    break
                await self._wait(delay)
        finally:
            self.handle.end()
            await tasks.cancel(self._observer, limit=END_LIMIT)
            if self._actor is not None:
                self._actor.requests.refuse(f"{self.settings.name} is stopped")
            if self.status.state is not State.STOPPED and not self.gave_up:  # the destination's own words are better
                self.status.enter(State.STOPPED)

    async def _attempt(self) -> HeadraceError | None:
        """Runs the destination once. Returns None after a requested stop, else the error that ended it."""
        self._try_now.clear()
        try:
            if self._actor is None:
                self._actor = self._factory(self.settings, self.status)
                self.handle.serve(self._actor, self.stop)
                self._observer = asyncio.create_task(
                    self._observe(self._actor), name=f"observer of {self.settings.name}"
                )
            await self._actor.run(self.stop)
            return None if self.stop.is_set() else HeadraceError("the destination ended without being asked to")
        except HeadraceError as error:
            return error
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            self._log.exception("unexpected cancellation")
            return HeadraceError("an inner task of the destination was cancelled")
        except Exception as error:
            self._log.exception("unexpected error")
            return HeadraceError(
                f"an unexpected error, {type(error).__name__}", remedy="the log has the details; report it"
            )

    def _note(self, error: HeadraceError) -> float:
        """Reports the error in log and status. Returns the seconds to wait."""
        status = self.status
        self.failures[_reason(error)] += 1
        delay = self._policy.delay(self.failures[_reason(error)], error)
        status.fail(error, restarts=True)
        self._report(error, delay)
        return delay

    def _report(self, error: HeadraceError, delay: float) -> None:
        """Logs an error; a repeated one once a minute."""
        now = runtime.monotonic()
        if self.status.last_error == self._reported and now - self._reported_at < _REPORT_AGAIN:
            return
        self._reported, self._reported_at = self.status.last_error, now
        self._log.error(
            "destination failed",
            state=error.state.value,
            error=self.status.last_error,
            failures=self.failures[_reason(error)],
            retry_seconds=round(delay, 3),
        )

    async def _wait(self, delay: float) -> None:
        """Waits for the next attempt: for `delay`, until try_now(), until the destination says that a retry makes
        sense, or until a stop."""
        works: dict[str, tasks.Work] = {"stop": self.stop.wait(), "try now": self._try_now.wait()}
        if self._actor is not None:
            works["changed"] = self._changed(self._actor)
        began = runtime.monotonic()
        await tasks.first(works, limit=delay)
        rest = min(delay, self._policy.floor) - (runtime.monotonic() - began)
        if rest > 0:
            await tasks.set_within(self.stop, rest)

    async def _changed(self, actor: Destination) -> None:
        try:
            why = await actor.changed()
            self._log.info("tries again at once", why=why)
            return
        except Exception as error:
            if not isinstance(error, HeadraceError):
                self._log.exception("unexpected error while waiting")
        await asyncio.Event().wait()  # so the delay alone counts

    async def _observe(self, actor: Destination) -> None:
        """Keeps observe() running: its errors do not affect the destination."""
        while True:
            try:
                await actor.observe()
                self._log.warning("the observer ended without being asked to")
            except HeadraceError as error:
                self._log.warning("the observer failed", error=error.operator_text(self.settings.name))
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                self._log.warning("an inner task of the observer was cancelled")
            except Exception:
                self._log.exception("unexpected error of the observer")
            await asyncio.sleep(self._policy.observe_again)


def _is_cancelled() -> bool:
    """Returns whether the present task was cancelled, and not one that it awaited."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
