"""Watches a held lock: whether it is lost, and who else wants it."""

from __future__ import annotations

import asyncio
import contextlib

from headrace.cluster.lock_queue import LockQueue
from headrace.cluster.proofs import Holding
from headrace.cluster.session import Session
from headrace.errors import LockServiceError
from headrace.ports.lock_service import Delete, Node, Refused, read_json
from headrace.tasks import set_within

_POLL = 1.0
"""Seconds between two checks of a drained daemon for one that could take over."""
_AGAIN = 0.5
"""Seconds until a failed request to the service is repeated."""


class HeldLock:
    """Watches one destination's lock, term after term."""

    def __init__(self, session: Session, destination: str, node: str) -> None:
        self._session, self._destination, self._node = session, destination, node
        self._paths = session.paths.destination(destination)
        self._task: asyncio.Task[None] | None = None
        self._reason = ""
        self._asked = asyncio.Event()

    def begin(self, holding: Holding) -> None:
        """Watches this holding until it is lost, or until end()."""
        self.end()
        self._task = self._session.spawn(self._keep(holding), f"lock of {self._destination}")

    def end(self) -> None:
        """Stops watching; safe to call twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._ask("")

    async def hand_over_asked(self) -> str:
        """Waits until another live daemon is preferred, or this one is drained; returns the reason as a sentence."""
        while not self._reason:
            await self._asked.wait()
        return self._reason

    async def _keep(self, holding: Holding) -> None:
        """Notices at once what a proof would notice later, and what the other daemons want."""
        session, event = self._session, asyncio.Event()
        queue = LockQueue(session, self._destination, self._node, event.set)
        ignore = session.listen(event.set)
        try:
            while not holding.lease.lost:
                event.clear()
                try:
                    if not await self._is_ours(queue):
                        taken = f"the lock of {self._destination} was taken away in {session.service.title}"
                        session.proofs.drop(holding, taken)
                        return
                    self._ask(await self._request(await queue.watch(self._paths.move)))
                    await set_within(event, _POLL if session.drained else session.timeout)
                except LockServiceError:
                    await asyncio.sleep(_AGAIN)
        finally:
            ignore()

    async def _is_ours(self, queue: LockQueue) -> bool:
        if self._session.owns(await queue.watch(self._paths.running)):
            return True
        await self._session.sync()  # a server that we have just connected to may be behind
        return self._session.owns(await queue.watch(self._paths.running))

    async def _request(self, move: Node | None) -> str:
        """Returns why the lock must be handed over; "" if it need not be. A destination that no other daemon could run
        is not handed over: a standstill is worse than a request not granted."""
        if self._session.drained and await self._could_be_taken():
            return f"{self._node} is drained (headrace drain)"
        if move is None:
            return ""
        request = read_json(move.data)
        wanted = str(request.get("to", ""))
        if wanted == self._node:  # it is already granted
            with contextlib.suppress(Refused):
                await self._session.multi(Delete(self._paths.move, move.version))
        elif wanted and await self._session.get(self._paths.candidate(wanted)) is not None:
            return f"{self._destination} is to move to {wanted} (asked for by {request.get('by') or 'somebody'})"
        return ""

    async def _could_be_taken(self) -> bool:
        """Returns whether another daemon that is ready waits for the lock."""
        candidates = await self._session.read_children(self._paths.candidates)
        return any(
            not self._session.owns(node) and read_json(node.data).get("ready", True) for node in candidates.values()
        )

    def _ask(self, reason: str) -> None:
        self._reason = reason
        (self._asked.set if reason else self._asked.clear)()
