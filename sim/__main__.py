"""`scripts/sim`: runs seeds, and prints what they found."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

from sim import plan as plans
from sim import planted, scenarios
from sim.determinism import fixed_hashes
from sim.plan import Plan
from sim.run import Result, simulate

_ROOT = Path(__file__).parents[1]


def parse(words: list[str]) -> argparse.Namespace:
    """Parses the command line. Without seeds it runs until it is stopped."""
    parser = argparse.ArgumentParser(
        prog="scripts/sim",
        description="Simulations of daemons, servers and faults in virtual time, each from one seed.",
        epilog="Scenarios:\n" + "\n".join(f"  {name:14}  {one.text}" for name, one in scenarios.SCENARIOS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--seed", type=int, help="replays one")
    add(
        "--seeds",
        type=seeds,
        metavar="A..B",
        help="from A to B, or A,B,C; without it and --seed: from 1 until it is stopped",
    )
    add("--seconds", type=seconds, default=60.0, help="virtual seconds of each (default %(default)s)")
    add(
        "--scenario",
        metavar="NAME",
        choices=scenarios.SCENARIOS,
        help="the faults of a scenario instead of those of the seed",
    )
    add("--trace", action="store_true", help="prints what happens, in virtual time")
    add("--workers", type=int, default=os.cpu_count() or 1, help="simulations at the same time (default %(default)s)")
    add("--keep-going", action="store_true", help="goes on after a failure")
    add(
        "--mutants",
        nargs="*",
        metavar="NAME",
        help="plants defects, all or these, and searches for a seed that finds each",
    )
    add("--most", type=int, default=200, help="suitable seeds for each of them (default %(default)s)")
    add("--brief", action="store_true", help="ends a simulation at its first violation")
    add("--no-shrink", action="store_true", help="does not look for the shortest plan that still fails")
    return parser.parse_args(words)


def seeds(text: str) -> list[int]:
    """Returns what --seeds names. Raises ValueError, which argparse reports."""
    parts = [list(map(int, part.split(".."))) for part in text.split(",")]
    if any(len(part) > 2 or part[0] > part[-1] for part in parts):
        raise ValueError(text)
    return [seed for part in parts for seed in range(part[0], part[-1] + 1)]


def seconds(text: str) -> float:
    """Returns what --seconds names. Raises ValueError, which argparse reports."""
    if float(text) <= 0:
        raise ValueError(text)
    return float(text)


def main() -> int:
    """Runs the command; returns 1 if a seed failed."""
    fixed_hashes()
    # What the client libraries log is what the simulated servers do to them; without a handler it is printed.
    logging.getLogger().addHandler(logging.NullHandler())
    options = parse(sys.argv[1:])
    if options.mutants is not None:
        return _hunt(options)
    show = (lambda line: print(line, flush=True)) if options.trace else None
    totals, failed, began = Result(0), list[int](), time.monotonic()
    chosen = _seeds(options)

    def make(seed: int) -> Plan:
        name, seconds = options.scenario, options.seconds
        return scenarios.make(name, seed, seconds) if name else plans.make(seed, seconds)

    try:
        with ThreadPoolExecutor(1 if show else options.workers) as pool:
            work = partial(simulate, show=show, brief=options.brief)
            for plan, result in _results(pool, map(make, chosen), work, options.workers):
                totals.add(result)
                if result.violations:
                    failed.append(plan.seed)
                    print(report(plan, result, options.scenario, shrink=not options.no_shrink), flush=True)
                    if not options.keep_going:
                        break
                elif options.seed is not None:
                    print(f"seed {plan.seed}: trace {result.digest}, {result.steps} steps, {result.published} messages")
    except KeyboardInterrupt:
        pass
    print(summary(totals, failed, time.monotonic() - began))
    return int(bool(failed))


def _hunt(options: argparse.Namespace) -> int:
    done = list[planted.Hunt]()
    for one in planted.hunt(options.mutants or planted.names(), options.most, options.seconds, options.workers):
        done.append(one)
        what = f"seed {one.seed}" if one.seed else f"NOT FOUND by {options.most} seeds"
        print(f"{one.name}: {what}: {one.text[:160]}", flush=True)
    found = [one.seed for one in done if one.seed]
    print("", "| defect | seed |", "|---|---|", *(one.row for one in sorted(done, key=lambda one: one.name)), sep="\n")
    print(f"\n{len(found)} of {len(done)} are found, the last one by seed {max(found, default=0)}")
    return int(len(found) < len(done))


def _seeds(options: argparse.Namespace) -> Iterator[int]:
    if options.seed is not None:
        return iter([options.seed])
    return count(1) if options.seeds is None else iter(options.seeds)


def _results(
    pool: ThreadPoolExecutor, chosen: Iterator[Plan], work: Callable[[Plan], Result], ahead: int
) -> Iterator[tuple[Plan, Result]]:
    """Yields results in the order of the seeds; each simulation is a process, which a thread waits for."""
    running = list[tuple[Plan, object]]()
    for plan in chosen:
        running.append((plan, pool.submit(work, plan)))
        if len(running) > ahead:
            first, future = running.pop(0)
            yield first, future.result()  # type: ignore[attr-defined]
    for first, future in running:
        yield first, future.result()  # type: ignore[attr-defined]


def report(plan: Plan, result: Result, scenario: str | None, *, shrink: bool) -> str:
    """Returns a failure as text: seed, commit, the faults that it needs, what is wrong, and how to see it again."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=_ROOT, capture_output=True, text=True)
    faults = shrunk(plan) if shrink else plan.faults
    lines = [f"seed {plan.seed} FAILED, commit {commit.stdout.strip()}, {len(faults)} of {len(plan.faults)} faults:"]
    lines += [f"  {fault}" for fault in faults]
    lines += [f"  {text[:800]}" for text in result.violations[:8]]
    name = f" --scenario {scenario}" if scenario else ""
    lines.append(f"  trace {result.digest}: scripts/sim{name} --seed {plan.seed} --seconds {plan.seconds:g} --trace")
    return "\n".join(lines)


def shrunk(plan: Plan) -> list[plans.Fault]:
    """Returns a shortest list of faults with which the seed still fails: parts are left out, large ones first."""
    faults, size = list(plan.faults), max(1, len(plan.faults) // 2)
    while faults and size:
        at, found = 0, False
        while at < len(faults):
            fewer = faults[:at] + faults[at + size :]
            if simulate(plan.with_faults(fewer)).violations:
                faults, found = fewer, True
            else:
                at += size
        if not found or size > 1:
            size //= 2
    return faults


def summary(totals: Result, failed: list[int], took: float) -> str:
    """Returns figures, and of several seeds what was reached how often, or never."""
    which = f": {failed[:20]}" if failed else ""
    lines = [
        f"{totals.seeds} seeds, {len(failed)} failed{which}; {totals.virtual:.0f} virtual seconds in {took:.0f} s, "
        f"{totals.virtual / max(took, 0.001):.0f} a second; {totals.published} messages, {totals.steps} steps; "
        f"settled within {totals.settled_after:.0f} s"
    ]
    return "\n".join(lines if totals.seeds == 1 else lines + totals.coverage.lines())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BrokenPipeError, KeyboardInterrupt):  # of `| head`, and Ctrl-C for the second time
        os._exit(1)
