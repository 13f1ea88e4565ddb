"""The base of what a destination's holder writes into the cluster service for the clients of another system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable


class LockedNodes(ABC):
    """Nodes by their paths, outside of headrace's own. They are written under the lock of one holding of a destination:
    once that is lost a write does nothing and raises. Every call has a time limit and raises LockServiceError."""

    @abstractmethod
    async def get(self, path: str, watch: Callable[[], None] | None = None) -> bytes | None:
        """What a node holds; None when it is not there. `watch` is called once: when it changes, comes or goes, and
        when that can't be seen any more because the connection is lost."""

    @abstractmethod
    async def put(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Makes a node, with those above it, or gives it other data. An ephemeral one goes when this process does, and
        takes the place of one of another process."""

    @abstractmethod
    async def remove(self, path: str) -> None:
        """Takes away an ephemeral node of this process; another's stays."""
