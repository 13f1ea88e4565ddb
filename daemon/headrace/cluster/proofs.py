"""Proves again and again that the session lives and the held locks are ours: what their leases run from."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from headrace.lease import Lease
from headrace.ports.lock_service import Check, Op, Refused
from headrace.tasks import set_within

_LOOK = 0.5
"""Seconds between two looks at whether a lease needs a proof before its turn."""


@dataclass(slots=True, eq=False)
class Holding:
    """A lock that is held: what has to be true in the service as long as it is ours."""

    name: str
    checks: Sequence[Check]
    lease: Lease


class Proofs:
    """One in a sixth of the session timeout. `prove` is LockService.prove, of the present session, `own` is what there
    is to write for ourselves, and `restore` puts up again what that needs."""

    def __init__(
        self,
        timeout: float,
        prove: Callable[[Sequence[Op]], Awaitable[float]],
        own: Callable[[], list[Op]],
        restore: Callable[[], Awaitable[None]],
    ) -> None:
        self.timeout = timeout
        """Of the session, in seconds, as the servers granted it."""
        self.soon = asyncio.Event()
        """Set to have the next one at once."""
        self._prove, self._own, self._restore = prove, own, restore
        self._holdings: set[Holding] = set()
        self._proving = asyncio.Lock()
        self._session = self._new_lease()
        """Of the session, whatever is held."""
        self._proved_at = -math.inf
        self._looked_at = -math.inf

    @property
    def held(self) -> int:
        """Locks that are held."""
        return len(self._holdings)

    def holding(self, name: str) -> bool:
        """Whether the lock of this name is held."""
        return any(holding.name == name for holding in self._holdings)

    @property
    def holds(self) -> float:
        """Seconds that a lease is good for after a proof. The rest of the timeout is for what the servers have heard of
        us later than we know, for the clocks' rates, and for aborting connections."""
        return self.timeout * 2 / 3

    def hold(self, name: str, checks: Sequence[Check]) -> Holding:
        """From now on every proof proves this lock too, until drop() or its lease is lost. It has just been taken in
        this session, so what the session was proved by last is a proof of the lock as well."""
        holding = Holding(name, checks, self._new_lease())
        self._holdings.add(holding)
        if self._session.remaining:
            holding.lease.prove(self._proved_at)
        else:
            self.soon.set()
        return holding

    def drop(self, holding: Holding, reason: str) -> None:
        """Ends hold()."""
        self._holdings.discard(holding)
        holding.lease.lose(reason)

    def lose_all(self, reason: str) -> None:
        """Every lock went with the session."""
        self._session = self._new_lease()
        for holding in tuple(self._holdings):
            self.drop(holding, reason)

    def reconnected(self, timeout: float) -> None:
        """The servers have granted this timeout, in seconds."""
        self.timeout = timeout
        self._session = self._new_lease()
        self.soon.set()

    async def now(self) -> None:
        """Returns once everything that is held is proved. Raises LockServiceError when it can't be."""
        async with self._proving:
            while True:
                self._looked_at, session = time.monotonic(), self._session
                holdings = tuple(self._holdings)
                owners = [holding for holding in holdings for _ in holding.checks]
                operations: list[Op] = [*(check for holding in holdings for check in holding.checks), *self._own()]
                if not operations:
                    return
                try:
                    asked_at = await self._prove(operations)
                    break
                except Refused as refused:
                    if refused.index < len(owners) and refused.why in ("no_node", "bad_version"):
                        owner = owners[refused.index]
                        self.drop(owner, f"the lock of {owner.name} is gone, or somebody else's ({refused})")
                    elif refused.why == "no_node":  # deleted by hand
                        await self._restore()
                    else:
                        raise
            self._looked_at = self._proved_at = asked_at
            session.prove(asked_at)
            for holding in holdings:
                holding.lease.prove(asked_at)

    async def until_next(self) -> None:
        """Returns when the next proof is due, or wanted at once."""
        due = self._looked_at + self.timeout / 6
        while (rest := due - time.monotonic()) > 0 and not self.soon.is_set():
            waited = not await set_within(self.soon, min(rest, _LOOK))
            if waited and any(not holding.lease.remaining for holding in self._holdings):
                break  # the clocks have jumped
        self.soon.clear()

    def _new_lease(self) -> Lease:
        return Lease(self.holds, margin=self.timeout - self.holds)
