"""What every process that runs destinations has alike, be it the daemon or one of its workers."""

from __future__ import annotations

import gc
from typing import Any

import structlog

from headrace.cli.wiring import Wiring
from headrace.destination.destination import Destination
from headrace.destination.status import DestinationStatus
from headrace.native import find
from headrace.settings.destination import DestinationSettings, Settings
from headrace.supervisor.supervisor import Supervisor

log = structlog.get_logger(__name__)


def spare_collector() -> None:
    """Has the cycle collector look less often. Messages in flight are some hundred thousand objects that reference
    counts free; with Python's defaults the looks at them took up to a seventh of the time. A run that has ended may now
    wait for the collector for long, so it lets go of its messages itself."""
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


def begin_process(settings: Settings) -> str:
    """Prepares the process for rows; which native code makes them. Raises what `find` raises."""
    spare_collector()
    native = find(settings.daemon.native)
    log.debug("rows are made by", code=str(native))
    return str(native)


def supervisor_of(settings: Settings, wiring: Wiring, **more: Any) -> Supervisor:
    """A supervisor of the destinations, whose parts come from `wiring`; `more` goes to Supervisor."""

    def actor(destination: DestinationSettings, status: DestinationStatus) -> Destination:
        return Destination(destination, settings.daemon, wiring.parts(destination), status)

    return Supervisor(settings, actor, **more)
