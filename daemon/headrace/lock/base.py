"""The base of locks: who holds one runs the destination."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Lock(ABC):
    """Exclusive right to run one destination."""

    @abstractmethod
    async def acquire(self) -> None:
        """Returns once the lock is held; waits as long as another daemon holds it."""

    @abstractmethod
    async def try_acquire(self) -> bool:
        """Takes the lock when it is free; never waits."""

    @abstractmethod
    async def release(self) -> None:
        """Gives the lock back; safe when it isn't held."""

    @property
    @abstractmethod
    def holder(self) -> str:
        """Who holds it, as far as it is known; empty when nobody does."""
