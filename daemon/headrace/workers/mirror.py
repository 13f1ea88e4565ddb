"""A destination's status, as the daemon has it of a destination that a worker runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from headrace.destination.lag import Lag
from headrace.destination.status import DestinationStatus
from headrace.errors import HeadraceError
from headrace.lease import Lease
from headrace.model import State

_ASKED = ("command", "operate")
"""Fields that are not facts: what operators ask goes through them."""
_HOLDS = 1.0
"""Seconds that the copy of a lease is made with; only its deadline counts."""

Ask = Callable[..., Coroutine[Any, Any, dict[str, Any]]]
"""Takes the name of a destination, the field that is called, and what it is called with."""


class MirroredLag(Lag):
    """What a worker said of the lag. Its own `Lag` looks at the stream, which is not here."""

    def __init__(self, said: tuple[float, float, float], at: float) -> None:
        super().__init__()
        self._said, self._at = said, at
        self.old = False
        """Whether nothing more is heard: then the lag grows, because nothing shows that it does not."""

    @property
    def _since(self) -> float:
        return max(0.0, time.monotonic() - self._at) if self.old else 0.0

    @property
    def seconds(self) -> float:
        return self._said[0] + self._since

    @property
    def reading(self) -> float:
        return self._said[1] + self._since

    @property
    def publishing(self) -> float:
        return self._said[2]

    def look(self) -> None:
        """There is nothing to look at here."""


def facts_of(status: DestinationStatus) -> dict[str, Any]:
    """Every field of a status in a form that can be sent, by name."""
    facts = {field.name: getattr(status, field.name) for field in fields(DestinationStatus)}
    facts.update({name: facts[name] is not None for name in _ASKED})
    facts["lag"] = (status.lag.seconds, status.lag.reading, status.lag.publishing)
    if (lease := status.lease) is not None:
        facts["lease"] = (lease.limited, lease.deadline, lease.margin, lease.lost)
    return facts


def refresh(mirror: DestinationStatus, facts: Mapping[str, Any], ask: Ask) -> None:
    """Has a mirror say what a worker's status said. Times are those of the machine's monotonic clock, which all
    processes share. A field that `facts` lacks stays as it is."""
    for name, value in facts.items():
        setattr(mirror, name, value)
    for name in _ASKED:
        setattr(mirror, name, partial(ask, mirror.name, name) if facts[name] else None)
    mirror.lag = MirroredLag(facts["lag"], time.monotonic())
    if facts["lease"] is not None:
        mirror.lease = _lease(*facts["lease"])


def _lease(limited: bool, deadline: float, margin: float, lost: str) -> Lease:
    lease = Lease(_HOLDS if limited else math.inf, margin=margin)
    if limited and deadline > -math.inf:
        lease.prove(deadline - _HOLDS)
    if lost:
        lease.lose(lost)
    return lease


def lose(mirror: DestinationStatus, error: HeadraceError, ask: Ask, *, ended: bool) -> None:
    """Nothing is heard of the destination: what was said of it last must not look well. `ended`: its process has, so
    nothing of it runs any more. Counters stay as they were."""
    mirror.note_error(error)
    if ended:
        mirror.give_up()
        mirror.stand_by()
    if isinstance(mirror.lag, MirroredLag):
        mirror.lag.old = True
    mirror.queue_bytes = 0 if ended else mirror.queue_bytes
    mirror.search = None
    if mirror.state is State.STOPPED:  # it leads to STARTING alone
        mirror.enter(State.STARTING)
    mirror.enter(State.STALLED if not ended else error.state, error.reason, mirror.last_error)
    # Asked of a worker that is not there, it answers so at once.
    mirror.command, mirror.operate = partial(ask, mirror.name, "command"), partial(ask, mirror.name, "operate")
