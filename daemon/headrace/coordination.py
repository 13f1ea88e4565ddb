"""What a process shares with other daemons, or keeps for itself: state stores and locks, by [zookeeper] and [state]."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import ConfigError
from headrace.kafka.state_topic import StateTopic
from headrace.kafka.transactor import Transactor
from headrace.lease import Lease
from headrace.lock.base import Lock
from headrace.lock.file import FileLock
from headrace.settings import DestinationSettings, KafkaSinkSettings, Settings, StateSettings
from headrace.sinks.base import Sink
from headrace.sinks.kafka_once import ExactlyOnceKafkaSink
from headrace.sinks.registry import make_sink
from headrace.state import sqlite
from headrace.state.base import StateStore
from headrace.state.kafka import KafkaStore
from headrace.state.sqlite import SqliteStore


class Coordination:
    """Opened once a process. Stores are shared by the destinations that keep their position in the same place.

    `command`: for a command of an operator, which is no member of the cluster and makes no store.
    """

    def __init__(self, settings: Settings, *, command: bool = False) -> None:
        self._settings, self._command = settings, command
        self._files: dict[Path, SqliteStore] = {}

    async def open(self) -> None:
        """Connects to what all destinations need. Raises LockServiceError or StateStoreError."""
        if self._settings.zookeeper:
            raise ConfigError(["[zookeeper] is not built yet"])
        if not self._command:
            for destination in self._settings.destinations.values():
                await self.store(destination).open()

    def store(self, destination: DestinationSettings) -> StateStore:
        """Where the destination's position is kept. open() has to be called before it is used, by each user."""
        if kafka := _exactly_once(destination):
            return KafkaStore(kafka, destination.name)
        state = self._state(destination)
        if state.path not in self._files:
            self._files[state.path] = SqliteStore(state.path)
        return self._files[state.path]

    def lock(self, destination: DestinationSettings) -> Lock:
        """The destination's lock, not taken."""
        path = self._state(destination).path
        return FileLock(path.parent / f"{destination.name}.lock", self._settings.daemon.node)

    async def problems(self, destination: DestinationSettings, *, must_exist: bool = False) -> list[str]:
        """What is wrong with the destination's store, a sentence each; nothing is made or changed."""
        if kafka := _exactly_once(destination):
            return await StateTopic(kafka, destination.name).problems(must_exist=must_exist)
        state = self._state(destination)
        if must_exist and not state.path.exists():
            return [
                f"there is no state store {state.path.absolute()}: no daemon has run with this configuration -> run "
                "the command in the daemon's working directory: a relative [state] path counts from there"
            ]
        return sqlite.inspect(state.path)

    def describe(self, destination: DestinationSettings) -> str:
        """The store's name for people."""
        if kafka := _exactly_once(destination):
            return f"the topic {kafka.state_topic}"
        return str(self._state(destination).path)

    async def close(self) -> None:
        """Gives everything back; safe to call twice."""
        for store in self._files.values():
            await store.close()

    def _state(self, destination: DestinationSettings) -> StateSettings:
        return self._settings.state_of(destination)


def open_delivery(destination: DestinationSettings, store: StateStore, lease: Lease) -> tuple[Sink, StateStore]:
    """A new sink, not started, and the store of its run: the shared one, unless the sink keeps the position itself."""
    if kafka := _exactly_once(destination):
        transactor = Transactor(kafka, destination.name, lease)
        return ExactlyOnceKafkaSink(kafka, transactor), KafkaStore(kafka, destination.name, transactor)
    return make_sink(destination.sink, lease), store


def _exactly_once(destination: DestinationSettings) -> KafkaSinkSettings | None:
    """The sink's settings where the sink keeps the position."""
    sink = destination.sink
    return sink if isinstance(sink, KafkaSinkSettings) and destination.exactly_once else None
