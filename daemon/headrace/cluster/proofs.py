"""Proves repeatedly that the session is alive and that this daemon still holds its locks. Each proof renews the
leases."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from headrace import runtime
from headrace.lease import Lease
from headrace.ports.lock_service import Check, Op, Refused
from headrace.tasks import set_within

_POLL = 0.5
"""Seconds between two checks whether a lease needs a proof before the next one is due."""


@dataclass(slots=True, eq=False)
class Holding:
    """A lock that this daemon holds. `checks` are conditions on nodes of the lock service that are true as long as the
    lock is ours."""

    name: str
    checks: Sequence[Check]
    lease: Lease


class Proofs:
    """Makes a proof every sixth of the session timeout. `prove` is LockService.prove of the present session. `own`
    returns the operations that each proof includes for the daemon itself. `restore` creates the nodes that these
    operations need, if somebody has deleted them."""

    def __init__(
        self,
        timeout: float,
        prove: Callable[[Sequence[Op]], Awaitable[float]],
        own: Callable[[], list[Op]],
        restore: Callable[[], Awaitable[None]],
    ) -> None:
        self.timeout = timeout
        """The session timeout in seconds that the servers have granted."""
        self.soon = asyncio.Event()
        """Set to request a proof at once."""
        self._prove, self._own, self._restore = prove, own, restore
        self._holdings = dict[Holding, None]()
        self._proving = asyncio.Lock()
        self._session = self._new_lease()
        """The lease of the session. It exists even if no lock is held."""
        self._proved_at = -math.inf
        self._asked_at = -math.inf

    @property
    def held(self) -> int:
        """Returns the number of held locks."""
        return len(self._holdings)

    def holding(self, name: str) -> bool:
        """Returns whether the lock of this name is held."""
        return any(holding.name == name for holding in self._holdings)

    @property
    def holds(self) -> float:
        """Returns the seconds for which a lease is valid after a proof: two thirds of the session timeout. The last
        third is a reserve. Clocks run at different rates, the servers may know of the proof later than this daemon, and
        it takes time to abort connections."""
        return self.timeout * 2 / 3

    def hold(self, name: str, checks: Sequence[Check]) -> Holding:
        """Includes a lock in every proof, until drop() or until its lease is lost. The lock was just taken in the
        present session, so the last proof of the session also counts for the lock."""
        holding = Holding(name, checks, self._new_lease())
        self._holdings[holding] = None
        if self._session.remaining:
            holding.lease.prove(self._proved_at)
        else:
            self.soon.set()
        return holding

    def drop(self, holding: Holding, reason: str) -> None:
        """Removes a lock from the proofs. Its lease is lost for this reason."""
        self._holdings.pop(holding, None)
        holding.lease.lose(reason)

    def lose_all(self, reason: str) -> None:
        """Removes every lock, because the session has ended."""
        self._session = self._new_lease()
        for holding in tuple(self._holdings):
            self.drop(holding, reason)

    def reconnected(self, timeout: float) -> None:
        """Records the timeout that the servers have granted, in seconds."""
        self.timeout = timeout
        self._session = self._new_lease()
        self.soon.set()

    async def now(self) -> None:
        """Makes a proof of the session and of all held locks, and waits for it. A lock that is gone is dropped. Raises
        LockServiceError if no proof is possible."""
        async with self._proving:
            while True:
                self._asked_at, session = runtime.monotonic(), self._session
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
                    elif refused.why == "no_node":  # somebody has deleted a node that `own` writes
                        await self._restore()
                    else:
                        raise
            self._asked_at = self._proved_at = asked_at
            session.prove(asked_at)
            for holding in holdings:
                holding.lease.prove(asked_at)

    async def until_next(self) -> None:
        """Waits until the next proof is due, or until `soon` is set."""
        due = self._asked_at + self.timeout / 6
        while (rest := due - runtime.monotonic()) > 0 and not self.soon.is_set():
            waited = not await set_within(self.soon, min(rest, _POLL))
            if waited and any(not holding.lease.remaining for holding in self._holdings):
                break  # a clock has jumped: the lease has ended early
        self.soon.clear()

    def _new_lease(self) -> Lease:
        return Lease(self.holds, margin=self.timeout - self.holds)
