"""What one destination is put together of: made by wiring, which alone knows the adapters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.lease import Lease
from headrace.ports.cluster import Lock
from headrace.ports.format import KeyedFormat, ValueFormat
from headrace.ports.parking import ParkingStore
from headrace.ports.sink import Parking, Sink
from headrace.ports.source import Source
from headrace.ports.state import StateStore


@dataclass(frozen=True, slots=True)
class Parts:
    """The ports of one destination. What is a function makes a new one each time."""

    store: StateStore
    """To be opened before it is used."""
    lock: Lock
    new_source: Callable[[], Source]
    new_format: Callable[[], ValueFormat | KeyedFormat]
    new_sink: Callable[[Lease, Parking | None], Sink]
    probe_sink: Callable[[], Sink]
    """A sink for check() alone, which disturbs no other."""
    leased_store: Callable[[Lease], StateStore]
    """The store for a write between two runs, which is refused once the lease has lapsed."""
    parked: ParkingStore | None = None
    """Where its parked messages are; None when its sink parks none."""
    former_parked: Sequence[ParkingStore] = ()
    """Where messages may wait that nobody looks for any more, because the configuration was another one."""
