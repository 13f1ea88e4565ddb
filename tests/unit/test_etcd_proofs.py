"""When answers of etcd are a proof of the session: a renewal, and after it transactions of the same Raft term."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.adapters.etcd.service import Etcd
from headrace.adapters.etcd.settings import EtcdSettings
from headrace.ports.lock_service import Check, Op, Refused


class Answering(Etcd):
    """Answers by itself: `terms` are those of the coming answers, in order."""

    def __init__(self, *terms: int) -> None:
        super().__init__(EtcdSettings.model_validate({"endpoints": "127.0.0.1:1"}))
        self.terms = [*terms]
        self.renewed: list[float] = []
        self.written: list[Sequence[Op]] = []
        self.refuses = ""

    def _open(self) -> Any:
        return None

    async def _keep_alive(self, connection: Any, limit: float) -> int:
        self.renewed.append(time.monotonic())
        return self.terms.pop(0)

    async def _write(self, operations: Sequence[Op], limit: float) -> Any:
        self.written.append(operations)
        for index, one in enumerate(operations):
            if one.path == self.refuses:
                raise Refused("it is not there", "no_node", index)
        return SimpleNamespace(raft_term=self.terms.pop(0))


CHECKS = [Check(f"/{number}", 1) for number in range(250)]


async def test_a_proof_counts_from_before_the_renewal() -> None:
    service = Answering(7, 7)
    began = time.monotonic()
    assert began <= await service.prove(CHECKS[:2], 1.0) <= service.renewed[0]
    assert service.written == [CHECKS[:2]]


async def test_a_renewal_by_a_leader_that_was_replaced_proves_nothing() -> None:
    service = Answering(7, 8, 8, 8)
    proved = await service.prove(CHECKS[:2], 1.0)
    assert len(service.renewed) == 2
    assert service.renewed[0] < proved <= service.renewed[1]


async def test_checks_that_are_too_many_for_one_transaction_are_spread() -> None:
    service = Answering(7, 7, 7, 8, 8, 8, 8, 8)
    await service.prove(CHECKS, 1.0)
    assert len(service.renewed) == 2, "the last of the first three was of another term"
    assert [len(operations) for operations in service.written] == [100, 100, 50] * 2
    service.terms, service.refuses = [8, 8, 8, 8], "/120"
    with pytest.raises(Refused) as refused:
        await service.prove(CHECKS, 1.0)
    assert refused.value.index == 120


async def test_a_session_without_any_lock_is_proved_too() -> None:
    service = Answering(7, 7)
    await service.prove([], 1.0)
    assert service.written == [[]]
