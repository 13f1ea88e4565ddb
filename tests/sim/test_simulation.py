"""The simulation itself: a seed replays, and some seeds of the present code find nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headrace.model import Position
from sim import plan as plans
from sim import planted, run, scenarios
from sim.__main__ import parse, report
from sim.clients import Clients
from sim.coverage import Coverage
from sim.order import KeyOrder
from sim.run import Result, simulate
from sim.topic_checker import Committed, Part, Record, TopicChecker
from sim.truth import Event, Truth

ROOT = Path(__file__).parents[2]


def simulation(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "daemon", ROOT / "common", ROOT)))}
    command = [sys.executable, "-m", "sim", "--no-shrink", *words]
    return subprocess.run(command, cwd=ROOT, env={**env, **environment}, capture_output=True, text=True, timeout=500)


@pytest.mark.parametrize("what", ["kill zookeeper", "power loss", 1544], ids=str)
def test_a_seed_gives_the_same_trace_whatever_the_hashes_and_addresses_are(what: str | int) -> None:
    """The last one had another trace with each order in which readers of an archive's dump were woken."""
    made = (plans.make(seed, 20) for seed in count(1))
    found_in = (plan.seed for plan in made if any(one.kind == what for one in plan.faults))
    seed, seconds = (str(what), "60") if isinstance(what, int) else (str(next(found_in)), "20")
    digests = set[str]()
    for number in range(2):
        environment = {"PYTHONHASHSEED": str(number), "MOVES_ADDRESSES": "x" * number * 3000}
        done = simulation("--seed", seed, "--seconds", seconds, **environment)
        found = re.search(r"trace (\w+)", done.stdout)
        assert found is not None, done.stdout + done.stderr
        digests.add(found[1])
    assert len(digests) == 1


def test_seeds_find_nothing() -> None:
    done = simulation("--seeds", "1..10", "--seconds", "30", "--workers", "1")
    assert done.returncode == 0, done.stdout
    assert "10 seeds, 0 failed" in done.stdout
    assert done.stderr == ""


@pytest.mark.long
@pytest.mark.parametrize("seed", [100, 126, 276, 279, 288, 348, 533, 581, 726, 929, 1026, 1096, 1132, 1720, 1886, 2256])
def test_a_seed_that_has_found_something_does_not_find_it_again(seed: int) -> None:
    done = simulation("--seed", str(seed), "--no-shrink")
    assert done.returncode == 0, done.stdout


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 1200, 50))
def test_more_seeds_find_nothing(first: int) -> None:
    done = simulation("--seeds", f"{first}..{first + 50}")
    assert done.returncode == 0, done.stdout


def test_a_plan_is_made_from_its_seed_alone() -> None:
    assert plans.make(5, 60) == plans.make(5, 60)
    assert plans.make(5, 60) != plans.make(6, 60)


@pytest.mark.parametrize(
    "words",
    [
        ["--seed", "1"],
        ["--seeds", "1..2", "--seconds", "10"],
        ["--scenario", "failover"],
        ["--trace", "--brief"],
        [],
    ],
)
def test_the_options_that_docs_name_are_there(words: list[str]) -> None:
    parse(words)


@pytest.mark.parametrize("words", [["--seeds", "x"], ["--seeds", "5..3"], ["--seeds", "1..2..3"], ["--seconds", "0"]])
def test_a_number_that_makes_no_sense_is_one_sentence(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(words)
    assert f"argument {words[0]}: invalid" in capsys.readouterr().err


def test_a_failure_says_how_to_see_it_again() -> None:
    plan = replace(scenarios.make("purge", 3, 20), faults=[])
    text = report(plan, Result(3, ["d1 is not well"], digest="0f0f"), "purge", shrink=False)
    assert text.startswith("seed 3 FAILED, commit ")
    assert "\n  d1 is not well\n" in text
    assert text.endswith("  trace 0f0f: scripts/sim --scenario purge --seed 3 --seconds 20 --trace")


def test_an_error_of_the_simulation_itself_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Clients, session: Any) -> None:
        raise KeyError("no such client")

    monkeypatch.setattr(Clients, "_transaction", fails)
    found = simulate(scenarios.make("calm", 2, 10)).violations
    assert "the simulation itself failed: KeyError('no such client') at " in found[0]


def test_a_step_that_does_not_end_is_shown_and_ends_the_simulation(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def hangs(self: Clients, session: Any) -> None:
        while True:
            pass

    monkeypatch.setattr(Clients, "_transaction", hangs)
    monkeypatch.setattr(run, "_HANGS", 1.0)
    with pytest.raises(SystemExit, match="the simulation of seed 2 ended itself"):
        simulate(scenarios.make("calm", 2, 10))
    assert "in hangs" in capfd.readouterr().err


def test_a_seed_has_one_fault_at_most_after_which_positions_are_lost() -> None:
    found = [plans.make(seed, 60) for seed in range(1, 200)]
    assert {plan.lost.kind for plan in found if plan.lost is not None} == set(plans.LOST)
    assert all(sum(fault.kind in plans.LOST for fault in plan.faults) <= 1 for plan in found)


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_a_scenario_has_its_faults_and_takes_the_rest_from_the_seed(name: str) -> None:
    plan, other = (scenarios.make(name, seed, 60) for seed in (1, 2))
    assert plan == scenarios.make(name, 1, 60)
    assert plan.faults == other.faults == list(scenarios.SCENARIOS[name].faults)
    assert plan.destinations != other.destinations
    text = (ROOT / "docs" / "simulation.md").read_text()
    assert f"| `{name}` | {scenarios.SCENARIOS[name].text} |" in text


@pytest.mark.long
@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_the_seeds_of_a_scenario_find_nothing(name: str) -> None:
    done = simulation("--scenario", name, "--seeds", "1..5")
    assert done.returncode == 0, done.stdout


def test_the_summary_names_what_was_never_reached() -> None:
    coverage = Coverage()
    coverage.fault("kill", ["pause", "pause"])
    lines = coverage.lines()
    at = next(number for number, line in enumerate(lines) if line.startswith("faults: 1 of"))
    assert lines[at + 1] == "  kill 1"
    assert lines[at + 2].startswith("  never: stop, ")
    assert "  kill + pause 1" in lines
    assert any("POSITION_LOST" in line for line in lines)
    assert any("gtids_purged" in line for line in lines)


EVENTS = [Committed(f"s:{number}#1", 1) for number in range(6)]


def checked(
    published: list[int], *parts: Part, lost: int = -1, old: int = -1, table: str = "5", **how: Any
) -> list[str]:
    """Returns the kinds of violations of a topic with these events, each of which sets the same row to its number.
    `old`: one that comes under an earlier epoch."""
    events = [Committed(one.id, 1, number == lost) for number, one in enumerate(EVENTS)]
    checker = TopicChecker(events, 0, "at_least_once", 0, **how)
    for part in parts:
        checker.moved(part)
    for offset, number in enumerate(published):
        headers = {
            "headrace-id": EVENTS[number].id.encode(),
            "headrace-pos": b"%d" % (number + 1),
            "headrace-epoch": b"1" if number == old else b"2",
        }
        row = b'[{"id":"1","n":"%d"}]' % number
        value = b'{"isDdl":false,"table":"t","type":"UPDATE","old":[{}],"data":' + row + b"}"
        checker.feed(Record(0, offset, headers, value, 0))
    return sorted(checker.finish({"t": {"1": {"id": "1", "n": table}}}).counts)


def test_what_a_move_skips_is_no_failure_also_if_the_position_is_moved_again_at_once() -> None:
    assert checked([0, 1], Part(2, EVENTS[5:], gap=True), Part(2, EVENTS[6:])) == []
    assert checked([0, 1], Part(2, EVENTS[5:]), Part(2, EVENTS[6:])) == ["table"]


def test_after_a_move_everything_from_there_must_come_again() -> None:
    back = Part(6, EVENTS[2:])
    assert checked([0, 1, 2, 3, 4, 5, 2, 3, 4, 5], back) == []
    assert checked([0, 1, 2, 3, 4, 5, 2, 3, 5], back) == ["missing"]
    assert checked([0, 1, 2, 3, 4, 5], back) == ["missing"]
    assert checked([0, 1, 2, 3, 4, 5, 2, 3, 4, 5]) == []
    assert checked([0, 1, 3, 4, 5, 2, 3, 4, 5], Part(5, EVENTS[2:])) == ["missing"]


def test_of_two_moves_to_the_same_place_the_last_one_counts() -> None:
    assert checked([0, 1, 2, 2, 3, 4, 5], Part(3, EVENTS[2:]), Part(3, EVENTS[2:])) == []
    assert checked([0, 1, 2, 2, 3, 5], Part(3, EVENTS[2:]), Part(3, EVENTS[2:])) == ["missing"]


def test_a_part_may_begin_with_what_the_source_lacked_when_the_position_was_moved() -> None:
    part = Part(0, [Committed("a", 1, lost=True), Committed("b", 1), Committed("c", 1)])
    assert [part.begins_with(id_) for id_ in "abc"] == [True, True, False]


def test_what_a_move_skips_is_no_failure_and_what_nothing_skips_is_one() -> None:
    assert checked([0, 1, 4, 5], Part(2, EVENTS[4:], gap=True)) == []
    assert checked([0, 1, 4, 5]) == ["missing"]


def test_what_the_source_loses_after_all_rows_were_read_again_is_not_compared() -> None:
    whole = Part(2, [], gap=True, whole=True)
    assert checked([0, 1], whole) == ["table"]
    assert checked([0, 1], whole, Part(2, [], gap=True)) == []


def test_refused_messages_may_come_later_if_those_after_them_come_again() -> None:
    assert checked([0, 2, 3, 1, 2, 3, 4, 5], by_key=True) == []
    assert checked([0, 2, 3, 1, 2, 4, 5, 3], by_key=True) == ["reordered", "table"]
    assert checked([0, 2, 1, 3, 4, 5], by_key=True) == ["reordered"]
    assert checked([0, 2, 3, 4, 5], by_key=True) == ["missing"]
    assert checked([0, 2, 3, 1, 2, 3, 4, 5]) == ["reordered"]


def test_a_run_that_sends_a_change_again_reads_a_row_again_that_an_earlier_one_has_read() -> None:
    """After a change, its row was read; the run was killed before it stored a position (seed 17)."""
    row = ("t", "1")

    def order(*came: tuple[str, int, int]) -> list[str]:
        keys = KeyOrder()
        for offset, (id_, pos, epoch) in enumerate(came):
            keys.take(id_, offset, [(row, pos)], epoch, {"read": None}.keys())
        return list(keys.violations())

    keys = KeyOrder()
    keys.take("change", 0, [(row, 5)], 1)
    assert [keys.made_again("change", [(row, 5)], epoch) for epoch in (1, 2)] == [False, True]
    assert not keys.made_again("other", [(row, 5)], 2)
    change = "change", 5
    assert order((*change, 1), ("read", 9, 1), (*change, 2)) == []
    assert "change of the row" in order((*change, 1), ("read", 9, 1), (*change, 1))[0]
    assert "change of the row" in order((*change, 1), ("later", 9, 1), (*change, 2))[0]


def test_what_was_refused_before_a_move_may_come_after_it() -> None:
    back = Part(4, EVENTS[3:])
    assert checked([0, 2, 3, 4, 1, 2, 3, 4, 5], back, by_key=True) == []
    assert checked([0, 2, 3, 4, 3, 4, 5], back, by_key=True) == ["missing"]


def test_the_first_message_after_a_move_back_may_be_refused_too() -> None:
    assert checked([0, 1, 2, 3, 2, 3, 1, 2, 3, 4, 5], Part(4, EVENTS[1:]), by_key=True) == []
    assert checked([0, 1, 2, 3, 3, 1, 3, 4, 5], Part(4, EVENTS[1:]), by_key=True) == ["missing", "reordered"]


def test_what_was_refused_before_a_move_that_skips_it_need_not_come() -> None:
    skips = Part(2, EVENTS[4:], gap=True, skipped={EVENTS[number].id: None for number in (1, 2, 3)})
    assert checked([0, 2, 4, 5], skips, by_key=True) == []
    assert checked([0, 2, 4, 5], replace(skips, skipped={}), by_key=True) == ["missing"]
    assert checked([0, 2], skips, Part(2, []), by_key=True) == []


def test_a_parked_message_counts_under_its_old_epoch() -> None:
    parked = [EVENTS[2].id]
    assert checked([0, 1, 2, 3, 4, 5], old=2, by_key=True, parked=parked) == []
    assert checked([0, 1, 3, 4, 2, 3, 4, 5], old=2, by_key=True, parked=parked) == []
    assert checked([0, 1, 3, 4, 2, 5], old=2, by_key=True, parked=parked) == ["reordered"]
    assert checked([0, 1, 2, 3, 4, 5, 2], old=2, by_key=True, parked=parked) == []
    assert checked([0, 1, 2, 3, 4, 5], old=2, by_key=True) == ["missing"]


def test_what_the_source_has_lost_need_not_come_and_may() -> None:
    assert checked([0, 1, 2, 3, 5], lost=4) == []
    assert checked([0, 1, 2, 3, 4, 5], lost=4) == []
    assert checked([0, 1, 2, 3], lost=4) == ["missing", "table"]


def test_what_the_source_lost_and_no_later_run_knows_of_may_stay_until_the_row_changes_again() -> None:
    last = EVENTS[5].id
    assert checked([0, 1, 2, 3, 4, 5], lost=5, table="4") == ["table"]
    assert checked([0, 1, 2, 3, 4, 5], lost=5, table="4", unstored={last: 3}) == []
    assert checked([0, 1, 2, 3, 4, 5], lost=5, table="4", unstored={last: 2}) == ["table"]  # that run published it
    assert checked([0, 1, 2, 3, 4, 5], lost=4, table="4", unstored={EVENTS[4].id: 3}) == ["table"]


UUID = "4d34bf14-db17-eea6-4299-55a6537bac30"


def four_events(*, gtid: bool) -> Truth:
    truth = Truth()
    truth._server = UUID
    truth.events = [Event(UUID, number, 1, number, "binlog.000001", number * 100, gtid) for number in range(1, 5)]
    return truth


def after(transaction: int, *, gtid: bool) -> Position:
    return Position(UUID, "binlog.000001", (transaction + 1) * 100, f"{UUID}:1-{transaction}" if gtid else "")


@pytest.mark.parametrize("gtid", [True, False])
def test_a_position_after_a_lost_change_shows_that_the_source_has_lost_something(gtid: bool) -> None:
    truth = four_events(gtid=gtid)
    for event in truth.events[2:]:
        event.lost = True
    stored = [after(transaction, gtid=gtid) for transaction in range(1, 5)]
    lost = [[event.transaction for event in truth.unstored(one)] for one in stored]
    assert lost == [[3, 4], [3, 4], [], []]


@pytest.mark.parametrize("gtid", [True, False])
def test_a_stored_position_is_found_forwards_and_backwards(gtid: bool) -> None:
    truth = four_events(gtid=gtid)
    assert [truth.index(after(one, gtid=gtid), asker="d1") for one in (1, 3, 2, 4, 1)] == [1, 3, 2, 4, 1]


def test_a_position_within_a_transaction_does_not_pass_the_rest_of_it() -> None:
    truth = four_events(gtid=True)
    within = replace(after(1, gtid=True), events_done=1)
    assert [truth.index(one) for one in (within, after(1, gtid=True))] == [2, 1]


def test_a_place_in_a_binlog_is_one_of_the_server_that_the_position_names() -> None:
    truth = four_events(gtid=True)
    for event in truth.events:
        event.elsewhere["first"] = event.file, event.offset
        if event.transaction < 3:
            event.file, event.offset = "", 0  # the present server's binlogs begin after them
    assert truth.index(Position("first", "binlog.000001", 4)) == 0
    assert truth.index(Position(UUID, "binlog.000001", 4)) == 2


def test_a_restore_of_changes_that_no_stored_position_has_passed_is_no_failure() -> None:
    done = simulation("--seed", "14", "--seconds", "15")
    assert done.returncode == 0, done.stdout


def test_each_planted_defect_has_seeds_that_suit_it() -> None:
    made = [plans.make(seed, 60) for seed in range(1, 400)]
    assert [name for name in planted.names() if not any(planted.suits(name, plan) for plan in made)] == []


@pytest.mark.parametrize("name", planted.names())
def test_a_planted_defect_fits_the_present_code(name: str, tmp_path: Path) -> None:
    changed = planted.plant(name, tmp_path)
    files = re.findall(r"^\+\+\+ b/(\S+)", (planted.MUTANTS / f"{name}.patch").read_text(), re.MULTILINE)
    assert files
    assert all((changed / file).read_text() != (ROOT / "daemon" / file).read_text() for file in files)
