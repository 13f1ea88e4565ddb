"""`headrace cluster`, `move` and `drain`: who runs what, and an operator's requests to change that."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from headrace import runtime
from headrace.cli.common import CommandRefused, add_config, aligned, coordinated, operator, print_json, time_text
from headrace.cli.wiring import ADAPTERS
from headrace.cluster.cluster import Cluster
from headrace.cluster.view import View
from headrace.settings.destination import Settings

_LIMIT = 60.0
_POLL = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    name = parser.prog.rpartition(" ")[2]
    add_config(parser)
    if name == "cluster":
        parser.add_argument("--json", action="store_true", help="as JSON")
        parser.set_defaults(call=show)
        return
    if name == "move":
        parser.set_defaults(call=move)
        parser.add_argument("destination", metavar="DEST", help="the destination's name")
        parser.add_argument("node", metavar="NODE", help="the daemon that is to run it")
    else:
        parser.set_defaults(call=drain)
        parser.add_argument("node", metavar="NODE", help="the daemon to drain")
        parser.add_argument("--undo", action="store_true", help="it may run destinations again")
    parser.add_argument(
        "--timeout", type=float, default=_LIMIT, metavar="SECONDS", help="wait so long for it (default: %(default)g)"
    )


@asynccontextmanager
async def _cluster(settings: Settings) -> AsyncIterator[Cluster]:
    if settings.cluster is None:
        raise CommandRefused(
            f"there is no section [{'] or ['.join(ADAPTERS.names('cluster'))}] in the configuration: one daemon runs "
            "everything",
            remedy="see docs/cluster.md",
        )
    async with coordinated(settings) as shared:
        assert shared.cluster is not None
        yield shared.cluster


def _ensure_alive(view: View, node: str) -> None:
    if node not in view.members:
        raise CommandRefused(f"no daemon {node} is alive; there are {', '.join(sorted(view.members)) or 'none'}")


async def show(settings: Settings, given: argparse.Namespace) -> int:
    """Prints the cluster; returns 1 if no daemon runs a destination."""
    async with _cluster(settings) as cluster:
        view = await cluster.view()
    if given.json:
        print_json(_facts(view))
    else:
        print(_table(view))
    return 0 if all(assignment.holder for assignment in view.assignments.values()) else 1


async def move(settings: Settings, given: argparse.Namespace) -> int:
    """Lets a node run a destination, and waits until it does. Raises CommandRefused or LockServiceError."""
    destination, node, limit = given.destination, given.node, given.timeout
    async with _cluster(settings) as cluster:
        view = await cluster.view()
        assignment = view.assignments.get(destination)
        if assignment is None:
            known = ", ".join(view.assignments) or "none"
            raise CommandRefused(f"there is no destination '{destination}'; there are {known}")
        if assignment.holder == node:
            print(f"{destination}: run by {node} already")
            return 0
        _ensure_alive(view, node)
        if node in view.drained:
            raise CommandRefused(f"{node} is drained", remedy=f"headrace drain {node} --undo")
        if node not in assignment.waiting:
            raise CommandRefused(
                f"{node} does not wait for {destination}: it lacks its file, runs as many as it may, or has just failed"
            )
        await cluster.ask_to_move(destination, node, operator())
        deadline = runtime.monotonic() + limit
        while (assignment := (await cluster.view()).assignments[destination]).holder != node:
            if runtime.monotonic() > deadline:
                raise CommandRefused(
                    f"{destination} is still run by {assignment.holder or 'nobody'} after {limit:g} s; the "
                    "request remains",
                    remedy="check the health page of both daemons",
                )
            await asyncio.sleep(_POLL)
    print(f"{destination}: run by {node}, epoch {assignment.epoch}")
    return 0


async def drain(settings: Settings, given: argparse.Namespace) -> int:
    """Drains a daemon, or ends that. It keeps destinations that no other daemon could run; returns 1 then."""
    node, limit = given.node, given.timeout
    async with _cluster(settings) as cluster:
        view = await cluster.view()
        if given.undo:
            await cluster.undrain(node)
            print(f"{node}: may run destinations again")
            return 0
        _ensure_alive(view, node)
        await cluster.drain(node, operator())
        deadline = runtime.monotonic() + limit
        while left := [
            assignment for assignment in (await cluster.view()).assignments.values() if assignment.holder == node
        ]:
            alone = [assignment.name for assignment in left if not assignment.ready]
            if runtime.monotonic() > deadline or len(alone) == len(left):
                why = "nobody else could run" if len(alone) == len(left) else f"after {limit:g} s it still runs"
                names = ", ".join(assignment.name for assignment in left)
                print(f"{node}: {why} {names}; it keeps them until somebody can")
                return 1
            await asyncio.sleep(_POLL)
    print(f"{node}: runs nothing, and stays so until headrace drain {node} --undo")
    return 0


def _facts(view: View) -> dict[str, Any]:
    loads = view.loads
    return {
        "nodes": {
            name: {**info, "running": loads[name], "drained": name in view.drained}
            for name, info in sorted(view.members.items())
        },
        "destinations": {
            name: {
                "node": assignment.holder,
                "address": assignment.address,
                "epoch": assignment.epoch,
                "since_us": assignment.since_us,
                "waiting": list(assignment.waiting),
                "ready": sorted(assignment.ready),
                "move_to": assignment.move_to,
            }
            for name, assignment in view.assignments.items()
        },
    }


def _table(view: View) -> str:
    loads = view.loads
    nodes = [("node", "address", "runs", "since", "")]
    for name, info in sorted(view.members.items()):
        note = "drained" if name in view.drained else ""
        nodes.append((name, str(info.get("address", "")), str(loads[name]), time_text(int(info.get("since", 0))), note))
    rows = [("destination", "run by", "epoch", "since", "could take over")]
    for assignment in view.assignments.values():
        others = ", ".join(name if name in assignment.ready else f"{name} (not ready)" for name in assignment.waiting)
        note = f" -> {assignment.move_to}" if assignment.move_to else ""
        holder = (assignment.holder or "nobody") + note
        rows.append(
            (assignment.name, holder, str(assignment.epoch), time_text(assignment.since_us), others or "nobody")
        )
    return f"{aligned(nodes, '')}\n\n{aligned(rows, '')}"
