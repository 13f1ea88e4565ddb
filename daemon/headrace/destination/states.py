"""The table of a destination's states and their transitions. `DestinationStatus.enter` is the one place that enters a
state; what the table does not allow leaves the state as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from headrace.model import State

_ANY = frozenset(State)
_STAYS = _ANY - {State.STARTING}
"""From what an attempt alone does not lead out of: a monitor does not see the state come and go."""

TRANSITIONS: Final[Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        **dict.fromkeys(State, _ANY),
        State.POSITION_LOST: _STAYS,
        State.SOURCE_CHANGED: _STAYS,
        State.SERVER_ID_TAKEN: _STAYS,
        State.STOPPED: frozenset({State.STARTING}),
    }
)
"""Where each state may lead."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is not as it should be although changes flow: makes STREAMING DEGRADED as long as it lasts."""

    reason: str
    """One word for a monitor."""
    text: str
    """A sentence."""
    remedy: str = ""
    """What mends it; DESTINATION in it stands for the destination's name, which its owner knows."""
