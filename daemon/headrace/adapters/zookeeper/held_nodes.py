"""Nodes outside of [zookeeper] root, which the holder of a destination writes for the clients of another system."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.adapters.zookeeper.errors import Refused, ZooKeeperError
from headrace.adapters.zookeeper.operations import Check, Create, Delete, Op, Set
from headrace.adapters.zookeeper.session import Session
from headrace.ports.nodes import LockedNodes

_TRIES = 10
"""Writes that others may be faster than."""


class HeldNodes(LockedNodes):
    """Of one holding: every write is one transaction with `checks`, which hold as long as the lock is ours.

    Everybody may change the nodes, because the other system's clients log in as nobody.
    """

    def __init__(self, session: Session, checks: Sequence[Check], generation: int) -> None:
        self._session, self._checks, self._generation = session, checks, generation

    async def get(self, path: str, watch: Callable[[], None] | None = None) -> bytes | None:
        node = await self._session.get(path, watch)
        return None if node is None else node.data

    async def put(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        for _ in range(_TRIES):
            node = await self._session.get(path)
            if node is not None and node.data == data and (self._session.owns(node) or not ephemeral):
                return
            operations: list[Op] = []
            if node is not None:
                operations.append(Delete(path, node.version) if ephemeral else Set(path, data, node.version))
            if node is None or ephemeral:
                operations.append(Create(path, data, ephemeral=ephemeral, public=True))
            try:
                await self._session.multi(*self._checks, *operations, generation=self._generation)
                return
            except Refused as refused:
                if refused.index < len(self._checks):
                    raise
                if refused.why == "no_node":
                    await self._make(path.rpartition("/")[0])
                elif refused.why not in ("bad_version", "node_exists"):
                    raise
        raise ZooKeeperError(f"others change the ZooKeeper node {path} all the time")

    async def _make(self, path: str) -> None:
        """Makes a persistent node, and those above it, unless they are there."""
        if not path or await self._session.get(path) is not None:
            return
        await self._make(path.rpartition("/")[0])
        try:
            await self._session.multi(Create(path, b"", public=True))
        except Refused as refused:
            if refused.why != "node_exists":
                raise

    async def remove(self, path: str) -> None:
        node = await self._session.get(path)
        if self._session.owns(node):
            await self._session.multi(*self._checks, Delete(path, node.version), generation=self._generation)
