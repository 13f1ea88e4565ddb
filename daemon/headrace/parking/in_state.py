"""Parked messages in the destination's state store, by the section [parking] store = "state", which is the default."""

from __future__ import annotations

from headrace.ports.parking import ParkingAdapter, ParkingStore
from headrace.settings.parking import ParkingSettings


class StateParkingAdapter(ParkingAdapter):
    """The store itself comes from the state store."""

    section = ParkingSettings

    def store(self, settings: ParkingSettings, destination: str) -> ParkingStore:
        raise LookupError('store = "state" is no store of its own')
