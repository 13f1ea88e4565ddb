"""The base of locks: who holds one runs the destination."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from headrace.lease import Floor, Lease, Tenure


class Lock(ABC):
    """Exclusive right to run one destination. An object may be acquired again after it was released."""

    shared: bool = False
    """Whether daemons of other machines take part, so that a successor may be waiting for it."""

    @abstractmethod
    async def acquire(self, floor: Floor) -> None:
        """Returns once the lock is held, under an epoch above `floor`; waits as long as another daemon holds it, or
        is preferred. Raises LockServiceError or StateStoreError."""

    @abstractmethod
    async def try_acquire(self, floor: Floor) -> bool:
        """Takes the lock when it is free and nobody is preferred; never waits for another holder."""

    @abstractmethod
    async def look(self) -> str:
        """Who holds it now, "" when nobody does; nothing is changed."""

    @abstractmethod
    async def release(self) -> None:
        """Gives the lock back; safe when it isn't held. Never raises: a lock that can't be given back now, because its
        service is away, is given back as soon as it can, or ends with the session."""

    async def asked_away(self) -> str:
        """Returns once the holder is to give the destination away in order, with the reason as a sentence. Never, for a
        lock that nobody else waits for."""
        await asyncio.Event().wait()
        raise AssertionError

    async def set_ready(self, ready: bool) -> None:  # noqa: B027  (nobody to tell is no fault)
        """Tells the others, while waiting in acquire(), whether our source and sink answer: those that are ready come
        first."""

    async def recovered(self) -> None:
        """Returns once the lock service, which could not be reached, can be again; never otherwise."""
        await asyncio.Event().wait()

    @property
    def declined(self) -> str:
        """Why this daemon would not take the lock although it is free, as a part of a sentence; "" when it would."""
        return ""

    @property
    @abstractmethod
    def holder(self) -> str:
        """Who holds it, as far as it is known; empty when nobody does."""

    @property
    @abstractmethod
    def tenure(self) -> Tenure:
        """Of the present holding; Tenure() while it isn't held, and when the state store counts the epochs."""

    @property
    @abstractmethod
    def lease(self) -> Lease:
        """Of the present holding; a new one with each."""
