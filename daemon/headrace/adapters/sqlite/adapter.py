"""The embedded store as a state store, by the section [state] store = "sqlite"."""

from __future__ import annotations

from headrace.ports.parking import ParkingStore
from headrace.ports.state import StateAdapter, StateStore
from headrace.settings.daemon import StateSettings


class SqliteAdapter(StateAdapter):
    def store(self, settings: StateSettings) -> StateStore:
        from headrace.adapters.sqlite.state import SqliteStore

        return SqliteStore(settings.path)

    def parking(self, store: StateStore, destination: str) -> ParkingStore | None:
        from headrace.adapters.sqlite.parking import SqliteParkingStore
        from headrace.adapters.sqlite.state import SqliteStore

        return SqliteParkingStore(store, destination) if isinstance(store, SqliteStore) else None
