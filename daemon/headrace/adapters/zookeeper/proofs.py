"""Proves again and again that the session lives and the held locks are ours: what their leases run from."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from headrace.adapters.zookeeper.errors import Refused
from headrace.adapters.zookeeper.operations import Check, Op
from headrace.lease import Lease
from headrace.tasks import set_within

_LOOK = 0.5
"""Seconds between two looks at whether a lease needs a proof before its turn."""


@dataclass(slots=True, eq=False)
class Holding:
    """A lock that is held: what has to be true in ZooKeeper as long as it is ours."""

    name: str
    checks: Sequence[Check]
    lease: Lease


class Proofs:
    """One write in a sixth of the session timeout. A read may be answered by a server that is cut off from the others,
    and proves nothing; a write has to go through the leader, which knows whether the session lives.

    `write` makes one multi of the session, `own` is what there is to write for ourselves, and `restore` puts up again
    what that needs.
    """

    def __init__(
        self,
        timeout: float,
        write: Callable[[Sequence[Op]], Awaitable[None]],
        own: Callable[[], list[Op]],
        restore: Callable[[], Awaitable[None]],
    ) -> None:
        self.timeout = timeout
        """Of the session, in seconds, as the servers granted it."""
        self.soon = asyncio.Event()
        """Set to have the next one at once."""
        self._write, self._own, self._restore = write, own, restore
        self._holdings: set[Holding] = set()
        self._proving = asyncio.Lock()
        self._proved_at = -math.inf
        self._heard = False
        """Whether the leader itself has heard of us just now."""

    @property
    def held(self) -> int:
        """Locks that are held."""
        return len(self._holdings)

    def holding(self, name: str) -> bool:
        """Whether the lock of this name is held."""
        return any(holding.name == name for holding in self._holdings)

    @property
    def holds(self) -> float:
        """Seconds that a lease is good for after a proof.

        The servers count a session's timeout from when the leader last heard of it. A follower tells the leader of its
        clients only when it answers the leader's next ping; should it die before, the leader has heard of us last at
        our proof before that one, which is a sixth of the timeout older. Another sixth is for the clocks' rates, and
        for cutting transports.
        """
        return self.timeout * 2 / 3

    def hold(self, name: str, checks: Sequence[Check], asked_at: float) -> Holding:
        """From now on every proof proves this lock too, until drop() or its lease is lost. Taking it, which was asked
        for at `asked_at`, was a proof as well, unless it came after a gap: see now()."""
        holding = Holding(name, checks, Lease(self.holds, margin=self.timeout - self.holds))
        self._holdings.add(holding)
        if asked_at - self._proved_at < self.timeout / 3:
            holding.lease.prove(asked_at)
        else:
            self.soon.set()
        return holding

    def drop(self, holding: Holding, reason: str) -> None:
        """Ends hold()."""
        self._holdings.discard(holding)
        holding.lease.lose(reason)

    def lose_all(self, reason: str) -> None:
        """Every lock went with the session."""
        for holding in tuple(self._holdings):
            self.drop(holding, reason)

    def reconnected(self, timeout: float) -> None:
        """The leader checks each session that connects, and counts its time anew."""
        self.timeout = timeout
        self._heard = True
        self.soon.set()

    async def now(self) -> None:
        """Returns once everything that is held is proved. Raises LockServiceError when it can't be.

        A process that was frozen, and whose server dies right after the thaw, may be known to the leader only from
        before. So after a gap the second proof is the first that counts, when its server has long told the leader of
        the one before.
        """
        async with self._proving:
            while True:
                asked_at = time.monotonic()
                proved = await self._once()
                if proved is None:
                    continue
                settled = self._heard or asked_at - self._proved_at < self.timeout / 3
                self._heard, self._proved_at = False, asked_at
                if settled:
                    break
                await asyncio.sleep(self.timeout / 4)
            for holding in proved:
                holding.lease.prove(asked_at)

    async def until_next(self) -> None:
        """Returns when the next proof is due, or wanted at once."""
        due = self._proved_at + self.timeout / 6
        while (rest := due - time.monotonic()) > 0 and not self.soon.is_set():
            waited = not await set_within(self.soon, min(rest, _LOOK))
            if waited and any(not holding.lease.remaining for holding in self._holdings):
                break  # the clocks have jumped
        self.soon.clear()

    async def _once(self) -> tuple[Holding, ...] | None:
        """What was proved; None when something that was not true was in the way, and is not any more."""
        holdings = tuple(self._holdings)
        operations: list[Op] = [check for holding in holdings for check in holding.checks]
        owners = [holding for holding in holdings for _ in holding.checks]
        operations += self._own()
        if not operations:
            return ()
        try:
            await self._write(operations)
        except Refused as refused:
            if refused.index < len(owners):
                owner = owners[refused.index]
                self.drop(owner, f"the lock of {owner.name} is gone, or somebody else's ({refused})")
            elif refused.why == "no_node":  # deleted by hand
                await self._restore()
            else:
                raise
            return None
        return holdings
