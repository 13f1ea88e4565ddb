"""The dependencies of one destination, and the context that its components share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from headrace.destination.status import DestinationStatus
from headrace.lease import Lease
from headrace.pipeline.process_budget import NO_BUDGET, ProcessBudget
from headrace.ports.archive import ArchiveUse
from headrace.ports.format import KeyedFormat, ValueFormat
from headrace.ports.lock import Lock
from headrace.ports.parking import ParkingStore
from headrace.ports.sink import Parking, Sink, TopicEnds
from headrace.ports.source import Source
from headrace.ports.state import StateStore
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings


@dataclass(frozen=True, slots=True)
class Context:
    """One destination's configuration and its live facts."""

    settings: DestinationSettings
    daemon: DaemonSettings
    status: DestinationStatus

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def log(self) -> Any:
        """Returns a logger whose lines name the destination."""
        return structlog.get_logger("headrace.destination").bind(destination=self.name)


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The ports of one destination, made by wiring, which alone knows the adapters. Functions make a new object each
    time."""

    store: StateStore
    """Must be opened before it is used."""
    lock: Lock
    new_source: Callable[[], Source]
    new_format: Callable[[], ValueFormat | KeyedFormat]
    new_sink: Callable[[Lease, Parking | None], Sink]
    probe_sink: Callable[[], Sink]
    """Returns a sink for check() only, which disturbs no other."""
    leased_store: Callable[[Lease], StateStore]
    """Returns the store for a write between two runs, which is refused once the lease has lapsed."""
    parked: ParkingStore | None = None
    """Its parked messages; None if its sink parks none."""
    former_parked: Sequence[ParkingStore] = ()
    """Stores of former configurations, which may still have messages that nothing sends."""
    budget: ProcessBudget = NO_BUDGET
    """The budget that the queues of all destinations share."""
    ends: TopicEnds = field(default_factory=TopicEnds)
    """The last offsets of its topics, as its sinks find them."""
    archive: ArchiveUse | None = None
    """For the archive of its source; None without one."""
