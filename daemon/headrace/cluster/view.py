"""A cluster as seen at one moment: who is alive, who runs what, who waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

BALANCE = "the balance"
"""The requester of a move that no operator has requested."""


@dataclass(slots=True)
class Assignment:
    """One destination in the cluster."""

    name: str
    holder: str = ""
    """The node that runs it; "" if none does."""
    address: str = ""
    epoch: int = 0
    since_us: int = 0
    """Since when, in microseconds since 1970 UTC."""
    ready: frozenset[str] = frozenset()
    """Nodes that wait for it and could run it, the holder not among them."""
    waiting: tuple[str, ...] = ()
    """All nodes that wait for it."""
    move_to: str = ""
    """The node that it must move to."""
    move_us: int = 0
    """Since when, in microseconds since 1970 UTC."""
    by_hand: bool = False
    """Whether an operator has moved it to its node: it stays there."""


def number_of(info: dict[str, Any], key: str) -> int:
    """Returns a number that a daemon, or a person, wrote; 0 if it is not a number."""
    value = info.get(key)
    return int(value) if isinstance(value, int | float) else 0


@dataclass(slots=True)
class View:
    """The cluster at one moment."""

    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The live daemons by name, as they describe themselves: address, since, version, max."""
    drained: frozenset[str] = frozenset()
    assignments: dict[str, Assignment] = field(default_factory=dict)

    @property
    def loads(self) -> dict[str, int]:
        """Returns how many destinations each live daemon runs."""
        counts = dict.fromkeys(self.members, 0)
        for assignment in self.assignments.values():
            if assignment.holder in counts:
                counts[assignment.holder] += 1
        return counts

    def limit(self, node: str) -> float:
        """Returns how many destinations it may run."""
        return float(number_of(self.members.get(node, {}), "max")) or float("inf")
