"""The state store of exactly-once destinations: positions in a compacted topic, in the same transactions as the
messages."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from headrace import runtime
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.state_records import Content
from headrace.adapters.kafka.state_topic import StateTopic
from headrace.adapters.kafka.transactor import Transactor
from headrace.errors import Fenced, SinkError, StateStoreError
from headrace.lease import Lease, Term
from headrace.ports.state import NO_TERM, Guard, HistoryEntry, StateChange, StateStore, Stored
from headrace.ports.state_records import Head


def _owner() -> str:
    """Returns what distinguishes this process's epochs from those of others with the same number."""
    return f"{runtime.process_number():016x}"


class KafkaStore(StateStore):
    """The state of one destination.

    With the `transactor` of a run, whose sink has started it, everything is read after InitProducerId and written
    through it. Without one, what is committed by now is read, and each write starts its own producer: that fences a
    daemon which is still writing, so the lock must be held. Such writes check `lease`."""

    def __init__(
        self,
        settings: KafkaSinkSettings,
        destination: str,
        transactor: Transactor | None = None,
        *,
        lease: Lease | None = None,
    ) -> None:
        self._settings, self._destination, self._transactor = settings, destination, transactor
        self._lease = lease or Lease()
        self._topic = StateTopic(settings, destination)
        self._content: Content | None = None
        """The result of load(), until the epoch begins."""

    async def load(self, destination: str) -> Stored:
        self._check_name(destination)
        if self._transactor is not None:
            self._content = await self._transactor.read()
            head = self._transactor.head
        else:
            head = (await self._topic.read(settled=False)).head
        return Stored(head.position, head.epoch, head.version, head.last_pos)

    async def begin_epoch(self, destination: str, *, above: int = 0, term: Term = NO_TERM) -> Guard:
        """Begins an epoch. The term's epoch may equal the stored one if this process stored it."""
        self._check_name(destination)

        def choose(head: Head) -> int:
            known, ours = max(head.epoch, above), head.owner == _owner() and head.epoch == term.epoch
            if not term.epoch:
                return known + 1
            if term.epoch > known or (ours and term.epoch == known):
                return term.epoch
            raise Fenced(
                f"{destination} is held under epoch {known}, as its state topic and its heartbeat say; ours is "
                f"{term.epoch}"
            )

        async with self._writing(choose) as transactor:
            head, epoch = transactor.head, choose(transactor.head)
            if (head.epoch, head.owner) != (epoch, _owner()):
                await transactor.begin(epoch, _owner())
            self._content = None
            return Guard(epoch, head.version, term.fence)

    async def commit(self, destination: str, guard: Guard, change: StateChange) -> Guard:
        """Writes a change. After StateStoreError it may have been written."""
        self._check_name(destination)

        def compare(head: Head) -> None:
            if (head.epoch, head.version) != (guard.epoch, guard.version):
                raise Fenced(
                    f"{destination} is held under epoch {head.epoch}, version {head.version} in the state topic; ours "
                    f"is epoch {guard.epoch}, version {guard.version}, so nothing was written"
                )

        async with self._writing(compare) as transactor:
            compare(transactor.head)
            await transactor.commit(change)
            return Guard(guard.epoch, transactor.head.version, guard.fence)

    async def history(self, destination: str, limit: int = 100) -> list[HistoryEntry]:
        return (await self._read(destination)).history()[:limit]

    async def schema_entries(self, destination: str) -> list[dict[str, Any]]:
        return (await self._read(destination)).schema_entries()

    async def problems(self, destination: str, *, must_exist: bool = False) -> list[str]:
        return await self._topic.problems(must_exist=must_exist)

    def describe(self) -> str:
        return f"the topic {self._settings.state_topic}"

    async def _read(self, destination: str) -> Content:
        self._check_name(destination)
        return self._content or await self._topic.read(settled=self._transactor is not None)

    @contextlib.asynccontextmanager
    async def _writing(self, check: Callable[[Head], object]) -> AsyncIterator[Transactor]:
        """Yields the run's transactor, or one for this write only: it fences any other writer, so `check` must pass
        before it is started."""
        transactor = self._transactor or Transactor(self._settings, self._destination, self._lease)
        try:
            if self._transactor is None:
                check((await self._topic.read(settled=False)).head)
                await transactor.start()
            if not transactor.known:
                await transactor.read()
            yield transactor
            if self._transactor is None:
                # Brokers confirm a commit a moment before they show it to readers; the next read must see it.
                await self._topic.read(settled=True)
        except SinkError as error:
            raise StateStoreError(str(error), retriable=error.retriable) from error
        finally:
            if self._transactor is None:
                await transactor.close()

    def _check_name(self, destination: str) -> None:
        if destination != self._destination:
            raise StateStoreError(f"this store keeps {self._destination}, not {destination}")
