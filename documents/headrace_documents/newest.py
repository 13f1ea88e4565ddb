"""The newest action of each document: of many changes to one document only the last has to be written."""

from __future__ import annotations

from typing import Generic, TypeVar

from headrace_documents.documents import Action

T = TypeVar("T")


class Newest(Generic[T]):
    """Collects actions, each with the message that it came from, and keeps the newest of each document."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], tuple[Action, T]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, action: Action, message: T) -> T | None:
        """Takes an action; returns the message whose action needs not be written any more, if there is one."""
        key = (action.target, action.id)
        known = self._entries.get(key)
        # At the same version (one row: delete of the old key, index of the new) the later action wins.
        if known is not None and action.version < known[0].version:
            return message
        self._entries[key] = (action, message)
        return known[1] if known is not None else None

    def take(self) -> list[tuple[Action, T]]:
        """What is to be written, and begins again with nothing."""
        entries = list(self._entries.values())
        self._entries.clear()
        return entries
