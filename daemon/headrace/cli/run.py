"""`headrace run`: the daemon itself, from the state store to the last confirmation."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from headrace import __version__
from headrace.cli.common import add_config
from headrace.cli.environment import environment
from headrace.cli.process import begin_process, supervisor_of
from headrace.cli.wiring import ADAPTERS, Wiring, address_of
from headrace.http.facts import Facts, Options
from headrace.native import find
from headrace.settings.destination import Settings
from headrace.settings.load import Loader
from headrace.supervisor.reload import Reloader
from headrace_common import logs
from headrace_common.systemd import Notifier

if TYPE_CHECKING:
    from headrace.supervisor.supervisor import Supervisor
    from headrace.workers.pool import Pool

DESCRIPTION = (
    "Runs all destinations until SIGTERM or SIGINT; then drains what is in flight and exits 0. Files of destinations "
    "that are added, changed or removed are taken over while it runs, at SIGHUP at once."
)

WORKER = (sys.executable, "-P", "-m", "headrace.cli.worker", __version__)
"""Starts a worker process. -P: the working directory holds state, and no modules."""

log = structlog.get_logger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add_config(parser)
    parser.set_defaults(call=lambda settings, given: command(settings, environment(given.env_file)), own_log=True)


async def command(settings: Settings, env: Mapping[str, str]) -> int:
    """Runs the daemon; the exit status. `env` is what files that change are filled in from. Raises HeadraceError when
    the state store or HTTP can't be opened."""
    logs.configure(settings.log.format, settings.log.level)
    log.info(
        "headrace starts",
        version=__version__,
        rows_by=str(find(settings.daemon.native)),
        node=settings.daemon.node,
        destinations=[*settings.destinations],
    )
    reloader = Reloader(settings, Loader(ADAPTERS, env))
    notifier = Notifier.from_env(os.environ)
    if settings.daemon.processes > 1:
        return await _with_workers(settings, reloader, notifier)
    wiring = Wiring(settings)
    supervisor = supervisor_of(settings, wiring, notifier=notifier, reloading=reloader)
    native = begin_process(settings)
    try:
        with supervisor.handling_signals():
            await wiring.open()
            facts = Facts(supervisor.statuses, settings.daemon.node, reloader.errors, wiring.cluster, native)
            return await _run(supervisor, settings, facts)
    finally:
        await wiring.close()


async def _with_workers(settings: Settings, reloader: Reloader, notifier: Notifier) -> int:
    """The destinations run in processes of their own. This one serves HTTP, and looks at the cluster as a command
    does: its workers are the members."""
    from headrace.workers.pool import Pool

    native = find(settings.daemon.native)
    wiring = Wiring(settings, command=True)
    pool = Pool(settings, WORKER, notifier=notifier, reloading=reloader, address=address_of(settings))
    try:
        with pool.handling_signals():
            await wiring.open()
            node, cluster = settings.daemon.node, wiring.cluster
            counts = pool.counts if cluster is not None else None
            facts = Facts(pool.statuses, node, reloader.errors, cluster, str(native), counts, pool.workers)
            return await _run(pool, settings, facts)
    finally:
        await wiring.close()


async def _run(runs: Supervisor | Pool, settings: Settings, facts: Facts) -> int:
    async with _serving(settings, facts):
        return await runs.run()


@asynccontextmanager
async def _serving(settings: Settings, facts: Facts) -> AsyncIterator[None]:
    """Within it HTTP answers, unless it is turned off. Raises HttpError and TokenError."""
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
