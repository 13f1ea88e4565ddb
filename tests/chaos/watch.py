"""Who runs each destination, asked all the time: how long take-overs took, and what had caused them."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.chaos.faults import Fault
from tests.chaos.fleet import FLOWING, Daemon, Fleet

_POLL = 0.2
_AFTER = 6.0
"""Seconds that a fault of the servers can be blamed for afterwards."""
_MOVED = "in order"
"""The cause of a take-over that no fault explains: the load is spread again after a daemon came back."""


@dataclass(frozen=True)
class TakeOver:
    """A destination that flows at another daemon than before, under a higher epoch. Times as in Fault."""

    destination: str
    old: str
    new: str
    epoch: int
    at: float
    gap: float
    """Seconds since it was last seen to flow at the old one."""
    cause: str = _MOVED
    """The kind of the fault before it."""
    since_fault: float = 0.0
    """Seconds from the beginning of that fault; 0 without one."""
    disturbed: bool = False
    """Whether another fault lay between, so that the time says little."""

    @property
    def seconds(self) -> float:
        return self.since_fault if self.cause != _MOVED else self.gap


@dataclass(frozen=True)
class _Flows:
    """A destination was first seen to flow at a node under an epoch."""

    at: float
    node: str
    epoch: int
    gap: float
    before: str


class Watch:
    """A thread a daemon asks for /health."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._over = threading.Event()
        self._mutex = threading.Lock()
        self._seen: dict[str, tuple[float, str, int]] = {}
        """By destination when and where it was last seen to flow, and the highest epoch."""
        self._starts: dict[str, list[_Flows]] = {}
        self.states: dict[tuple[str, str], set[str]] = {}
        """All states of each destination at each node."""
        self._threads = [
            threading.Thread(target=self._poll, args=(daemon,), name=f"watch {daemon.node}")
            for daemon in fleet.daemons.values()
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _poll(self, daemon: Daemon) -> None:
        while not self._over.wait(_POLL):
            asked = time.monotonic()
            for name, status in daemon.health(1).items():
                self._note(asked, daemon.node, name, status["state"], status["epoch"], status["state_seconds"])

    def _note(self, at: float, node: str, destination: str, state: str, epoch: int, since: float) -> None:
        with self._mutex:
            self.states.setdefault((node, destination), set()).add(state)
            if state not in FLOWING:
                return
            last, before, highest = self._seen.get(destination, (at, "", 0))
            if epoch < highest:
                return
            if epoch > highest:
                began = max(last, at - since)
                flows = _Flows(began, node, epoch, began - last, before)
                self._starts.setdefault(destination, []).append(flows)
            self._seen[destination] = at, node, epoch

    def take_overs(self, faults: Sequence[Fault], began: float) -> list[TakeOver]:
        """All that happened since `began` on the monotonic clock, with what caused each."""
        made = []
        for destination, starts in self._starts.items():
            for start in starts:
                if start.before in ("", start.node) or start.at < began:
                    continue
                at = start.at - began
                over = TakeOver(destination, start.before, start.node, start.epoch, at, start.gap)
                made.append(explained(over, faults))
        return sorted(made, key=lambda over: over.at)


def explained(over: TakeOver, faults: Sequence[Fault]) -> TakeOver:
    """Caused by the newest fault of the old daemon that was not over long before, else by one of the servers'."""
    stopped = over.at - over.gap
    injected = [fault for fault in faults if fault.began and fault.began < over.at]
    own = [f for f in injected if f.node == over.old and f.ended + 1.0 >= stopped]
    common = [f for f in injected if not f.node and f.ended + _AFTER >= stopped and f.began < stopped + 1.0]
    causes = own or common
    if not causes:
        return over
    cause = max(causes, key=lambda fault: fault.began)
    others = [f for f in injected if f is not cause and f.ended + 5.0 > cause.began and f.node != over.old]
    return TakeOver(
        over.destination, over.old, over.new, over.epoch, over.at, over.gap,
        cause=cause.kind, since_fault=over.at - cause.began, disturbed=bool(others),
    )  # fmt: skip


def summary(overs: Iterable[TakeOver]) -> dict[str, dict[str, float]]:
    """By cause, and of `all`: how many, median and maximum in seconds; and the maximum of the undisturbed ones."""
    groups: dict[str, list[TakeOver]] = {}
    for over in overs:
        groups.setdefault(over.cause, []).append(over)
        groups.setdefault("all", []).append(over)
    return {
        cause: {
            "count": len(group),
            "median": round(statistics.median(over.seconds for over in group), 2),
            "max": round(max(over.seconds for over in group), 2),
            "max_undisturbed": round(max((over.seconds for over in group if not over.disturbed), default=0.0), 2),
        }
        for cause, group in sorted(groups.items())
    }
