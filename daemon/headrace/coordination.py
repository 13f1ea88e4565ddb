"""What a process shares with other daemons, or keeps for itself: state stores and locks, as [zookeeper] and [state] say."""

from __future__ import annotations

from headrace.errors import ConfigError
from headrace.lease import Lease
from headrace.lock.base import Lock
from headrace.lock.file import FileLock
from headrace.settings import DestinationSettings, Settings
from headrace.sinks.base import Sink
from headrace.sinks.registry import make_sink
from headrace.state.base import StateStore
from headrace.state.sqlite import SqliteStore


class Coordination:
    """Opened once a process. Stores are shared by the destinations that keep their position in the same place."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sqlite: dict[object, SqliteStore] = {}

    async def open(self) -> None:
        """Connects to what all destinations need. Raises LockServiceError or StateStoreError."""
        if self._settings.zookeeper:
            raise ConfigError(["[zookeeper] is not built yet"])

    async def store(self, destination: DestinationSettings) -> StateStore:
        """Where the destination's position is kept, opened. Raises StateStoreError."""
        state = self._settings.state_of(destination)
        store = self._sqlite.setdefault(state.path, SqliteStore(state.path))
        await store.open()
        return store

    def lock(self, destination: DestinationSettings) -> Lock:
        """The destination's lock, not taken."""
        path = self._settings.state_of(destination).path
        return FileLock(path.parent / f"{destination.name}.lock", self._settings.daemon.node)

    async def close(self) -> None:
        """Gives everything back; safe to call twice."""
        for store in self._sqlite.values():
            await store.close()


def open_delivery(destination: DestinationSettings, store: StateStore, lease: Lease) -> tuple[Sink, StateStore]:
    """A new sink, not started, and the store of its run: the shared one, unless the sink keeps the position itself."""
    return make_sink(destination.sink, lease), store
