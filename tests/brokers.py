"""A broker for unit tests of sinks that confirm message by message: what it takes, refuses, and shows to a consumer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from headrace.adapters.rabbitmq.settings import RabbitMqSinkSettings
from headrace.lease import Lease
from headrace.model import MessageBatch, Unit
from headrace.parking.confirming import ConfirmingSink
from headrace.parking.ordering import Blocks
from headrace.ports.sink import Parking


def retry_settings(**keys: Any) -> RabbitMqSinkSettings:
    """Settings of a sink with retries; what it connects to does not matter."""
    return RabbitMqSinkSettings.model_validate(
        {"type": "rabbitmq", "hosts": "127.0.0.1:1", "user": "u", "password": "p"} | keys
    )


def batch_of(*names: str, units: Sequence[Unit] | None = None, topic: str = "t", size: int = 10) -> MessageBatch:
    """A batch of messages with these ids."""
    return MessageBatch(
        topic,
        0,
        [b"v" * size for _ in names],
        [[("headrace-id", name.encode())] for name in names],
        units=list(units) if units is not None else None,
    )


def row(*keys: str) -> Unit:
    """A message about rows of one table."""
    return Unit(("shop.t",), keys)


A, B, TABLE = row("a"), row("b"), Unit(("shop.t",))


class FakeParking(Parking):
    """Keeps what is parked in a list, in order: name, unit, reason, attempts."""

    def __init__(self, limit: int = 1_000_000) -> None:
        self.parked: list[tuple[MessageBatch, int, str, int]] = []
        self.blocks = Blocks()
        self.limit = limit

    @property
    def empty(self) -> bool:
        return not self.parked

    def blocked(self, scope: str, unit: Unit) -> bool:
        return self.blocks.blocks(scope, unit)

    def park(self, scope: str, batch: MessageBatch, index: int, reason: str, attempts: int) -> None:
        self.parked.append((batch, index, reason, attempts))
        self.blocks.add(scope, self.unit(len(self.parked) - 1))

    def unit(self, at: int) -> Unit:
        batch, index, _, _ = self.parked[at]
        return batch.units[index] if batch.units is not None else Unit(())

    @property
    def names(self) -> list[str]:
        return [batch.headers[index][0][1].decode() for batch, index, _, _ in self.parked]

    def take(self, at: int) -> None:
        """One of them is delivered."""
        self.blocks.remove("x", self.unit(at))
        del self.parked[at]


class FakeSink(ConfirmingSink):
    """A sink with a broker inside, which answers when the test says so.

    `seen` is what a consumer gets, `waiting` what is not answered: tag, name, whether it was taken. `refuses` says what
    becomes of a message: "" it is taken, else the reason.
    """

    def __init__(self, parking: Parking | None = None, lease: Lease | None = None, **keys: Any) -> None:
        settings = retry_settings(**({"on_failure": "park"} if parking is not None else {}) | keys)
        super().__init__(settings, lease or Lease(), parking)
        self.seen: list[str] = []
        self.waiting: dict[int, tuple[str, int, str]] = {}
        self.handed: list[str] = []
        self.slices: list[int] = []
        self.refuses: Callable[[str], str] = lambda name: ""
        self.pace: Callable[[], float] = float
        self.blocked = False
        self.stuck: asyncio.Event | None = None
        self.counts = Counter[str]()

    async def start(self) -> None:
        self._begin_tasks("fake")

    async def abort(self) -> None:
        await self._end_tasks()

    async def close(self) -> None:
        await self._end_tasks()

    async def check(self) -> list[str]:
        return []

    def _scope(self, batch: MessageBatch) -> str:
        return "x"

    def _paused(self) -> bool:
        return self.blocked

    async def _transmit(self, batch: MessageBatch, indexes: Sequence[int], first_tag: int) -> None:
        self.slices.append(len(indexes))
        for tag, index in enumerate(indexes, first_tag):
            name, value = batch.headers[index][0][1].decode(), batch.values[index]
            refusal = self.refuses(name)
            if not refusal:
                self.seen.append(name)
            self.handed.append(name)
            self.counts[name] += 1
            assert tag not in self.waiting
            self.waiting[tag] = (name, len(value or b""), refusal)
        if self.stuck is not None:
            await self.stuck.wait()
        await asyncio.sleep(self.pace())

    @property
    def in_flight(self) -> tuple[int, int]:
        """Messages, and bytes."""
        return len(self.waiting), sum(size for _, size, _ in self.waiting.values())

    def answer(self, tag: int | None = None) -> None:
        """To one message, the oldest if no other is named."""
        tag = min(self.waiting) if tag is None else tag
        _, _, refusal = self.waiting.pop(tag)
        self._settled(tag, tag, refusal)

    def answer_up_to(self, tag: int) -> None:
        """To all up to a tag at once; their answers are the same."""
        tags = [one for one in self.waiting if one <= tag]
        refusals = {self.waiting.pop(one)[2] for one in tags}
        assert len(refusals) == 1
        self._settled(1, tag, refusals.pop())

    def answer_all(self) -> None:
        while self.waiting:
            self.answer()


async def started(**keys: Any) -> FakeSink:
    """A sink that is ready."""
    sink = FakeSink(**keys)
    await sink.start()
    return sink


def now() -> float:
    """On the loop's clock."""
    return asyncio.get_running_loop().time()


async def settle() -> None:
    """Until all has been done that can be done without time going by."""
    for _ in range(50):
        await asyncio.sleep(0)


def no(*names: str) -> Callable[[str], str]:
    """Refuses these messages."""
    return lambda name: "full" if name in names else ""
