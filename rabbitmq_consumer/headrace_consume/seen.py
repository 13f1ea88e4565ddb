"""The base of the stores that keep identities of messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence


class SeenStore(ABC):
    """Identities of messages that Elasticsearch has confirmed. Methods raise DuplicatesError, within the time limit."""

    @abstractmethod
    async def open(self) -> None:
        """Connects, and makes what is missing."""

    @abstractmethod
    async def seen(self, names: Sequence[str]) -> set[str]:
        """Those of them that are noted."""

    @abstractmethod
    async def note(self, names: Sequence[str]) -> None:
        """Notes them, for `ttl` seconds from now."""

    @abstractmethod
    async def close(self) -> None:
        """Ends it; never raises."""
