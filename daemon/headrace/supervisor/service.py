"""The process as its operator and systemd see it: signals, new settings, and what systemd is told."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import structlog

from headrace.destination.handle import DestinationHandle
from headrace.settings.destination import DestinationSettings
from headrace.supervisor.reload import Reloader
from headrace.tasks import first
from headrace_common.systemd import Notifier

log = structlog.get_logger(__name__)

Wanted = Mapping[str, DestinationSettings]


class Target(Protocol):
    """What runs the destinations, as far as new settings are concerned."""

    @property
    def settings_now(self) -> Wanted:
        """The settings of the destinations that run."""

    async def apply(self, wanted: Wanted) -> None:
        """Has exactly these destinations run."""

    def try_now(self) -> None:
        """Has each destination that waits for its next attempt make it at once."""


class Service:
    """`stop` is set at the first signal that ends the process, `now` at the second. `on_stop` is called at each."""

    def __init__(self, notifier: Notifier, reloading: Reloader | None, on_stop: Callable[[], None]) -> None:
        self.notifier, self._reloading, self._on_stop = notifier, reloading, on_stop
        self.stop, self.now, self._hangup = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._ready = False

    def request_stop(self) -> None:
        """The first call asks for a stop in order, the second for the end at once."""
        if self.stop.is_set():
            self.now.set()
        self.stop.set()
        self._on_stop()

    @contextlib.contextmanager
    def handling_signals(self) -> Iterator[None]:
        """Within it SIGTERM and SIGINT request a stop, and SIGHUP new settings."""
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
        again = self.stop.is_set()
        log.info("signal", signal=number.name, meaning="stop at once" if again else "drain and stop")
        self.request_stop()

    async def reload(self, target: Target, *, again: float) -> None:
        """Takes over new settings, when the files change and at SIGHUP, one change at a time, until cancelled. After an
        unexpected error it goes on in `again` seconds."""
        reloading = self._reloading
        if reloading is None:
            return
        while True:
            try:
                asked = await self._asked(reloading)
                if asked and self._ready:  # before that systemd would take the READY below for the end of the start
                    self.notifier.reloading()
                await target.apply(await reloading.read(target.settings_now, everything=asked))
                if asked:
                    target.try_now()
            except Exception:
                log.exception("unexpected error while taking over the configuration; nothing is changed")
                await asyncio.sleep(again)
            if self._ready:
                self.notifier.ready()

    async def _asked(self, reloading: Reloader) -> bool:
        """Waits for a change of the files or a SIGHUP; whether it was the latter."""
        await first({"watch the configuration": reloading.watch(), "SIGHUP": self._hangup.wait()})
        asked = self._hangup.is_set()
        self._hangup.clear()
        return asked

    def tell(self, handles: Iterable[DestinationHandle]) -> None:
        """Tells systemd how many destinations are in which state, and at first that the start is complete."""
        counts: dict[str, int] = {}
        for handle in handles:
            state = handle.status.state.value
            counts[state] = counts.get(state, 0) + 1
        self.notifier.status(", ".join(f"{count} {state}" for state, count in sorted(counts.items())))
        if not self._ready:  # the daemon is up; one of its sources may be away for hours, and nobody is to wait for it
            self._ready = True
            self.notifier.ready()
            log.info("ready", destinations=counts)
