"""The base of what a destination's holder writes to the cluster service for clients of another system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable


class LockedNodes(ABC):
    """Nodes by path, outside of headrace's own. They are written under the lock that the destination is held with: once
    it is lost, a write does nothing and raises. Every call has a time limit and raises LockServiceError."""

    @abstractmethod
    async def get(self, path: str, watch: Callable[[], None] | None = None) -> bytes | None:
        """Returns the data of a node; None if it does not exist. Calls `watch` once: when the node is changed, created
        or deleted, or when the connection is lost so that a change can't be seen."""

    @abstractmethod
    async def put(self, path: str, data: bytes, *, ephemeral: bool = False, again: bool = False) -> None:
        """Creates a node and its missing parents, or replaces its data. An ephemeral node ends with this process, and
        replaces one of another process. `again`: a node that has the data is written too, so that those who watch it
        read it again."""

    @abstractmethod
    async def remove(self, path: str) -> None:
        """Deletes an ephemeral node of this process. One of another process stays."""
