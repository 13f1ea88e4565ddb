"""The plan of faults follows from the seed, and the watch blames take-overs on the right fault."""

from __future__ import annotations

import pytest

from tests.chaos.faults import KINDS, SHORT_RUN, Fault, plan
from tests.chaos.watch import TakeOver, explained, summary

NODES = ["n1", "n2", "n3"]


def test_a_seed_gives_the_same_faults_again_and_another_seed_others() -> None:
    first = [str(fault) for fault in plan(7, 600, ["a", "b"], NODES)]
    assert first == [str(fault) for fault in plan(7, 600, ["a", "b"], NODES)]
    assert first != [str(fault) for fault in plan(8, 600, ["a", "b"], NODES)]


@pytest.mark.parametrize("seed", range(20))
def test_three_minutes_have_a_fault_of_each_kind_within_its_limits(seed: int) -> None:
    faults = plan(seed, 180, ["a", "b"], NODES)
    assert {fault.kind for fault in faults} == set(KINDS)
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
    for fault in faults:
        assert 0 <= fault.at < fault.at + fault.seconds <= 180
        assert fault.seconds <= KINDS[fault.kind].longest_short
        assert bool(fault.target) == (KINDS[fault.kind].uses == "daemon")


def test_a_long_run_has_long_faults_and_leaves_out_what_can_not_be_had() -> None:
    faults = plan(1, 2400, ["a"], NODES, without={"clock jump"})
    assert "clock jump" not in {fault.kind for fault in faults}
    assert max(fault.seconds for fault in faults if fault.kind == "SIGSTOP") > 20
    assert SHORT_RUN < 2400


def fault(kind: str, node: str, began: float, ended: float) -> Fault:
    return Fault(kind, began, ended - began, node=node, began=began, ended=ended)


def over(at: float, gap: float) -> TakeOver:
    return TakeOver("d", "n1", "n2", 2, at, gap)


def test_a_take_over_is_blamed_on_the_fault_of_the_daemon_that_lost_it() -> None:
    faults = [fault("SIGKILL", "n1", 10, 12), fault("SIGSTOP", "n3", 8, 20), fault("mysql", "", 1, 2)]
    made = explained(over(16, 5.9), faults)
    assert (made.cause, made.since_fault, made.seconds, made.disturbed) == ("SIGKILL", 6, 6, True)


def test_without_one_it_is_blamed_on_the_servers_and_else_on_nobody() -> None:
    assert explained(over(16, 5), [fault("zookeeper leader", "", 10, 12)]).cause == "zookeeper leader"
    assert explained(over(16, 5), [fault("SIGKILL", "n2", 10, 12)]).cause == "in order"
    assert explained(over(90, 1), [fault("SIGKILL", "n1", 10, 12)]).seconds == 1


def test_the_summary_has_median_and_maximum_by_cause() -> None:
    faults = [fault("SIGKILL", "n1", 10, 12)]
    overs = [explained(over(at, at - 10), faults) for at in (13, 14, 18)]
    assert summary(overs)["SIGKILL"] == {"count": 3, "median": 4, "max": 8, "max_undisturbed": 8}
    assert summary(overs)["all"]["count"] == 3
