"""A MySQL table as the parking store, by the section [failed] store = "mysql"."""

from __future__ import annotations

from headrace.adapters.mysql_parking.settings import MySqlParkingSettings
from headrace.ports.parking import FailedStore, ParkingAdapter


class MySqlParkingAdapter(ParkingAdapter):
    section = MySqlParkingSettings

    def store(self, settings: MySqlParkingSettings, destination: str) -> FailedStore:
        from headrace.adapters.mysql_parking.store import MySqlFailedStore

        return MySqlFailedStore(settings, destination)
