"""The kinds of state stores: a new one is one more file beside this and one more line here."""

from __future__ import annotations

from headrace.settings import StateSettings
from headrace.state import sqlite
from headrace.state.base import StateStore


def make_store(settings: StateSettings) -> StateStore:
    """The store that [state] asks for, not opened yet."""
    return sqlite.SqliteStore(settings.path)


def store_exists(settings: StateSettings) -> bool:
    """Whether anything was ever stored there."""
    return settings.path.exists()


def inspect_store(settings: StateSettings) -> list[str]:
    """What is wrong with that store, a sentence each; nothing is created or changed."""
    return sqlite.inspect(settings.path)
