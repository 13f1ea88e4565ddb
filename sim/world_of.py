"""The world that the present simulation runs in, for adapters that the configuration names."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.world import World

WORLD: ContextVar[World] = ContextVar("world")


def world() -> World:
    """Returns it."""
    return WORLD.get()
