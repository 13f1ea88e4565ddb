"""When a write to ZooKeeper is a proof of the session: at once, but not the first after a gap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from headrace.adapters.zookeeper.service import ZooKeeper
from headrace.adapters.zookeeper.settings import ZooKeeperSettings
from headrace.ports.lock_service import Check, Op

TIMEOUT = 1.2


class Answering(ZooKeeper):
    """Answers by itself."""

    def __init__(self) -> None:
        super().__init__(ZooKeeperSettings.model_validate({"hosts": "127.0.0.1:1"}))
        self._granted = TIMEOUT
        self.asked: list[float] = []
        self._link("connected", 1, TIMEOUT)

    async def multi(self, operations: Sequence[Op], limit: float) -> list[int]:
        self.asked.append(time.monotonic())
        return [0]


async def test_after_a_gap_the_second_proof_is_the_first_that_counts() -> None:
    service, checks = Answering(), [Check("/shop/running", 0)]
    for count in (1, 2):
        assert await service.prove(checks, 1.0) <= service.asked[-1]
        assert len(service.asked) == count
    await asyncio.sleep(TIMEOUT / 2)  # frozen
    proved = await service.prove(checks, 1.0)
    first, second = service.asked[2:]
    assert first + TIMEOUT / 4 <= proved <= second
    await asyncio.sleep(TIMEOUT / 2)
    service._link("connected", 1, TIMEOUT)
    await service.prove(checks, 1.0)
    assert len(service.asked) == 5, "the leader has read the session that connects"
