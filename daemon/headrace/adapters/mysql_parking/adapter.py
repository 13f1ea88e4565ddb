"""A MySQL table as the parking store, by the section [parking] store = "mysql"."""

from __future__ import annotations

from headrace.adapters.mysql_parking.settings import MySqlParkingSettings
from headrace.ports.parking import ParkingAdapter, ParkingStore


class MySqlParkingAdapter(ParkingAdapter):
    section = MySqlParkingSettings

    def store(self, settings: MySqlParkingSettings, destination: str) -> ParkingStore:
        from headrace.adapters.mysql_parking.store import MySqlParkingStore

        return MySqlParkingStore(settings, destination)
