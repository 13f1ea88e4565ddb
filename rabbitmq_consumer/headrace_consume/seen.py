"""The base of stores of message ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from headrace_documents.errors import ConsumerError


class DuplicatesError(ConsumerError):
    """The store of message ids can't be used. Versions in Elasticsearch decide without it."""


class SeenStore(ABC):
    """Identities of messages that Elasticsearch has confirmed. Methods raise DuplicatesError, within the time limit."""

    @abstractmethod
    async def open(self) -> None:
        """Connects, and creates what is missing."""

    @abstractmethod
    async def seen(self, names: Sequence[str]) -> set[str]:
        """Returns those of them that are recorded."""

    @abstractmethod
    async def note(self, names: Sequence[str]) -> None:
        """Records them, for `ttl` seconds from now."""

    @abstractmethod
    async def close(self) -> None:
        """Closes it; never raises."""
