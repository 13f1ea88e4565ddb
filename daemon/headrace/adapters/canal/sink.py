"""A sink for Canal's clients: entries are confirmed once the client has acknowledged them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace import runtime
from headrace.adapters.canal.listener import Listener, at_address, fault
from headrace.adapters.canal.nodes import CanalNodes
from headrace.adapters.canal.session import Subscription
from headrace.adapters.canal.settings import IN_MEMORY, CanalSinkSettings
from headrace.adapters.canal.store import EntryStore
from headrace.errors import SinkError
from headrace.model import MessageBatch
from headrace.ports.finding import Finding, wrong
from headrace.ports.measures import Measure
from headrace.ports.sink import Sink, SinkUse


class CanalSink(Sink):
    """The entries of one destination for its client, over a listener that destinations of the process may share."""

    def __init__(self, settings: CanalSinkSettings, use: SinkUse) -> None:
        super().__init__(use.lease, use.parking)
        self._settings, self._name = settings, use.destination
        self._store = EntryStore(use.spool, IN_MEMORY, settings.max_store)
        self._subscription = Subscription(use.destination, self._store, use.lease)
        self._listener: Listener | None = None
        self._nodes: CanalNodes | None = None
        if settings.zookeeper_path:
            self._nodes = CanalNodes(settings, use)
            self._store.on_acknowledged, self._subscription.on_subscribed = (
                self._nodes.acknowledged,
                self._nodes.subscribed,
            )

    async def start(self) -> None:
        self._listener = at_address(self._settings)
        await self._listener.add(self._name, self._subscription)
        if self._nodes is not None:
            await self._nodes.announce()

    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        self._lease.check()
        return await self._store.append(batch)

    def measures(self) -> Sequence[Measure]:
        waits = self._store.given - self._store.acknowledged
        return (
            Measure("canal_clients", "Canal clients that are subscribed.", int(self._subscription.client is not None)),
            Measure("canal_unacknowledged", "Entries that a client has got and not acknowledged.", waits),
        )

    async def problem(self) -> str:
        host, port = self._settings.listen
        client = self._subscription.client
        if not client:
            return f"no client is subscribed to {self._name} at {host}:{port}"
        waits = self._store.given - self._store.acknowledged
        if waits:
            seconds = runtime.monotonic() - self._subscription.given_at
            return f"the client {client} has not acknowledged {waits} entries, the last of them for {seconds:.0f} s"
        return f"the client {client} asks for no entries"

    async def abort(self) -> None:
        await self.close()

    async def close(self) -> None:
        self._store.fail(SinkError("the sink has ended"))
        self._subscription.serve("")
        listener, self._listener = self._listener, None
        if listener is not None:
            if self._nodes is not None:
                await self._nodes.withdraw(last=listener.serves_alone(self._name))
            await listener.remove(self._name, self._subscription)

    async def check(self) -> list[Finding]:
        found = await fault(self._settings)
        return [wrong("sink", str(found))] if found is not None else []
