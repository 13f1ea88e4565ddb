"""What simulations have reached: states, transitions, kinds of lost positions, faults, and faults that overlapped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import wraps
from itertools import combinations_with_replacement

from headrace.destination.status import TRANSITIONS, DestinationStatus
from headrace.errors import LostKind
from headrace.model import State
from sim.plan import ARCHIVE, DISK, KINDS, LOST, ONE_WITHOUT_LOCKS, SEVERAL

_DIVERGED = "diverged"
_SHOWN = 12
"""Names of a list in the summary."""


@dataclass
class Coverage:
    """How often each was reached. States are counted when a destination enters them."""

    states: Counter[str] = field(default_factory=Counter)
    transitions: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    """Why destinations stopped, or a policy moved them: a LostKind, or that the source has another history."""
    faults: Counter[str] = field(default_factory=Counter)
    pairs: Counter[str] = field(default_factory=Counter)
    """Two faults of which one began while the other lasted."""

    def add(self, other: Coverage) -> None:
        """Adds what another simulation has reached."""
        for one in fields(self):
            getattr(self, one.name).update(getattr(other, one.name))

    def fault(self, kind: str, active: Iterable[str]) -> None:
        """Counts a fault that begins while others last."""
        self.faults[kind] += 1
        for pair in dict.fromkeys(pair_of(kind, other) for other in active):
            self.pairs[pair] += 1

    def watch(self) -> None:
        """Counts each transition of every destination from now on, until the process ends."""
        enter = DestinationStatus.enter

        @wraps(enter)
        def counted(status: DestinationStatus, state: State, reason: str = "", message: str = "") -> bool:
            before = status.state
            changed = enter(status, state, reason, message)
            if status.state is not before:
                self._entered(before, status)
            return changed

        DestinationStatus.enter = counted  # type: ignore[assignment,method-assign]

    def _entered(self, before: State, status: DestinationStatus) -> None:
        self.states[status.state.value] += 1
        self.transitions[f"{before.value} -> {status.state.value}"] += 1
        if status.state is State.POSITION_LOST:
            self.lost[status.lost_kind] += 1
        elif status.state is State.SOURCE_CHANGED:
            self.lost[_DIVERGED] += 1

    def lines(self) -> list[str]:
        """Returns the figures as text, and the names of what is at zero."""
        found = list[str]()
        for name, counts, known in (
            ("states", self.states, [state.value for state in State]),
            ("transitions", self.transitions, _transitions()),
            ("lost positions", self.lost, [*(kind.value for kind in LostKind), _DIVERGED]),
            ("faults", self.faults, [*KINDS, ONE_WITHOUT_LOCKS, *ARCHIVE, *LOST]),
            ("pairs of faults", self.pairs, _pairs()),
        ):
            never = [one for one in known if not counts[one]]
            found.append(f"{name}: {len(known) - len(never)} of {len(known)}")
            reached = [f"{what} {many}" for what, many in counts.most_common()]
            found += [f"  {_listed(reached)}"] if reached else []
            found += [f"  never: {_listed(never)}"] if never else []
        return found


def _listed(names: list[str]) -> str:
    rest = f", and {len(names) - 3 * _SHOWN} more" if len(names) > 3 * _SHOWN else ""
    return ", ".join(names[: 3 * _SHOWN]) + rest


def pair_of(one: str, other: str) -> str:
    """Returns the name of two faults, whichever began first."""
    return " + ".join(sorted((one, other)))


def _transitions() -> list[str]:
    pairs = [(state, later) for state in State for later in State if later in TRANSITIONS[state]]
    return [f"{state.value} -> {later.value}" for state, later in pairs if later is not state]


def _pairs() -> list[str]:
    """Returns the pairs that are possible: a simulation has one fault at most after which positions are lost, has no
    archive if that is another one than a purge, and its daemons have disks or share a lock service."""
    kinds = [*KINDS, ONE_WITHOUT_LOCKS, *ARCHIVE, *LOST]
    pairs = combinations_with_replacement(kinds, 2)
    return [pair_of(one, other) for one, other in pairs if not _apart(one, other)]


def _apart(one: str, other: str) -> bool:
    shared, unarchived = (*SEVERAL, LOST[-1]), LOST[1:]
    return (one in LOST and other in LOST) or any(
        (a in DISK and b in shared) or (a in ARCHIVE and b in unarchived) for a, b in ((one, other), (other, one))
    )
