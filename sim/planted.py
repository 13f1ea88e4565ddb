"""Plants defects into copies of the daemon, each into one of its own, and returns the seed that finds each."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from itertools import count, islice
from pathlib import Path

from sim import plan as plans
from sim.plan import Plan
from sim.run import simulate

ROOT = Path(__file__).parents[1]
MUTANTS = Path(__file__).parent / "mutants"
_EARLY = 0.6
"""The part of a simulation in which a fault must begin that a defect needs: its effect takes some time."""

_QUIET = 30.0
"""Seconds without a fault in which a delay shows."""


def names() -> list[str]:
    """Returns the names of all planted defects."""
    return sorted(file.stem for file in MUTANTS.glob("*.patch"))


def plant(name: str, folder: Path) -> Path:
    """Copies the daemon into a folder and plants a defect; returns what to import it from. Raises ValueError if the
    patch does not fit any more."""
    target = folder / "daemon"
    shutil.copytree(ROOT / "daemon", target)  # what is compiled too: files keep their times
    # As outside of any repository: the folder may be within ours.
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder)}
    command = ["git", "apply", str(MUTANTS / f"{name}.patch")]
    done = subprocess.run(command, cwd=target, env=env, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"the defect {name} does not fit: {done.stderr}")
    return target


@dataclass(frozen=True, slots=True)
class Hunt:
    """What became of the search for a defect."""

    name: str
    seed: int
    """The first seed that finds it; 0 for none."""
    text: str
    """The first violation, or why the search ended."""

    @property
    def row(self) -> str:
        """Returns it as a row of the table in docs/simulation.md."""
        return f"| {self.name.replace('_', ' ')} | {self.seed or 'not found'} |"


def _isolated(plan: Plan) -> list[float]:
    """Returns for how long daemons are isolated, in session timeouts."""
    faults = [] if plan.alone else plan.faults
    found = [fault for fault in faults if fault.kind == "isolate" and fault.target in plans.DAEMONS]
    return [fault.seconds / plan.session_timeout for fault in found]


def _moved_while_paused(plan: Plan) -> bool:
    """Returns whether a destination is moved some time before its pause ends."""
    pauses = [fault for fault in plan.faults if fault.kind == "pause"]
    moves = [(fault.target, fault.at) for fault in plan.faults if fault.kind == "move back"]
    return any(one.target == name and one.at < at < one.at + one.seconds - 5 for one in pauses for name, at in moves)


def _lost_while_paused(plan: Plan) -> bool:
    """Returns whether daemons lose their sessions while a destination is paused, some time before its pause ends."""
    pauses = [fault for fault in plan.faults if fault.kind == "pause"]
    kinds = ("isolate", "cut off zookeeper")
    cuts = [one for one in plan.faults if one.kind in kinds and one.seconds > 1.1 * plan.session_timeout]
    ends = [(cut.at, cut.at + cut.seconds) for cut in cuts if cut.target in ("", *plans.DAEMONS)]
    return any(one.at < at and end + 10 < one.at + one.seconds for one in pauses for at, end in ends)


def _long_alarm(plan: Plan) -> bool:
    """Returns whether RabbitMQ takes nothing for longer than a stall may last unnoticed, and no request is given up."""
    d4 = plan.destinations["d4"]
    patient = d4["sink"]["request_timeout"] >= 30 and d4["source"]["stall_after"] < 10
    return patient and any(
        fault.kind in ("memory alarm", "late confirms") and fault.seconds > 20 for fault in plan.faults
    )


def _ends_cut_off(plan: Plan) -> bool:
    """Returns whether a daemon is told to stop while it does not reach the lock service."""
    kinds = ("isolate", "cut off zookeeper")
    cuts = [one for one in plan.faults if one.kind in kinds and one.seconds > plan.session_timeout]
    stops = [fault for fault in plan.faults if fault.kind == "stop"]
    return any(
        cut.target in ("", stop.target) and cut.at < stop.at < cut.at + plan.session_timeout / 2
        for cut in cuts
        for stop in stops
    )


def _reads_again(plan: Plan) -> bool:
    """Returns whether a run with a snapshot ends soon after its begin, and the lock stays where it is."""
    begins = [(fault.target, fault.at) for fault in plan.faults if fault.kind == "resync"]
    if _SETTINGS["snapshot"](plan):
        begins.append(("d3", 2.0))
    kinds = ("restart", "kill connections", "restart source", "crash source")
    ends = [(fault.target, fault.at) for fault in plan.faults if fault.kind in kinds]
    return any(at < end < at + 6 and target in (name, "", "mysql1") for name, at in begins for target, end in ends)


_SETTINGS: dict[str, Callable[[Plan], bool]] = {
    "exactly once": lambda plan: plan.destinations["d3"]["sink"].get("delivery") == "exactly_once",
    "snapshot": lambda plan: plan.destinations["d3"]["source"]["snapshot"] != "never" and plan.rows > 0,
    "no heartbeats": lambda plan: not any(one["heartbeat"]["enabled"] for one in plan.destinations.values()),
    "few heartbeats": lambda plan: not all(one["heartbeat"]["enabled"] for one in plan.destinations.values()),
    "a lease lapses": lambda plan: any(0.7 < part < 1 for part in _isolated(plan)),
    "a session ends": lambda plan: any(part > 1.1 for part in _isolated(plan)),
    "small batches": lambda plan: plan.batch < 4_000,
    "slow source": lambda plan: plan.slow > 0.1 or any(fault.kind == "slow source" for fault in plan.faults),
    "quiet": lambda plan: plan.rate < 0.5 and (not plan.faults or plan.faults[0].at > _QUIET),
    "busy": lambda plan: plan.rate > 4,
    "slow network": lambda plan: plan.delay > 0.01,
    "several daemons": lambda plan: not plan.alone,
    "parked messages": lambda plan: plan.parks,
    "small queues": lambda plan: any(one["queue"]["bytes"] < 10_000 for one in plan.destinations.values()),
    "quick checkpoints": lambda plan: plan.daemon["daemon"]["checkpoint_interval"] < 0.5,
    "large rows": lambda plan: plan.text > 100,
    "quick stalls": lambda plan: any(one["source"]["stall_after"] < 10 for one in plan.destinations.values()),
    "orderly": lambda plan: bool(plan.faults) and all(fault.kind in plans.ORDERLY for fault in plan.faults),
    "long drains": lambda plan: any(fault.kind == "drain" and fault.seconds > 25 for fault in plan.faults),
    "reads again": _reads_again,
    "lost while paused": _lost_while_paused,
    "ends cut off": _ends_cut_off,
    "slow snapshot": lambda plan: (
        plan.rows >= 80 and plan.destinations["d3"]["source"].get("snapshot_max_rows_per_second") in (10, 30)
    ),
    "long alarm": _long_alarm,
    "starts on a bad disk": lambda plan: any(
        fault.kind == "disk errors" and fault.other and fault.number < 1 for fault in plan.faults
    ),
    "quick drains": lambda plan: plan.daemon["daemon"]["drain_timeout"] < 5,
    "missed restore": lambda plan: any(fault.kind == "restore source" and fault.target for fault in plan.faults),
    "moved while paused": _moved_while_paused,
    "an archive": lambda plan: bool(plan.archive),
    "nothing is held up": lambda plan: not plan.holds_up,
    "tables are altered": lambda plan: plan.ddl,
    "no GTIDs": lambda plan: not plan.gtids,
    "GTIDs": lambda plan: plan.gtids,
    **{name: lambda plan, name=name: plan.arranged == name for name in plans.ARRANGED},  # type: ignore[misc]
    "begins again": lambda plan: plan.answer == "earliest",
    "waits for an operator": lambda plan: any(
        {one["source"].get("on_position_lost"), one["source"].get("on_diverged")} == {"fail"}
        for one in plan.destinations.values()
    ),
}


def suits(name: str, plan: Plan) -> bool:
    """Returns whether a seed has what a defect needs to show. The line "Shows with:" of its patch names it: settings,
    and faults of which one is enough; "pause + kill" is both. A search leaves out the other seeds."""
    found = re.search(r"^Shows with: (.*)\.$", (MUTANTS / f"{name}.patch").read_text(), re.MULTILINE)
    words = found[1].split(", ") if found else []
    early = [fault.kind for fault in plan.faults if fault.at < plan.seconds * _EARLY]
    faults = [word.split(" + ") for word in words if word not in _SETTINGS]
    return all(_SETTINGS[word](plan) for word in words if word in _SETTINGS) and (
        not faults or any(all(kind in early for kind in one) for one in faults)
    )


def hunt(chosen: Sequence[str], most: int, seconds: float, workers: int) -> Iterator[Hunt]:
    """Yields what became of the search for each defect, with the first `most` seeds that suit it. A seed that finds
    something in the daemon without the defect too does not count."""
    with ThreadPoolExecutor(workers) as pool:
        for future in as_completed([pool.submit(_hunt_one, name, most, seconds) for name in chosen]):
            yield future.result()


def _hunt_one(name: str, most: int, seconds: float) -> Hunt:
    seeds = list(islice((seed for seed in count(1) if suits(name, plans.make(seed, seconds))), most))
    with tempfile.TemporaryDirectory(prefix="headrace-mutant-") as folder:
        target = plant(name, Path(folder))
        while seeds:
            seed, text = _run(target, ",".join(map(str, seeds)), seconds)
            if not seed:
                return Hunt(name, 0, text)
            if not _fails_anyway(seed, seconds):
                return Hunt(name, seed, text)
            seeds = seeds[seeds.index(seed) + 1 :]
    return Hunt(name, 0, "")


@cache
def _fails_anyway(seed: int, seconds: float) -> bool:
    return bool(simulate(plans.make(seed, seconds), brief=True).violations)


def _run(daemon: Path, seeds: str, seconds: float) -> tuple[int, str]:
    """Returns the first seed that fails with this daemon, 0 for none, and its first violation."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (daemon, ROOT / "common", ROOT)))}
    command = [sys.executable, "-m", "sim", "--no-shrink", "--brief", "--workers", "1"]
    command += ["--seeds", seeds, "--seconds", str(seconds)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    found = re.search(r"^seed (\d+) FAILED", done.stdout, re.MULTILINE)
    if found is None:
        return 0, (done.stderr.strip().splitlines() or ["it did not run"])[-1] if done.returncode else ""
    texts = [line.strip() for line in done.stdout.splitlines() if line.startswith("  ") and _is_violation(line)]
    return int(found[1]), texts[0] if texts else ""


def _is_violation(line: str) -> bool:
    """Returns whether a line of a report is no fault: those end with their length in seconds."""
    return re.search(r", [\d.]+ s$", line) is None
