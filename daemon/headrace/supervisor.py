"""Runs the destinations, each for itself: restarts what fails, stops all in order, tells systemd how it goes."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from headrace.errors import ConfigError, Fenced, HeadraceError, SinkError, SourceError, StateStoreError
from headrace.model import State
from headrace.settings import DestinationSettings, Settings
from headrace.status import DestinationStatus
from headrace.systemd_notify import Notifier

log = structlog.get_logger(__name__)


class Actor(Protocol):
    """What runs one destination; `headrace.destination.Destination` is the real one."""

    async def run(self, stop: asyncio.Event) -> None:
        """Returns after a drained stop, asked for by `stop`; raises HeadraceError otherwise. May be called again."""

    async def observe(self) -> None:
        """Looks after what matters also while run() fails and waits; until it is cancelled."""

    async def changed(self) -> None:
        """Between two runs: returns as soon as somebody outside did what makes another attempt worth while at once."""


ActorFactory = Callable[[DestinationSettings, DestinationStatus], Actor]


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a failed destination starts again; all in seconds."""

    base: float = 1.0
    """The longest wait after the first failure; doubled by each one after it."""
    cap: float = 60.0
    """The longest wait of all."""
    healthy_after: float = 60.0
    """After this long in healthy states without a break the failures are forgotten."""
    not_retriable: float = 60.0
    """The wait after an error that trying again can't mend: only somebody's change outside can."""

    def delay(self, failures: int, error: HeadraceError) -> float:
        """The wait after the `failures`-th failure in a row, with full jitter, so that many don't come back at once."""
        if not error.retriable:
            return self.not_retriable
        return random.uniform(0, min(self.cap, self.base * 2 ** min(failures - 1, 30)))


class Supervisor:
    """The root of all destinations' tasks. `statuses` is live from the start, for health and metrics."""

    def __init__(
        self,
        settings: Settings,
        actor_factory: ActorFactory,
        *,
        notifier: Notifier | None = None,
        policy: RestartPolicy | None = None,
        tick: float = 1.0,
        grace: float = 3.0,
    ) -> None:
        self._settings = settings
        self._factory = actor_factory
        self._notifier = notifier or Notifier()
        self._policy = policy or RestartPolicy()
        watchdog = self._notifier.watchdog_seconds
        self._tick = min(tick, watchdog / 3) if watchdog else tick
        # Beyond drain_timeout, which the actors keep themselves: the last checkpoint and the closing of connections.
        self._grace = grace
        self._stop = asyncio.Event()
        self._now = asyncio.Event()
        self._ready = False
        self._failures = dict.fromkeys(settings.destinations, 0)
        self._healthy_since: dict[str, float] = {}
        self.statuses = {name: DestinationStatus(name) for name in settings.destinations}

    def request_stop(self) -> None:
        """The first call asks every destination to drain and stop, the second ends them at once."""
        if self._stop.is_set():
            self._now.set()
        self._stop.set()

    async def run(self, *, signals: bool = True) -> int:
        """Runs all destinations until SIGTERM, SIGINT or `request_stop`; the process's exit status.

        0 after a stop, drained or cut at the limit; 1 when a second signal ended it at once.
        """
        loop = asyncio.get_running_loop()
        if signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._on_signal, number)
        beat = asyncio.create_task(self._beat(), name="supervisor")
        tasks = [
            asyncio.create_task(self._supervise(destination), name=f"destination {name}")
            for name, destination in self._settings.destinations.items()
        ]
        try:
            await self._stop.wait()
            self._notifier.stopping()
            return await self._drain(tasks)
        finally:
            await _cancel([*tasks, beat])
            if signals:
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        again = self._stop.is_set()
        log.info("signal", signal=number.name, meaning="stop at once" if again else "drain and stop")
        self.request_stop()

    async def _drain(self, tasks: list[asyncio.Task[None]]) -> int:
        now = asyncio.create_task(self._now.wait(), name="second signal")
        drained = asyncio.create_task(_all_done(tasks), name="drain")
        limit = self._settings.daemon.drain_timeout + self._grace
        await asyncio.wait({now, drained}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        await _cancel([now, drained])
        late = [task.get_name() for task in tasks if not task.done()]
        if not late:
            log.info("stopped")
            return 0
        log.warning("not drained; what is unconfirmed is sent again at the next start", late=late)
        await _cancel(tasks)
        return 1 if self._now.is_set() else 0

    async def _supervise(self, settings: DestinationSettings) -> None:
        """One destination: runs its actor, again and again, until a stop is asked for."""
        name = settings.name
        status = self.statuses[name]
        bound = log.bind(destination=name)
        actor: Actor | None = None
        try:
            while not self._stop.is_set():
                try:
                    actor = actor or self._factory(settings, status)
                    await actor.run(self._stop)
                    if self._stop.is_set():
                        break
                    error = HeadraceError("the destination ended without being asked to")
                except HeadraceError as caught:
                    error = caught
                    if self._stop.is_set():
                        bound.warning("failed while stopping", error=str(error))
                        status.failed(str(error))
                        break
                except asyncio.CancelledError:
                    if (task := asyncio.current_task()) is None or task.cancelling():
                        raise
                    error = HeadraceError("an inner task of the destination was cancelled")
                    bound.exception("unexpected cancellation")
                except Exception as caught:
                    error = HeadraceError(
                        f"an unexpected error, {type(caught).__name__}", remedy="the log has the details; report it"
                    )
                    bound.exception("unexpected error")
                await self._wait(status, error)
        finally:
            if status.state is not State.STOPPED:  # the actor's own words are better
                status.enter(State.STOPPED)

    async def _wait(self, status: DestinationStatus, error: HeadraceError) -> None:
        """Notes the error and waits for the next attempt, or for the stop."""
        self._failures[status.name] += 1
        delay = self._policy.delay(self._failures[status.name], error)
        status.failed(str(error))
        status.enter(error.state, _reason(error), str(error))
        status.restarts += 1
        log.error(
            "destination failed",
            destination=status.name,
            state=error.state.value,
            error=str(error),
            failures=self._failures[status.name],
            retry_seconds=round(delay, 3),
        )
        try:
            await asyncio.wait_for(self._stop.wait(), delay)
        except TimeoutError:
            return

    async def _beat(self) -> None:
        """Every tick: forgives destinations that are well, and tells systemd."""
        while True:
            self.observe(time.monotonic())
            await asyncio.sleep(self._tick)

    def observe(self, now: float) -> None:
        """Looks at all states once; `now` is on the monotonic clock."""
        self._notifier.watchdog()
        counts: dict[str, int] = {}
        for name, status in self.statuses.items():
            counts[status.state.value] = counts.get(status.state.value, 0) + 1
            if not status.state.healthy:
                self._healthy_since.pop(name, None)
            elif now - self._healthy_since.setdefault(name, now) >= self._policy.healthy_after:
                self._failures[name] = 0
        if self._stop.is_set():
            return
        self._notifier.status(", ".join(f"{count} {state}" for state, count in sorted(counts.items())))
        if not self._ready and any(status.state.healthy for status in self.statuses.values()):
            self._ready = True
            self._notifier.ready()
            log.info("ready", destinations=counts)


async def _all_done(tasks: list[asyncio.Task[None]]) -> bool:
    """Ends when all do; being cancelled does not touch them."""
    await asyncio.wait(tasks)
    return True


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels what still runs and waits a moment; a task that ignores it ends with the process."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=5.0)


def _reason(error: HeadraceError) -> str:
    """One word for a monitor."""
    kinds: tuple[tuple[type[HeadraceError], str], ...] = (
        (SourceError, "source"),
        (SinkError, "sink"),
        (StateStoreError, "state"),
        (Fenced, "fenced"),
        (ConfigError, "config"),
    )
    return next((word for kind, word in kinds if isinstance(error, kind)), "error")
