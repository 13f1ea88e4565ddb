"""What a sink has to know of sections other than its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _one(_: str) -> int:
    return 1


def _whole(_value: bytes, _room: int) -> list[tuple[int, bytes]]:
    return []


@dataclass(frozen=True, slots=True)
class Plan:
    """Made from the destination; without one a sink knows its own section only."""

    topics: tuple[str, ...] = ()
    """Those that are known before any table is."""
    partitions: Callable[[str], int] = _one
    """How many a topic needs at least."""
    cut: Callable[[bytes, int], list[tuple[int, bytes]]] = _whole
    """See ValueFormat.cut; nothing where messages have one row each."""
