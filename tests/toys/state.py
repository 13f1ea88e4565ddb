"""A state store in one file: headrace's own, with a section of another package."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from headrace.adapters.sqlite.state import SqliteStore
from headrace.ports.state import StateAdapter, StateStore
from headrace.settings.daemon import StateSettings


class ToyStateSettings(StateSettings):
    """[state] store = "cellar"."""

    file: Path = Field(description="The file.")


class ToyStateAdapter(StateAdapter):
    section = ToyStateSettings

    def store(self, settings: ToyStateSettings) -> StateStore:
        return SqliteStore(settings.file)
