"""Balances the destinations over the daemons that share them: one that runs more than its share hands some over."""

from __future__ import annotations

import asyncio
import random
import time

import structlog

from headrace.cluster.cluster import Cluster
from headrace.cluster.view import BALANCE, View
from headrace.errors import LockServiceError

log = structlog.get_logger(__name__)

_INTERVAL = 5.0
"""Seconds between two looks, give or take a fifth, so that the daemons don't look all at once."""
_STEADY = 10.0
"""Seconds that a destination stays where it is at least, before it is handed over to even things out."""
_STALE = 60.0
"""A request that nobody has granted for so long, in seconds, keeps nothing else from being handed over."""


def choose(view: View, node: str, now_us: int) -> tuple[str, str] | None:
    """What `node` should hand over, and to whom; None when all is even enough.

    Every daemon decides from what it sees, without a leader. So that many do not give to the same newcomer at once,
    only as many of them act as it has room for below the even share: those with the most first.
    """
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
            # The one that began last has the least to lose.
            fitting = [assignment for assignment in steady if taker in assignment.ready]
            return max(fitting, key=lambda assignment: (assignment.since_us, assignment.name)).name, taker
    return None


async def rebalance(cluster: Cluster, node: str, *, interval: float = _INTERVAL) -> None:
    """Looks from time to time, and gives one destination away at a time, until cancelled. What goes wrong here is tried
    again: the destinations themselves do not depend on it."""
    problem = ""
    while True:
        await asyncio.sleep(interval * random.uniform(0.8, 1.2))
        try:
            chosen = choose(await cluster.look(), node, time.time_ns() // 1000)
            if chosen is not None:
                destination, taker = chosen
                log.info("gives a destination away, to even things out", destination=destination, to=taker)
                await cluster.ask_to_move(destination, taker, BALANCE)
            problem = ""
        except LockServiceError as error:
            if (told := error.told()) != problem:
                problem = told
                log.warning("could not check the cluster", error=problem)
        except Exception:
            log.exception("unexpected error while looking at the cluster")
