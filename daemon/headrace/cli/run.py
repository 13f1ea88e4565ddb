"""`headrace run`: the daemon itself, from the state store to the last confirmation."""

from __future__ import annotations

import os

import structlog

from headrace import __version__, logs
from headrace.coordination import Coordination
from headrace.destination import Destination
from headrace.http.server import HttpServer
from headrace.reload import Reloader
from headrace.settings import DestinationSettings, Settings
from headrace.status import DestinationStatus
from headrace.supervisor import Supervisor
from headrace.systemd_notify import Notifier

HELP = "run all destinations"
DESCRIPTION = (
    "Runs all destinations until SIGTERM or SIGINT; then drains what is in flight and exits 0. Files of destinations "
    "that are added, changed or removed are taken over while it runs, at SIGHUP at once."
)

log = structlog.get_logger(__name__)


async def command(settings: Settings) -> int:
    """Runs the daemon; the exit status. Raises HeadraceError when the state store or HTTP can't be opened."""
    logs.configure(settings.log)
    log.info("headrace starts", version=__version__, node=settings.daemon.node, destinations=[*settings.destinations])
    coordination = Coordination(settings)

    def actor(destination: DestinationSettings, status: DestinationStatus) -> Destination:
        store, lock = coordination.store(destination), coordination.lock(destination)
        return Destination(destination, settings.daemon, store, lock, status)

    reloader = Reloader(settings, os.environ)
    supervisor = Supervisor(settings, actor, notifier=Notifier.from_env(os.environ), reloading=reloader)
    address = settings.http.address
    server = HttpServer(address, supervisor.statuses, settings.daemon.node, reloader.errors) if address else None
    try:
        await coordination.open()
        if server:
            await server.start()
            log.info("http listens", host=address and address[0], port=server.port)
        return await supervisor.run()
    finally:
        if server:
            await server.close()
        await coordination.close()
