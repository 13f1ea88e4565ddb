"""Runs the destinations, each for itself: starts and stops them, also while running, and tells systemd how it goes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator, Mapping

import structlog

from headrace.destination.status import DestinationStatus
from headrace.destination.table_totals import TableTotals
from headrace.settings.destination import DestinationSettings, Settings
from headrace.supervisor.reload import Reloader
from headrace.supervisor.supervised import END_LIMIT, ActorFactory, RestartPolicy, Supervised
from headrace.tasks import cancel, first
from headrace_common.systemd import Notifier

log = structlog.get_logger(__name__)

Wanted = Mapping[str, DestinationSettings]


class Supervisor:
    """The root of all destinations' tasks. `statuses` is live from the start, for health and metrics."""

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
        self._reloading = reloading
        watchdog = self._notifier.watchdog_seconds
        self._tick = min(tick, watchdog / 3) if watchdog else tick
        # Beyond drain_timeout, which the actors keep themselves: the last checkpoint and the closing of connections.
        self._grace = grace
        self._stop = asyncio.Event()
        self._now = asyncio.Event()
        self._hangup = asyncio.Event()
        self._ready = False
        self.statuses: dict[str, DestinationStatus] = {}
        self.running: dict[str, Supervised] = {}
        for destination in settings.destinations.values():
            self._add(destination)

    def _add(self, settings: DestinationSettings) -> Supervised:
        tables = TableTotals(self._settings.http.tables)
        status = self.statuses.setdefault(settings.name, DestinationStatus(settings.name, tables=tables))
        status.begin_anew()
        made = self.running[settings.name] = Supervised(settings, status, self._factory, self._policy)
        return made

    def request_stop(self) -> None:
        """The first call asks every destination to drain and stop, the second ends them at once."""
        if self._stop.is_set():
            self._now.set()
        self._stop.set()
        for one in self.running.values():
            one.stop.set()

    async def run(self, *, signals: bool = True) -> int:
        """Runs all destinations until SIGTERM, SIGINT or `request_stop`; the process's exit status.

        0 after a stop, drained or cut at the limit; 1 when a second signal ended it at once, or when all destinations
        have ended with errors that only another process can get over. SIGHUP reads the configuration again.
        """
        with self.handling_signals() if signals else contextlib.nullcontext():
            return await self._run()

    @contextlib.contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Within it a signal ends what run() does, or will do: also one that comes before it is called."""
        loop = asyncio.get_running_loop()
        handled = [signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if self._reloading else [])]
        for number in handled:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    async def _run(self) -> int:
        heartbeat = asyncio.create_task(self._heartbeat(), name="supervisor")
        reload = asyncio.create_task(self._reload(self._reloading), name="reload") if self._reloading else None
        for one in self.running.values():
            one.start()
        try:
            await self._stop.wait()
            self._notifier.stopping()
            await cancel(reload)  # from here on nothing is started any more
            return await self._drain()
        finally:
            await cancel(reload, *(one.task for one in self.running.values()), heartbeat, limit=END_LIMIT)

    def _on_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGHUP:
            log.info("signal", signal=number.name, meaning="read the configuration again")
            self._hangup.set()
            return
        again = self._stop.is_set()
        log.info("signal", signal=number.name, meaning="stop at once" if again else "drain and stop")
        self.request_stop()

    async def _drain(self) -> int:
        tasks = [one.task for one in self.running.values() if one.task]
        await first({"drain": _all_done(tasks), "second signal": self._now.wait()}, limit=self._limit)
        late = [task.get_name() for task in tasks if not task.done()]
        if not late:
            log.info("stopped")
            return int(bool(self.running) and all(one.gave_up for one in self.running.values()))
        log.warning("not drained; what is unconfirmed is sent again at the next start", late=late)
        await cancel(*tasks, limit=END_LIMIT)
        return 1 if self._now.is_set() else 0

    @property
    def _limit(self) -> float:
        """Seconds that a destination has to drain and close."""
        return self._settings.daemon.drain_timeout + self._grace

    async def _reload(self, reloading: Reloader) -> None:
        """Takes over new settings, when the files change and at SIGHUP; one change at a time."""
        while True:
            try:
                asked = await self._asked(reloading)
                if asked and self._ready:  # before that systemd would take the READY below for the end of the start
                    self._notifier.reloading()
                running = {name: one.settings for name, one in self.running.items()}
                await self.apply(await reloading.read(running, everything=asked))
                if asked:
                    for one in self.running.values():
                        one.try_now()
            except Exception:
                log.exception("unexpected error while taking over the configuration; nothing is changed")
                await asyncio.sleep(self._policy.observe_again)
            if self._ready:
                self._notifier.ready()

    async def _asked(self, reloading: Reloader) -> bool:
        """Waits for a change of the files or a SIGHUP; whether it was the latter."""
        await first({"watch the configuration": reloading.watch(), "SIGHUP": self._hangup.wait()})
        asked = self._hangup.is_set()
        self._hangup.clear()
        return asked

    async def apply(self, wanted: Wanted) -> None:
        """Stops, starts and replaces destinations so that exactly `wanted` run; those that are equal go on untouched.

        All that are to end have ended before the first new one starts: a server id or a topic may pass from one to
        another. Cancelled in the middle it starts nothing, and what was told to stop goes on stopping.
        """
        old = {name: one for name, one in self.running.items() if one.stop.is_set() or wanted.get(name) != one.settings}
        new = [settings for name, settings in wanted.items() if name in old or name not in self.running]
        changed = sorted(settings.name for settings in new if settings.name in old)
        if not old and not new:
            return
        log.info(
            "the destinations change",
            added=sorted(settings.name for settings in new if settings.name not in old),
            changed=changed,
            removed=sorted(old.keys() - set(changed)),
        )
        for one in old.values():
            one.stop.set()
        await asyncio.gather(*(self._end(one) for one in old.values()))
        for name in old:
            del self.running[name]
            if name not in wanted:
                del self.statuses[name]
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
        """Every tick: forgives destinations that are well, and tells systemd."""
        while True:
            self.observe(time.monotonic())
            await asyncio.sleep(self._tick)

    def observe(self, now: float) -> None:
        """Looks at all states once; `now` is on the monotonic clock."""
        self._notifier.watchdog()
        for one in self.running.values():
            one.look(now)
        if self._stop.is_set():
            return
        if self.running and all(one.gave_up for one in self.running.values()):
            log.error("no destination can go on in this process, so it ends")
            self.request_stop()
        counts: dict[str, int] = {}
        for status in self.statuses.values():
            counts[status.state.value] = counts.get(status.state.value, 0) + 1
        self._notifier.status(", ".join(f"{count} {state}" for state, count in sorted(counts.items())))
        if not self._ready:  # the daemon is up; one of its sources may be away for hours, and nobody is to wait for it
            self._ready = True
            self._notifier.ready()
            log.info("ready", destinations=counts)


async def _all_done(tasks: list[asyncio.Task[None]]) -> bool:
    """Ends when all do; being cancelled does not touch them."""
    if tasks:
        await asyncio.wait(tasks)
    return True
