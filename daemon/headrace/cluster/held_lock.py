"""What a daemon does while it holds a lock: it sees that the lock is taken away, and who else wants it."""

from __future__ import annotations

import asyncio
import contextlib

from headrace.cluster.lock_queue import LockQueue
from headrace.cluster.proofs import Holding
from headrace.cluster.session import Session
from headrace.errors import LockServiceError
from headrace.ports.lock_service import Delete, Node, Refused, read_json
from headrace.tasks import set_within

_LOOK = 1.0
"""Seconds between two looks of a daemon that is to run nothing, for one that could take over."""
_AGAIN = 0.5
"""Seconds until what the service did not do is tried again."""


class HeldLock:
    """Of one destination's lock; one holding after the other."""

    def __init__(self, session: Session, destination: str, node: str) -> None:
        self._session, self._destination, self._node = session, destination, node
        self._paths = session.paths.destination(destination)
        self._task: asyncio.Task[None] | None = None
        self._reason = ""
        self._asked = asyncio.Event()

    def begin(self, holding: Holding) -> None:
        """Looks after this holding until it is lost, or until end()."""
        self.end()
        self._task = self._session.spawn(self._keep(holding), f"lock of {self._destination}")

    def end(self) -> None:
        """Whatever was wanted is not asked of us any more; safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._ask("")

    async def hand_over_asked(self) -> str:
        """Returns, with a sentence, once another live daemon is preferred, or this one is to run nothing."""
        while not self._reason:
            await self._asked.wait()
        return self._reason

    async def _keep(self, holding: Holding) -> None:
        """Sees at once what a proof would see later, and what the others want."""
        session, event = self._session, asyncio.Event()
        queue = LockQueue(session, self._destination, self._node, event.set)
        ignore = session.listen(event.set)
        try:
            while not holding.lease.lost:
                event.clear()
                try:
                    if not await self._stands(queue):
                        taken = f"the lock of {self._destination} was taken away in {session.service.title}"
                        session.proofs.drop(holding, taken)
                        return
                    self._ask(await self._request(await queue.watch(self._paths.move)))
                    await set_within(event, _LOOK if session.drained else session.timeout)
                except LockServiceError:
                    await asyncio.sleep(_AGAIN)
        finally:
            ignore()

    async def _stands(self, queue: LockQueue) -> bool:
        if self._session.owns(await queue.watch(self._paths.running)):
            return True
        await self._session.sync()  # a server that we have just come to may be behind
        return self._session.owns(await queue.watch(self._paths.running))

    async def _request(self, move: Node | None) -> str:
        """Why the lock is to be handed over; "" when it is not. What nobody else could run stays where it is: standing
        still is worse than a request not granted."""
        if self._session.drained and await self._could_be_taken():
            return f"{self._node} is to run nothing (headrace drain)"
        if move is None:
            return ""
        request = read_json(move.data)
        wanted = str(request.get("to", ""))
        if wanted == self._node:  # it is granted already
            with contextlib.suppress(Refused):
                await self._session.multi(Delete(self._paths.move, move.version))
        elif wanted and await self._session.get(self._paths.candidate(wanted)) is not None:
            return f"{self._destination} is to move to {wanted} (asked for by {request.get('by') or 'somebody'})"
        return ""

    async def _could_be_taken(self) -> bool:
        """Whether another daemon that is ready waits for the lock."""
        candidates = await self._session.read_children(self._paths.candidates)
        return any(
            not self._session.owns(node) and read_json(node.data).get("ready", True) for node in candidates.values()
        )

    def _ask(self, reason: str) -> None:
        self._reason = reason
        (self._asked.set if reason else self._asked.clear)()
