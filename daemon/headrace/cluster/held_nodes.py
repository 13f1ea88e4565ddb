"""Nodes outside of the cluster's root, which the holder of a destination writes for clients of another system."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.cluster.session import Session
from headrace.ports.lock_service import Check, Create, Delete, Op, Refused, ServiceError, Set
from headrace.ports.nodes import LockedNodes

_TRIES = 10
"""Attempts if others write at the same time."""


class HeldNodes(LockedNodes):
    """The nodes during one holding: every write is one transaction with `checks`, which are true while the lock is
    ours.

    Anybody may change the nodes, because the other system's clients log in without an account."""

    def __init__(self, session: Session, checks: Sequence[Check], generation: int) -> None:
        self._session, self._checks, self._generation = session, checks, generation

    async def get(self, path: str, watch: Callable[[], None] | None = None) -> bytes | None:
        node = await self._session.get(path, watch)
        return None if node is None else node.data

    async def put(self, path: str, data: bytes, *, ephemeral: bool = False, again: bool = False) -> None:
        for _ in range(_TRIES):
            node = await self._session.get(path)
            stays = node is not None and (self._session.owns(node) or not ephemeral)
            if node is not None and stays and node.data == data and not again:
                return
            operations: list[Op] = []
            if node is not None:
                operations.append(Set(path, data, node.version) if stays else Delete(path, node.version))
            if not stays:
                operations.append(Create(path, data, ephemeral=ephemeral, public=True))
            try:
                await self._session.multi(*self._checks, *operations, generation=self._generation)
                return
            except Refused as refused:
                if refused.index < len(self._checks) or refused.why not in ("bad_version", "no_node", "node_exists"):
                    raise
        raise ServiceError(f"others change the node {path} all the time")

    async def remove(self, path: str) -> None:
        node = await self._session.get(path)
        if self._session.owns(node):
            await self._session.multi(*self._checks, Delete(path, node.version), generation=self._generation)
