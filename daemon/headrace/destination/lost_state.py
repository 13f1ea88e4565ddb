"""Checks whether a destination without a stored state has run before, so that its state is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.errors import LostKind, PositionLost
from headrace.ports.source import Heartbeat
from headrace.times import second_text


def sign_of_life(heartbeat: Heartbeat | None, entries: Sequence[dict[str, Any]]) -> str:
    """Returns what shows that the destination has run, as half a sentence; "" if nothing does. An epoch shows nothing:
    it is assigned before the first start has a position."""
    if entries:
        return "its schema history is there"
    if heartbeat is None:
        return ""
    when, node = second_text(heartbeat.written_us / 1e6), heartbeat.node
    return f"its heartbeat row on the source is of {when}, epoch {heartbeat.epoch}, from node {node!r}"


def state_lost(store: str, sign: str) -> PositionLost:
    """Returns the error for it."""
    return PositionLost(
        f"nothing is stored of this destination in {store}, although it has run before: {sign}",
        kind=LostKind.STATE_LOST,
        remedy="run the daemon with its former state store, or choose where to go on with 'headrace position set "
        "DESTINATION WHERE'",
    )
