"""The daemon over its worker processes: gives each its destinations, takes over new settings, and stops them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import structlog

from headrace.destination.status import DestinationStatus
from headrace.destination.table_totals import TableTotals
from headrace.http.facts import WorkerFacts
from headrace.ports.cluster import ClusterCounts
from headrace.settings.daemon import HttpSettings
from headrace.settings.destination import DestinationSettings, Settings
from headrace.supervisor.reload import Reloader
from headrace.supervisor.service import Service, Wanted
from headrace.supervisor.supervised import END_LIMIT
from headrace.supervisor.supervisor import all_done
from headrace.tasks import cancel, first
from headrace.workers.assignment import assign
from headrace.workers.handle import Handle, Patience, total
from headrace.workers.messages import Begin
from headrace_common.systemd import Notifier

log = structlog.get_logger(__name__)

_GRACE = 3.0
"""Seconds beyond drain_timeout for the last checkpoint and the closing of connections."""
_MARGIN = 2.0
"""Seconds beyond the limits that a worker keeps itself."""
_AGAIN = 10.0
"""Seconds until new settings are looked for again after an unexpected error."""


def share(settings: Settings, destinations: Wanted) -> Settings:
    """What a worker gets: its destinations, its part of what is bounded for all of them together, and no HTTP."""
    daemon = settings.daemon
    parts = {
        "queue_bytes": -(-daemon.queue_bytes // daemon.processes),
        "max_destinations": -(-daemon.max_destinations // daemon.processes),
        "processes": 1,
    }
    return settings.model_copy(
        update={
            "daemon": daemon.model_copy(update=parts),
            "http": HttpSettings(listen="", tables=settings.http.tables),
            "destinations": dict(destinations),
        }
    )


def worker_env() -> dict[str, str]:
    """The environment of a worker, which finds its modules where this process has found its own, and is nobody whom
    systemd listens to."""
    env = {name: value for name, value in os.environ.items() if name not in ("NOTIFY_SOCKET", "WATCHDOG_USEC")}
    env["PYTHONPATH"] = os.pathsep.join(os.path.abspath(part) for part in sys.path)
    return env


class Pool:
    """`statuses` is live: a mirror of each destination's status. A worker is started when it gets its first
    destination; where there are fewer destinations than workers, the last ones never are.

    `command` starts a worker process (see Handle); `address` is where operators find the daemon.
    """

    def __init__(
        self,
        settings: Settings,
        command: Sequence[str],
        *,
        notifier: Notifier | None = None,
        reloading: Reloader | None = None,
        address: str = "",
        patience: Patience | None = None,
        tick: float = 1.0,
    ) -> None:
        self._settings, self._address = settings, address
        self._notifier = notifier or Notifier()
        watchdog = self._notifier.watchdog_seconds
        self._tick = min(tick, watchdog / 3) if watchdog else tick
        self._service = Service(self._notifier, reloading, self._on_stop)
        drain = settings.daemon.drain_timeout + _GRACE + END_LIMIT + _MARGIN
        self._patience = patience or Patience(drain=drain, silence=max(10.0, watchdog / 2))
        self.statuses: dict[str, DestinationStatus] = {}
        self._homes: dict[str, int] = {}
        env = worker_env()
        self._handles = {
            number: Handle(number, command, env, self._begin, self.statuses, self._patience)
            for number in range(1, settings.daemon.processes + 1)
        }
        self._take(settings.destinations)

    def _begin(self, number: int, destinations: Mapping[str, DestinationSettings]) -> Begin:
        node = f"{self._settings.daemon.node}-{number}"
        return Begin(number, node, self._address, share(self._settings, destinations))

    def workers(self) -> list[WorkerFacts]:
        """Those that were ever started."""
        return [handle.facts() for handle in self._handles.values() if handle.task is not None]

    def counts(self) -> ClusterCounts:
        """What all workers have come to with the cluster service, as far as they have said."""
        return total(self._settings.service, [one for handle in self._handles.values() for one in handle.counts])

    def request_stop(self) -> None:
        """The first call asks every worker to drain and stop, the second ends them at once."""
        self._service.request_stop()

    def handling_signals(self) -> AbstractContextManager[None]:
        """Within it a signal ends what run() does, or will do: also one that comes before it is called."""
        return self._service.handling_signals()

    def _on_stop(self) -> None:
        for handle in self._handles.values():
            if self._service.now.is_set():
                handle.stop_now()
            else:
                handle.stop()

    async def run(self) -> int:
        """Runs the workers until `request_stop`, which a signal calls too; the process's exit status, 1 after a second
        request. All of them have ended when this returns or raises."""
        telling = asyncio.create_task(self._watch(), name="workers")
        reload = asyncio.create_task(self._service.reload(self, again=_AGAIN), name="reload")
        self._start()
        try:
            await self._service.stop.wait()
            self._notifier.stopping()
            await cancel(reload)  # from here on nothing is started any more
            return await self._drain()
        finally:
            await cancel(reload, telling, *(handle.task for handle in self._handles.values()))

    async def _drain(self) -> int:
        running = {number: one.task for number, one in self._handles.items() if one.task and not one.task.done()}
        tasks, now = [*running.values()], self._service.now
        await first({"drain": all_done(tasks), "second signal": now.wait()}, limit=self._patience.drain)
        if now.is_set():
            await asyncio.wait(tasks, timeout=END_LIMIT) if tasks else None
        late = [number for number, task in running.items() if not task.done()]
        if late:
            log.warning("not drained; what is unconfirmed is sent again at the next start", workers=late)
            await cancel(*tasks)  # which kills them
        else:
            log.info("stopped")
        return 1 if now.is_set() else 0

    def _start(self) -> None:
        """Starts the workers that have something to run and were not started before."""
        for handle in self._handles.values():
            if handle.wanted and handle.task is None:
                handle.start()

    @property
    def settings_now(self) -> Wanted:
        """The settings of the destinations that the workers run."""
        return {name: one for handle in self._handles.values() for name, one in handle.wanted.items()}

    def try_now(self) -> None:
        """Ends the waits of workers and destinations."""
        for handle in self._handles.values():
            handle.try_now()

    def _take(self, wanted: Wanted) -> None:
        """Gives each worker what it is to run."""
        self._homes = assign(wanted, self._homes, len(self._handles))
        for number, handle in self._handles.items():
            handle.wanted = {name: one for name, one in wanted.items() if self._homes[name] == number}
        for name in wanted:
            tables = TableTotals(self._settings.http.tables)
            self.statuses.setdefault(name, DestinationStatus(name, tables=tables))

    async def apply(self, wanted: Wanted) -> None:
        """Has exactly `wanted` run. All that are to end, in whichever worker, have ended before the first new one
        starts: a server id or a topic may pass from one to another. Those that are equal go on untouched."""
        now = self.settings_now
        ending = {name for name, one in now.items() if wanted.get(name) != one}
        gone = self.statuses.keys() - wanted.keys()
        if not gone and now == wanted:
            return
        log.info(
            "the destinations change",
            added=sorted(wanted.keys() - self.statuses.keys()),
            changed=sorted(ending - gone),
            removed=sorted(gone),
        )
        ends = []
        for handle in self._handles.values():
            names = ending & handle.wanted.keys()
            handle.wanted = {name: one for name, one in handle.wanted.items() if name not in names}
            ends.append(handle.end(names))
        await asyncio.gather(*ends)
        for name in gone:
            del self.statuses[name]
        self._take(wanted)
        await asyncio.gather(*(handle.apply() for handle in self._handles.values() if handle.task is not None))
        self._start()
        if not wanted:
            log.warning("no destination is left; the daemon waits for one")

    async def _watch(self) -> None:
        """Every tick: tells systemd."""
        while True:
            try:
                self.observe()
            except Exception:
                log.exception("unexpected error while looking at the workers")
            await asyncio.sleep(self._tick)

    def observe(self) -> None:
        """Looks at all workers once."""
        self._notifier.watchdog()
        if not self._service.stop.is_set():
            self._service.tell(self.statuses)
