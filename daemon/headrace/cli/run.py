"""`headrace run`: the daemon itself, from the state store to the last confirmation."""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import structlog

from headrace import __version__
from headrace.cli.common import add_config
from headrace.cli.environment import environment
from headrace.cli.wiring import ADAPTERS, Wiring
from headrace.destination.destination import Destination
from headrace.destination.status import DestinationStatus
from headrace.http.facts import Facts, Options
from headrace.native import find
from headrace.ports.registry import Registry
from headrace.settings.destination import DestinationSettings, Settings
from headrace.settings.load import Loader
from headrace.supervisor.reload import Reloader
from headrace.supervisor.supervisor import Supervisor
from headrace_common import logs
from headrace_common.systemd import Notifier

DESCRIPTION = (
    "Runs all destinations until SIGTERM or SIGINT; then drains what is in flight and exits 0. Files of destinations "
    "that are added, changed or removed are taken over while it runs, at SIGHUP at once."
)

log = structlog.get_logger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add_config(parser)
    parser.set_defaults(call=lambda settings, given: command(settings, environment(given.env_file)), own_log=True)


async def command(settings: Settings, env: Mapping[str, str]) -> int:
    """Runs the daemon; returns the exit status. `env` has the values for files that change. Raises HeadraceError if the
    state store or HTTP can't be opened."""
    logs.configure(settings.log.format, settings.log.level)
    native = str(find(settings.daemon.native))
    log.info(
        "headrace starts",
        version=__version__,
        rows_by=native,
        node=settings.daemon.node,
        destinations=[*settings.destinations],
    )
    daemon = Daemon(settings, Loader(ADAPTERS, env), notifier=Notifier.from_env(os.environ))
    spare_collector()
    try:
        with daemon.supervisor.handling_signals():
            await daemon.wiring.open()
            async with serving(settings, daemon.facts(native)):
                return await daemon.supervisor.run()
    finally:
        await daemon.wiring.close()


class Daemon:
    """The parts of a daemon: all but what the operating system and HTTP give it."""

    def __init__(
        self, settings: Settings, loader: Loader, *, adapters: Registry = ADAPTERS, notifier: Notifier | None = None
    ) -> None:
        self._node = settings.daemon.node
        self.reloader = Reloader(settings, loader)
        self.wiring = wiring = Wiring(settings, adapters)

        def actor(destination: DestinationSettings, status: DestinationStatus) -> Destination:
            return Destination(destination, settings.daemon, wiring.dependencies(destination), status)

        self.supervisor = supervisor = Supervisor(settings, actor, notifier=notifier, reloading=self.reloader)
        wiring.present = lambda: [one.settings for one in supervisor.running.values()]

    def facts(self, native: str) -> Facts:
        """Returns what HTTP shows; `native`: whether native code is used, as a sentence."""
        return Facts(self.supervisor.handles, self._node, self.reloader.errors, self.wiring.cluster, native=native)


def spare_collector() -> None:
    """Makes the cycle collector run less often. Messages in flight are some hundred thousand objects that reference
    counts free; with Python's defaults the collector took up to a seventh of the time. An ended run may wait long for
    the collector, so it drops its messages itself."""
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


@asynccontextmanager
async def serving(settings: Settings, facts: Facts) -> AsyncIterator[None]:
    """Serves HTTP while the context lasts, unless it is turned off. Raises HttpError and TokenError."""
    address, http = settings.http.address, settings.http
    if not address:
        yield
        return
    from headrace.http.server import HttpServer  # a daemon without HTTP needs none of its libraries
    from headrace.http.token import daemon_token

    options = Options(daemon_token(http), http.allow_plain, http.allowed_hosts, http.tls_certificate, http.tls_key)
    server = HttpServer(address, facts, options)
    try:
        await server.start()
        log.info("http listens", host=address[0], port=server.port)
        yield
    finally:
        await server.close()
