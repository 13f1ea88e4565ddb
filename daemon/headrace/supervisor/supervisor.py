"""Runs the destinations independently: starts and stops them, also while running, and reports to systemd."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import Iterator, Mapping

import structlog

from headrace import runtime
from headrace.destination.facts import TableTotals
from headrace.destination.handle import DestinationHandle
from headrace.destination.status import DestinationStatus
from headrace.settings.destination import DestinationSettings, Settings
from headrace.supervisor.reload import Reloader
from headrace.supervisor.supervised import END_LIMIT, ActorFactory, RestartPolicy, Supervised
from headrace.tasks import cancel, first
from headrace_common.systemd import Notifier

log = structlog.get_logger(__name__)


Wanted = Mapping[str, DestinationSettings]


class Supervisor:
    """The root of all destinations' tasks. `handles` is live from the start, for HTTP."""

    def __init__(
        self,
        settings: Settings,
        actor_factory: ActorFactory,
        *,
        notifier: Notifier | None = None,
        policy: RestartPolicy | None = None,
        reloading: Reloader | None = None,
        tick: float = 1.0,
        grace: float = 3.0,
    ) -> None:
        self._settings = settings
        self._factory = actor_factory
        self._notifier = notifier or Notifier()
        self._policy = policy or RestartPolicy()
        watchdog = self._notifier.watchdog_seconds
        self._tick = min(tick, watchdog / 3) if watchdog else tick
        # Added to drain_timeout, which the destinations keep themselves, for the last checkpoint and the closing of
        # connections.
        self._grace = grace
        self._reloading = reloading
        self._stop, self._now, self._hangup = asyncio.Event(), asyncio.Event(), asyncio.Event()
        """Set at the first signal that ends the process, at the second, and at SIGHUP."""
        self._ready = False
        """Whether systemd was notified that the start is complete."""
        self.handles: dict[str, DestinationHandle] = {}
        self.running: dict[str, Supervised] = {}
        for destination in settings.destinations.values():
            self._add(destination)

    def _add(self, settings: DestinationSettings) -> Supervised:
        name, tables = settings.name, TableTotals(self._settings.http.tables)
        handle = self.handles.setdefault(name, DestinationHandle(DestinationStatus(name, tables)))
        handle.status.begin_again()
        made = self.running[name] = Supervised(settings, handle, self._factory, self._policy)
        return made

    def request_stop(self) -> None:
        """Asks every destination to drain and stop; a second call ends them at once."""
        if self._stop.is_set():
            self._now.set()
        self._stop.set()
        for one in self.running.values():
            one.stop.set()

    @contextlib.contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Handles signals within the context: SIGTERM and SIGINT request a stop, also before run() is called, and
        SIGHUP new settings."""
        loop = asyncio.get_running_loop()
        handled = [signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if self._reloading else [])]
        for number in handled:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGHUP:
            log.info("signal", signal=number.name, meaning="read the configuration again")
            self._hangup.set()
            return
        again = self._stop.is_set()
        log.info("signal", signal=number.name, meaning="stop at once" if again else "drain and stop")
        self.request_stop()

    async def run(self) -> int:
        """Runs all destinations until `request_stop`, which a signal calls too (see handling_signals). Returns the
        process's exit status.

        It is 0 after a stop, drained or ended at the limit; 1 if a second request ended it at once, or if all
        destinations have ended with errors that need a new process."""
        heartbeat = asyncio.create_task(self._heartbeat(), name="supervisor")
        reload = asyncio.create_task(self._reload(), name="reload")
        for one in self.running.values():
            one.start()
        try:
            await self._stop.wait()
            self._notifier.stopping()
            await cancel(reload)  # from here on nothing is started any more
            return await self._drain()
        finally:
            await cancel(reload, *(one.task for one in self.running.values()), heartbeat, limit=END_LIMIT)

    async def _drain(self) -> int:
        tasks = [one.task for one in self.running.values() if one.task]
        await first({"drain": all_done(tasks), "second signal": self._now.wait()}, limit=self._limit)
        late = [task.get_name() for task in tasks if not task.done()]
        if not late:
            log.info("stopped")
            return int(bool(self.running) and all(one.gave_up for one in self.running.values()))
        log.warning("not drained; what is unconfirmed is sent again at the next start", late=late)
        await cancel(*tasks, limit=END_LIMIT)
        return 1 if self._now.is_set() else 0

    @property
    def _limit(self) -> float:
        """Returns the seconds that a destination has to drain and close."""
        return self._settings.daemon.drain_timeout + self._grace

    # -- new settings ---------------------------------------------------------------------------------------------

    async def _reload(self) -> None:
        """Applies new settings, when the files change and at SIGHUP, one change at a time, until cancelled."""
        reloading = self._reloading
        if reloading is None:
            return
        while True:
            try:
                await first({"watch the configuration": reloading.watch(), "SIGHUP": self._hangup.wait()})
                asked = self._hangup.is_set()
                self._hangup.clear()
                if asked and self._ready:  # before that, systemd would take the READY below for the end of the start
                    self._notifier.reloading()
                now = {name: one.settings for name, one in self.running.items()}
                await self.apply(await reloading.read(now, everything=asked))
                if asked:
                    for one in self.running.values():
                        one.try_now()
            except Exception:
                log.exception("unexpected error while taking over the configuration; nothing is changed")
                await asyncio.sleep(self._policy.observe_again)
            if self._ready:
                self._notifier.ready()

    async def apply(self, wanted: Wanted) -> None:
        """Stops, starts and replaces destinations so that exactly `wanted` run; unchanged ones are not touched.

        All destinations that must end have ended before the first new one starts: a server id or a topic may pass from
        one to another. If cancelled in the middle, it starts nothing, and stops that were requested continue."""
        old = {name: one for name, one in self.running.items() if one.stop.is_set() or wanted.get(name) != one.settings}
        new = [settings for name, settings in wanted.items() if name in old or name not in self.running]
        changed = sorted(settings.name for settings in new if settings.name in self.handles)
        gone = self.handles.keys() - wanted.keys()
        if not old and not new and not gone:
            return
        log.info(
            "the destinations change",
            added=sorted(settings.name for settings in new if settings.name not in self.handles),
            changed=changed,
            removed=sorted(gone),
        )
        for one in old.values():
            one.stop.set()
        await asyncio.gather(*(self._end(one) for one in old.values()))
        for name in old:
            del self.running[name]
        for name in gone:
            del self.handles[name]
        for settings in new:
            self._add(settings).start()
        if not self.running:
            log.warning("no destination is left; the daemon waits for one")

    async def _end(self, one: Supervised) -> None:
        """Waits until a destination has drained, and ends it at the limit."""
        if one.task is None:
            return
        done, _ = await asyncio.wait([one.task], timeout=self._limit)
        if not done:
            log.warning("not drained; what is unconfirmed is sent again", destination=one.settings.name)
            await cancel(one.task, limit=END_LIMIT)

    async def _heartbeat(self) -> None:
        """Forgets failures of healthy destinations, and notifies systemd, at every tick."""
        while True:
            self.observe(runtime.monotonic())
            await asyncio.sleep(self._tick)

    def observe(self, now: float) -> None:
        """Reads all states once; `now` is on the monotonic clock."""
        self._notifier.watchdog()
        for one in self.running.values():
            one.forget_failures(now)
        if self._stop.is_set():
            return
        if self.running and all(one.gave_up for one in self.running.values()):
            log.error("no destination can go on in this process, so it ends")
            self.request_stop()
        counts = Counter(handle.status.state.value for handle in self.handles.values())
        self._notifier.status(", ".join(f"{count} {state}" for state, count in sorted(counts.items())))
        if not self._ready:  # the daemon is up; a source may be unavailable for hours: the start must not wait
            self._ready = True
            self._notifier.ready()
            log.info("ready", destinations=dict(counts))


async def all_done(tasks: list[asyncio.Task[None]]) -> bool:
    """Waits until all tasks end; cancelling it does not cancel them."""
    if tasks:
        await asyncio.wait(tasks)
    return True
