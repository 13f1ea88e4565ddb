"""Proves repeatedly that the session is alive and the held locks are ours. Leases run from these proofs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from headrace import runtime
from headrace.lease import Lease
from headrace.ports.lock_service import Check, Op, Refused
from headrace.tasks import set_within

_LOOK = 0.5
"""Seconds between two checks whether a lease needs a proof early."""


@dataclass(slots=True, eq=False)
class Holding:
    """A held lock: the conditions in the service that are true while it is ours."""

    name: str
    checks: Sequence[Check]
    lease: Lease


class Proofs:
    """Makes a proof every sixth of the session timeout. `prove` is LockService.prove of the present session, `own`
    returns what we write for ourselves, and `restore` recreates the nodes that it needs."""

    def __init__(
        self,
        timeout: float,
        prove: Callable[[Sequence[Op]], Awaitable[float]],
        own: Callable[[], list[Op]],
        restore: Callable[[], Awaitable[None]],
    ) -> None:
        self.timeout = timeout
        """The session timeout in seconds, as granted by the servers."""
        self.soon = asyncio.Event()
        """Set to request a proof at once."""
        self._prove, self._own, self._restore = prove, own, restore
        self._holdings: set[Holding] = set()
        self._proving = asyncio.Lock()
        self._session = self._new_lease()
        """The lease of the session, whatever is held."""
        self._proved_at = -math.inf
        self._looked_at = -math.inf

    @property
    def held(self) -> int:
        """Returns the number of held locks."""
        return len(self._holdings)

    def holding(self, name: str) -> bool:
        """Returns whether the lock of this name is held."""
        return any(holding.name == name for holding in self._holdings)

    @property
    def holds(self) -> float:
        """Returns for how many seconds a lease is valid after a proof. The rest of the timeout is reserved: the servers
        may have heard of us later than we know, clocks run at different rates, and connections must be aborted."""
        return self.timeout * 2 / 3

    def hold(self, name: str, checks: Sequence[Check]) -> Holding:
        """Includes this lock in every proof, until drop() or until its lease is lost. It was just taken in this
        session, so the session's last proof is also a proof of the lock."""
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
        """Loses every lock, with the session."""
        self._session = self._new_lease()
        for holding in tuple(self._holdings):
            self.drop(holding, reason)

    def reconnected(self, timeout: float) -> None:
        """Records the timeout that the servers have granted, in seconds."""
        self.timeout = timeout
        self._session = self._new_lease()
        self.soon.set()

    async def now(self) -> None:
        """Waits until everything that is held is proved. Raises LockServiceError if it can't be."""
        async with self._proving:
            while True:
                self._looked_at, session = runtime.monotonic(), self._session
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
        """Waits until the next proof is due, or requested at once."""
        due = self._looked_at + self.timeout / 6
        while (rest := due - runtime.monotonic()) > 0 and not self.soon.is_set():
            waited = not await set_within(self.soon, min(rest, _LOOK))
            if waited and any(not holding.lease.remaining for holding in self._holdings):
                break  # the clocks have jumped
        self.soon.clear()

    def _new_lease(self) -> Lease:
        return Lease(self.holds, margin=self.timeout - self.holds)
