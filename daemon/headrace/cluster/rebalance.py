"""Balances the destinations over the daemons that share them: a daemon with more than its share hands some over."""

from __future__ import annotations

import asyncio

import structlog

from headrace import runtime
from headrace.cluster.cluster import Cluster
from headrace.cluster.view import BALANCE, View
from headrace.errors import LockServiceError

log = structlog.get_logger(__name__)

_INTERVAL = 5.0
"""Seconds between two checks, plus or minus a fifth, so that the daemons don't check all at once."""
_STEADY = 10.0
"""Minimum seconds that a destination stays on a daemon before it is handed over for balance."""
_FEW = 2
"""A daemon that runs fewer has nothing to hand over, and need not read what the others run."""
_STALE = 60.0
"""A request that was not granted for this many seconds no longer blocks other hand-overs."""


def choose(view: View, node: str, now_us: int) -> tuple[str, str] | None:
    """Returns what `node` should hand over, and to which daemon; None if the balance is even enough.

    Every daemon decides from what it sees, without a leader. To avoid that many give to the same new daemon at once,
    only as many act as it has capacity for below the even share: those with the most destinations first."""
    loads, mine = view.loads, [assignment for assignment in view.assignments.values() if assignment.holder == node]
    if node not in loads or any(
        assignment.move_to and now_us - assignment.move_us < _STALE * 1e6 for assignment in mine
    ):
        return None
    share = sum(loads.values()) // max(1, len(set(loads) - view.drained))
    over = loads[node] > view.limit(node)
    steady = [
        assignment
        for assignment in mine
        if over or (now_us - assignment.since_us >= _STEADY * 1e6 and not assignment.by_hand)
    ]
    takers = {
        taker
        for assignment in steady
        for taker in assignment.ready
        if taker in loads and taker not in view.drained and loads[taker] < view.limit(taker)
    }
    for taker in sorted(takers, key=lambda one: (loads[one], one)):
        if not over and loads[node] - loads[taker] < 2:
            return None
        givers = sorted((one for one in loads if loads[one] - loads[taker] >= 2), key=lambda one: (-loads[one], one))
        room = max(1, share - loads[taker])
        if over or node in givers[:room]:
            # The one that began last loses the least.
            fitting = [assignment for assignment in steady if taker in assignment.ready]
            return max(fitting, key=lambda assignment: (assignment.since_us, assignment.name)).name, taker
    return None


async def rebalance(cluster: Cluster, node: str, *, interval: float = _INTERVAL) -> None:
    """Checks periodically, and hands over one destination at a time, until cancelled. Errors are retried: the
    destinations do not depend on it."""
    problem = ""
    while True:
        await asyncio.sleep(interval * runtime.random().uniform(0.8, 1.2))
        if cluster.session.proofs.held < _FEW:
            continue
        try:
            chosen = choose(await cluster.view(), node, runtime.now_us())
            if chosen is not None:
                destination, taker = chosen
                log.info("hands a destination over, to balance the load", destination=destination, to=taker)
                await cluster.ask_to_move(destination, taker, BALANCE)
            problem = ""
        except LockServiceError as error:
            if (reported := error.operator_text()) != problem:
                problem = reported
                log.warning("could not check the cluster", error=problem)
        except Exception:
            log.exception("unexpected error while checking the cluster")
