"""`scripts/sim`: runs seeds, and says what they found."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from sim import plan as plans
from sim.determinism import fixed_hashes
from sim.run import Result, simulate


def main() -> int:
    """Runs the command; returns 1 if a seed failed."""
    fixed_hashes()
    parser = argparse.ArgumentParser(prog="scripts/sim", description="Runs simulations, each from one seed.")
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--seeds", help="seeds from A to B: A..B")
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual seconds of each (default %(default)s)")
    parser.add_argument("--trace", action="store_true", help="prints what happens, in virtual time")
    parser.add_argument("--without", default="", help="numbers of the plan's faults to leave out, from 0: 1,4,5")
    options = parser.parse_args()
    first, last = (options.seed, options.seed) if options.seed is not None else map(int, options.seeds.split(".."))
    failed, began, totals = list[Result](), time.monotonic(), Result(0)
    for seed in range(first, last + 1):
        plan = plans.make(seed, options.seconds)
        left_out = {int(one) for one in options.without.split(",") if one}
        plan.faults = [fault for number, fault in enumerate(plan.faults) if number not in left_out]
        result = simulate(plan, (lambda line: print(line, flush=True)) if options.trace else None)
        add(totals, result)
        if result.violations:
            failed.append(result)
            print(f"seed {seed} FAILED, {len(plan.faults)} faults:", flush=True)
            for number, fault in enumerate(plan.faults):
                print(f"  {number}: {fault}")
            for text in result.violations[:10]:
                print(f"  {text[:600]}")
        elif options.seed is not None:
            print(result)
    took = time.monotonic() - began
    print(
        f"{last - first + 1} seeds, {len(failed)} failed: {[one.seed for one in failed][:20]}; "
        f"{totals.virtual:.0f} virtual seconds in {took:.1f} s: {totals.virtual / took:.0f} a second, "
        f"{totals.steps} steps; settled within {totals.settled_after:.0f} s"
    )
    for what, counts in (("states", totals.states), ("transitions", totals.transitions), ("faults", totals.faults)):
        print(f"{what}: " + ", ".join(f"{name} {count}" for name, count in counts.most_common()))
    return int(bool(failed))


def add(totals: Result, result: Result) -> None:
    """Adds a result's figures."""
    totals.virtual += result.virtual
    totals.steps += result.steps
    totals.settled_after = max(totals.settled_after, result.settled_after)
    for mine, theirs in (
        (totals.states, result.states),
        (totals.transitions, result.transitions),
        (totals.faults, result.faults),
    ):
        assert isinstance(mine, Counter)
        mine.update(theirs)


if __name__ == "__main__":
    sys.exit(main())
