"""Spreads the destinations over the daemons that share them: one that runs more than its share gives some away."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

import orjson
import structlog

from headrace.adapters.zookeeper.errors import Refused
from headrace.adapters.zookeeper.operations import Create, Set, read_json
from headrace.adapters.zookeeper.paths import node_name
from headrace.adapters.zookeeper.session import Session
from headrace.errors import LockServiceError

log = structlog.get_logger(__name__)

_INTERVAL = 5.0
"""Seconds between two looks, give or take a fifth, so that the daemons don't look all at once."""
BALANCE = "the balance"
"""Who asks for a move that no operator has asked for."""
_STEADY = 10.0
"""Seconds that a destination stays where it is at least, before it is given away to even things out."""
_STALE = 60.0
"""A wish that nobody has granted for so long, in seconds, keeps nothing else from being given away."""


@dataclass(slots=True)
class Place:
    """One destination in the cluster."""

    name: str
    holder: str = ""
    """The node that runs it; "" when none does."""
    address: str = ""
    epoch: int = 0
    since_us: int = 0
    """Since when, in microseconds since 1970 UTC."""
    ready: frozenset[str] = frozenset()
    """Nodes that wait for it and could run it, the holder not among them."""
    waiting: tuple[str, ...] = ()
    """All nodes that wait for it."""
    move_to: str = ""
    """Where it is to go."""
    move_us: int = 0
    """Since when, in microseconds since 1970 UTC."""
    by_hand: bool = False
    """Whether an operator has put it where it is: it stays there."""


@dataclass(slots=True)
class View:
    """The cluster as it was at one look."""

    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The live daemons by name, as they describe themselves: address, since, version, max."""
    drained: frozenset[str] = frozenset()
    places: dict[str, Place] = field(default_factory=dict)

    @property
    def loads(self) -> dict[str, int]:
        """How many destinations each live daemon runs."""
        counts = dict.fromkeys(self.members, 0)
        for place in self.places.values():
            if place.holder in counts:
                counts[place.holder] += 1
        return counts

    def limit(self, node: str) -> float:
        """How many destinations it may run."""
        return float(_number(self.members.get(node, {}), "max")) or float("inf")


async def look(session: Session) -> View:
    """Reads the whole cluster. Raises LockServiceError."""
    paths = session.paths
    members, drains, names = await asyncio.gather(
        session.members(), session.children(paths.drains), session.children(paths.destinations)
    )
    places = await asyncio.gather(*(_place(session, name) for name in sorted(names)))
    return View(members, frozenset(map(node_name, drains)), {place.name: place for place in places})


async def _place(session: Session, name: str) -> Place:
    paths = session.paths.destination(name)
    running, move, nodes = await asyncio.gather(
        session.get(paths.running), session.get(paths.move), session.read_children(paths.candidates)
    )
    info = read_json(running.data) if running is not None else {}
    found = {one: read_json(node.data) for one, node in nodes.items()}
    found.pop(str(info.get("node", "")), None)
    return Place(
        name,
        str(info.get("node", "")),
        str(info.get("address", "")),
        _number(info, "epoch"),
        _number(info, "since"),
        frozenset(one for one, data in found.items() if data.get("ready", True)),
        tuple(sorted(found)),
        str(read_json(move.data).get("to", "")) if move is not None else "",
        move.changed_ms * 1000 if move is not None else 0,
        str(info.get("wish", "")) not in ("", BALANCE),
    )


def choose(view: View, node: str, now_us: int) -> tuple[str, str] | None:
    """What `node` should give away, and to whom; None when all is even enough.

    Every daemon decides from what it sees, without a leader. So that many do not give to the same newcomer at once,
    only as many of them act as it has room for below the even share: those with the most first.
    """
    loads, mine = view.loads, [place for place in view.places.values() if place.holder == node]
    if node not in loads or any(place.move_to and now_us - place.move_us < _STALE * 1e6 for place in mine):
        return None
    share = sum(loads.values()) // max(1, len(set(loads) - view.drained))
    over = loads[node] > view.limit(node)
    steady = [place for place in mine if over or (now_us - place.since_us >= _STEADY * 1e6 and not place.by_hand)]
    takers = {
        taker
        for place in steady
        for taker in place.ready
        if taker in loads and taker not in view.drained and loads[taker] < view.limit(taker)
    }
    for taker in sorted(takers, key=lambda one: (loads[one], one)):
        if not over and loads[node] - loads[taker] < 2:
            return None
        givers = sorted((one for one in loads if loads[one] - loads[taker] >= 2), key=lambda one: (-loads[one], one))
        room = max(1, share - loads[taker])
        if over or node in givers[:room]:
            # The one that began last has the least to lose.
            fitting = [place for place in steady if taker in place.ready]
            return max(fitting, key=lambda place: (place.since_us, place.name)).name, taker
    return None


async def ask_to_move(session: Session, destination: str, node: str, by: str) -> None:
    """Says that `node` is to run a destination next; its holder gives it away in order. Raises LockServiceError."""
    paths = session.paths.destination(destination)
    data = orjson.dumps({"to": node, "by": by, "at": time.time_ns() // 1000})
    for _ in range(3):
        try:
            there = await session.get(paths.move)
            await session.multi(Set(paths.move, data, there.version) if there else Create(paths.move, data))
            return
        except Refused as refused:
            if refused.why not in ("no_node", "node_exists", "bad_version"):
                raise
    raise LockServiceError(f"several daemons or operators move {destination} at the same time; try again")


class Spread:
    """Looks from time to time, and gives one destination away at a time."""

    def __init__(self, session: Session, node: str, *, interval: float = _INTERVAL) -> None:
        self._session, self._node, self._interval = session, node, interval

    async def run(self) -> None:
        """Until cancelled. What goes wrong here is tried again: the destinations themselves do not depend on it."""
        problem = ""
        while True:
            await asyncio.sleep(self._interval * random.uniform(0.8, 1.2))
            try:
                chosen = choose(await look(self._session), self._node, time.time_ns() // 1000)
                if chosen is not None:
                    destination, taker = chosen
                    log.info("gives a destination away, to even things out", destination=destination, to=taker)
                    await ask_to_move(self._session, destination, taker, BALANCE)
                problem = ""
            except LockServiceError as error:
                if str(error) != problem:
                    problem = str(error)
                    log.warning("could not look at the cluster", error=problem)
            except Exception:
                log.exception("unexpected error while looking at the cluster")


def _number(info: dict[str, Any], key: str) -> int:
    """What some daemon, or a hand, wrote; 0 when it is no number."""
    value = info.get(key)
    return int(value) if isinstance(value, int | float) else 0
