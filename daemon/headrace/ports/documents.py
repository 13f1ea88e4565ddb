"""The base of readers of the documents that consumers have written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class IndexAccess:
    """Where the index is, and the credentials: an account, an API key, or none."""

    server: str
    """`https://host:9200`, optionally with a path before the names of indexes."""
    index: str
    user: str = ""
    password: str = field(default="", repr=False)
    api_key: str = field(default="", repr=False)
    ca: Path | None = None


class Document(NamedTuple):
    """A document of an index."""

    id: str
    body: dict[str, Any] | None
    """None if no document has this id."""


class DocumentIndex(ABC):
    """One index, which others may write to at the same time."""

    @abstractmethod
    def all(self) -> AsyncIterator[Sequence[Document]]:
        """Yields all documents as they are at one moment. Raises SinkError."""

    @abstractmethod
    def some(self, ids: Sequence[str]) -> AsyncIterator[Sequence[Document]]:
        """Yields the documents with these ids as they are now, one for each id. Raises SinkError."""

    @abstractmethod
    async def close(self) -> None:
        """Closes the connections. Safe to call twice."""
