"""`scripts/chaos`: runs seeds one after the other and prints a table for each; exit status 1 when one is not sound."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from devstack import Stack
from tests.chaos.entry import BREAKS
from tests.chaos.run import Outcome, run_seed
from tests.chaos.servers import Servers
from tests.chaos.watch import summary

DELIVERIES = ("at_least_once", "exactly_once")


def report(outcome: Outcome, *, verbose: bool = False) -> str:
    """The table of one seed; what failed, with all that an engineer needs, when it is not sound."""
    injected = sum(outcome.kinds.values())
    lines = [
        f"seed {outcome.seed}: {'sound' if outcome.sound else 'NOT SOUND'}, {outcome.seconds:.0f} s,"
        f" {outcome.transactions:,} transactions, {outcome.rows:,} changed rows, {injected} faults,"
        f" whole {outcome.settled:.0f} s after the last one, {outcome.own_ends} daemons ended by themselves",
        "  faults: " + ", ".join(f"{count} {kind}" for kind, count in sorted(outcome.kinds.items())),
    ]
    for name, found in outcome.topics.items():
        lines.append(
            f"  {name} ({found.delivery}): {found.messages:,} messages, {found.duplicates:,} duplicates,"
            f" {len(found.epochs)} epochs, escaped {found.escaped_messages:,} messages,"
            f" at most {found.escaped_bytes:,} bytes of an epoch (bound {found.bound:,}):"
            f" {'sound' if found.sound else dict(found.counts)}"
        )
    lines.append("  take-overs, seconds from the fault:   count  median     max  max undisturbed")
    for cause, numbers in summary(outcome.take_overs).items():
        lines.append(
            f"    {cause:<34} {numbers['count']:>6} {numbers['median']:>7.2f} {numbers['max']:>7.2f}"
            f" {numbers['max_undisturbed']:>16.2f}"
        )
    if verbose or not outcome.sound:
        lines += [f"  faults in order, since {outcome.began} UTC:", *(f"    {fault}" for fault in outcome.faults)]
        lines += [f"    {over.at:6.1f} s  {over}" for over in outcome.take_overs]
    if not outcome.sound:
        lines += [f"  {name}: {text}" for name, found in outcome.topics.items() for text in found.texts]
        lines.append(outcome.tails)
    return "\n".join(lines)


def make_parser() -> argparse.ArgumentParser:
    """The arguments of scripts/chaos."""
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="what decides the faults and their order (default 1)")
    parser.add_argument("--seeds", metavar="FIRST-LAST", help="several seeds one after the other")
    parser.add_argument("--minutes", type=float, default=3.0, help="how long faults come, for each seed (default 3)")
    parser.add_argument("--delivery", choices=DELIVERIES, help="of both destinations (default: one of each)")
    parser.add_argument("--break", dest="broken", choices=BREAKS, default="none", help="break the daemons on purpose")
    parser.add_argument("--json", type=Path, help="write all outcomes there as well")
    parser.add_argument("--alone", action="store_true", help="one daemon with the embedded lock and store")
    parser.add_argument("--verbose", action="store_true", help="print every fault and take-over")
    parser.add_argument("--keep", action="store_true", help="leave the daemons' folders, with their logs")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = make_parser().parse_args(argv)
    first, _, last = (arguments.seeds or str(arguments.seed)).partition("-")
    deliveries = [arguments.delivery] if arguments.delivery else list(DELIVERIES)
    outcomes: list[Outcome] = []
    failed = False
    with contextlib.ExitStack() as held:
        if arguments.keep:
            folder = tempfile.mkdtemp(prefix="chaos-")
            print(f"the daemons' folders: {folder}", flush=True)
        else:
            folder = held.enter_context(tempfile.TemporaryDirectory(prefix="chaos-"))
        servers = Servers(held.enter_context(Stack()))
        held.callback(servers.close)
        for seed in range(int(first), int(last or first) + 1):
            try:
                outcome = run_seed(
                    servers,
                    Path(folder) / str(seed),
                    seed,
                    arguments.minutes * 60,
                    deliveries,
                    broken=arguments.broken,
                    alone=arguments.alone,
                )
            except Exception:
                traceback.print_exc()
                print(f"seed {seed}: NOT SOUND, it did not come to its end", flush=True)
                failed = True
                continue
            outcomes.append(outcome)
            print(report(outcome, verbose=arguments.verbose), flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps([one.to_dict() for one in outcomes], indent=1))
    return 1 if failed or not all(outcome.sound for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
