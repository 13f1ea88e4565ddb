"""RocketMQ 5 through its proxy: messages of one partition are a message group, each sent once the one before it is
confirmed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.adapters.rocketmq.settings import RocketMqSinkSettings
from headrace.errors import HeadraceError, SinkError, SinkRejected
from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.parking.confirming import ConfirmingSink
from headrace.ports.finding import Finding, failed
from headrace.ports.sink import Parking

if TYPE_CHECKING:
    from headrace.adapters.rocketmq.client import Answer, Outgoing, RocketMqClient

TOMBSTONE = b"null"
"""RocketMQ accepts no message without a body; the property headrace-tombstone distinguishes a tombstone from a message
with the value null."""


class RocketMqSink(ConfirmingSink):
    """One producer. The client sends several messages at once, and the proxy does not keep their order, so only one
    message of each group is sent at a time."""

    def __init__(self, settings: RocketMqSinkSettings, lease: Lease, parking: Parking | None = None) -> None:
        super().__init__(settings, lease, parking)
        self._settings = settings
        self._client: RocketMqClient | None = None
        self._waiting: dict[str, deque[Outgoing]] = {}
        """By group: messages that wait for the one that is being sent."""

    async def start(self) -> None:
        await self._reach()
        try:
            from headrace.adapters.rocketmq.client import RocketMqClient
        except ModuleNotFoundError as error:
            raise SinkRejected(
                f"the RocketMQ sink needs {(error.name or '').partition('.')[0]}, which is not installed",
                remedy="pip install 'headrace[rocketmq]'",
            ) from error
        self._client = RocketMqClient(self._settings, self._take_answers)
        try:
            await self._client.start()
        except BaseException:
            await self.abort()
            raise
        self._begin_tasks("rocketmq")

    async def _reach(self) -> None:
        """Connects to the proxy: the client itself connects only when something is sent."""
        failures = []
        for host, port in self._settings.addresses:
            try:
                async with asyncio.timeout(self._settings.request_timeout):
                    _, writer = await asyncio.open_connection(host, port)
                writer.transport.abort()
                return
            except (OSError, TimeoutError) as error:
                failures.append(f"{host}:{port}: {type(error).__name__}: {error}".rstrip(": "))
        raise SinkError(f"RocketMQ can't be reached ({'; '.join(failures)})")

    async def _transmit(self, batch: MessageBatch, indexes: Sequence[int], first_tag: int) -> None:
        from headrace.adapters.rocketmq.client import Outgoing

        group = f"{batch.topic}-{batch.partition}"
        tags = batch.tags or [""] * len(batch.values)
        for number, index in enumerate(indexes, first_tag):
            headers, body = batch.headers[index], batch.values[index]
            properties = [(name, value.decode("utf-8", "replace")) for name, value in headers if value]
            if body is None:
                properties.append(("headrace-tombstone", "true"))
            if batch.keys is not None and (key := batch.keys[index]):
                properties.append(("headrace-key", key.decode("utf-8", "replace")))
            id_ = headers[0][1].decode("utf-8", "replace") if headers else "?"
            made = Outgoing(
                number, batch.topic, group, body or TOMBSTONE, id_, tags[index].replace("|", "_"), tuple(properties)
            )
            behind = self._waiting.get(group)
            if behind is None:
                self._waiting[group] = deque()
                self._hand(made)
            else:
                behind.append(made)

    def _hand(self, outgoing: Outgoing) -> None:
        if self._client is None:
            raise SinkError("the producer was ended")
        self._client.send(outgoing)

    def _take_answers(self, answers: list[Answer]) -> None:
        for answer in answers:
            if answer.failure:
                self._lost(
                    SinkError(f"RocketMQ did not confirm a message for {answer.outgoing.topic} ({answer.failure})")
                )
                return
            number = answer.outgoing.tag_number
            self._settled(number, number, answer.refusal)
            self._go_on(answer.outgoing.group)

    def _go_on(self, group: str) -> None:
        """Sends the next message of a group: it is handed over now, so the lease is checked now."""
        behind = self._waiting[group]
        if not behind:
            del self._waiting[group]
            return
        try:
            self._lease.check()
            self._hand(behind.popleft())
        except HeadraceError as error:
            self._lost(error)

    def _scope(self, batch: MessageBatch) -> str:
        return batch.topic

    async def abort(self) -> None:
        self._lost(SinkError("the producer was ended"))
        client, self._client = self._client, None
        if client is not None:
            await client.end()
        self._waiting.clear()
        await self._end_tasks()

    async def close(self) -> None:
        """Closes the client; all is already confirmed."""
        await self.abort()

    async def check(self) -> list[Finding]:
        """Checks whether the proxy can be reached."""
        try:
            await self._reach()
        except SinkError as error:
            return [failed("sink", error)]
        return []
