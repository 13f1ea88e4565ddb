"""What the leases of shared locks run from: proofs of the session; one lock's end leaves the others alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from headrace.cluster.proofs import Proofs
from headrace.errors import LockServiceError
from headrace.ports.lock_service import Check, Op, OutcomeUnknown, Refused, Set

TIMEOUT = 1.2


class Servers:
    """Answers as a lock service would."""

    def __init__(self) -> None:
        self.asked: list[Sequence[Op]] = []
        self.gone: set[str] = set()
        self.away = False
        self.delay = 0.0
        self.restored = 0

    async def prove(self, operations: Sequence[Op]) -> float:
        asked_at = time.monotonic()
        self.asked.append(operations)
        await asyncio.sleep(self.delay)
        if self.away:
            raise OutcomeUnknown("the connection broke")
        for index, operation in enumerate(operations):
            if operation.path in self.gone:
                raise Refused(f"{operation.path} is not there", "no_node", index)
        return asked_at

    def own(self) -> list[Op]:
        return [Set("/cluster/a", b"{}")]

    async def restore(self) -> None:
        self.gone.discard("/cluster/a")
        self.restored += 1


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
def proofs(servers: Servers) -> Proofs:
    made = Proofs(TIMEOUT, servers.prove, servers.own, servers.restore)
    made.reconnected(TIMEOUT)
    return made


async def test_a_proof_counts_from_when_it_was_asked_for(servers: Servers, proofs: Proofs) -> None:
    lease = proofs.hold("shop", [Check("/shop/running", 0)]).lease
    assert not lease.remaining
    servers.delay = 0.3
    asked_at = time.monotonic()
    await proofs.now()
    assert asked_at <= lease.deadline - TIMEOUT * 2 / 3 < asked_at + 0.3
    assert lease.margin == pytest.approx(TIMEOUT / 3)


async def test_a_lock_that_was_taken_is_proved_by_the_last_proof_of_its_session(proofs: Proofs) -> None:
    early = proofs.hold("early", [Check("/early/running", 0)]).lease
    assert not early.remaining
    assert proofs.soon.is_set()
    await proofs.now()
    lease = proofs.hold("shop", [Check("/shop/running", 0)]).lease
    assert 0 < lease.deadline == early.deadline
    proofs.lose_all("the session was lost")
    assert not proofs.hold("shop", [Check("/shop/running", 0)]).lease.remaining


async def test_a_proof_that_comes_after_its_session_is_none_of_the_next(servers: Servers, proofs: Proofs) -> None:
    servers.delay = 0.1
    proving = asyncio.create_task(proofs.now())
    await asyncio.sleep(0.02)
    proofs.lose_all("the session was lost")
    await proving
    assert not proofs.hold("shop", [Check("/shop/running", 0)]).lease.remaining


async def test_a_lock_that_is_gone_is_lost_and_the_others_are_proved(servers: Servers, proofs: Proofs) -> None:
    leases = {
        name: proofs.hold(name, [Check(f"/{name}/running", 0), Check(f"/{name}/epoch", 5)]).lease
        for name in ("a", "b", "c")
    }
    servers.gone = {"/b/epoch", "/cluster/a"}
    await proofs.now()
    assert "b" in leases["b"].lost
    assert leases["a"].remaining
    assert leases["c"].remaining
    assert servers.restored == 1
    assert proofs.held == 2


async def test_no_answer_proves_nothing(servers: Servers, proofs: Proofs) -> None:
    lease = proofs.hold("shop", [Check("/shop/running", 0)]).lease
    servers.away = True
    with pytest.raises(LockServiceError):
        await proofs.now()
    assert not lease.remaining
    assert not lease.lost


async def test_the_next_proof_is_due_in_a_sixth_of_the_timeout_or_when_it_is_wanted(proofs: Proofs) -> None:
    await proofs.now()
    proofs.soon.clear()
    began = time.monotonic()
    await proofs.until_next()
    assert TIMEOUT / 8 < time.monotonic() - began < TIMEOUT
    await proofs.now()
    proofs.timeout = 3600.0
    asyncio.get_running_loop().call_later(0.1, proofs.soon.set)
    async with asyncio.timeout(5):
        await proofs.until_next()


async def test_everything_is_lost_with_the_session(proofs: Proofs) -> None:
    leases = [proofs.hold(f"d{number}", [Check(f"/d{number}/running", 0)]).lease for number in range(3)]
    proofs.lose_all("the session was lost")
    assert [lease.lost for lease in leases] == ["the session was lost"] * 3
    assert proofs.held == 0
