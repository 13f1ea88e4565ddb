"""The kinds of locks: which one goes with which state store."""

from __future__ import annotations

from headrace.lock.base import Lock
from headrace.lock.file import FileLock
from headrace.settings import StateSettings


def make_lock(settings: StateSettings, node: str, destination: str) -> Lock:
    """The lock of one destination: with the embedded store, a file beside it."""
    return FileLock(settings.path.parent / f"{destination}.lock", node)
