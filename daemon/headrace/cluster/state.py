"""The shared state store: positions and schema history as nodes; each write is guarded by the epoch node's version."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import structlog

from headrace import runtime
from headrace.cluster.paths import DestinationPaths
from headrace.cluster.session import Session
from headrace.errors import Fenced, LockServiceError, StateStoreError
from headrace.lease import Term
from headrace.ports.lock_service import (
    Check,
    Create,
    Delete,
    Disconnected,
    Node,
    Op,
    OutcomeUnknown,
    Refused,
    SessionOver,
    Set,
)
from headrace.ports.state import NO_TERM, Guard, HistoryEntry, StateChange, StateStore, Stored
from headrace.ports.state_records import BrokenRecord, Head, join, read_entry, split
from headrace.tasks import all_of

_log = structlog.get_logger(__name__)
_REQUEST = 900_000
"""Maximum bytes of one request: the servers of some services refuse a mebibyte."""
_PIECE = 350_000
"""Maximum bytes of one piece of the schema history; the limit for a node is about a million, and so is that for a
request."""
RINGS = {"checkpoint": 60}
"""Slots of the position history for each actor, besides its first entry; the servers keep them in memory."""
_RING = 200
_AT_ONCE = 16
"""Nodes that are requested before the first has arrived."""


@dataclass(slots=True)
class _Known:
    """The position node as this process last read or wrote it, while it holds the destination."""

    head: Head
    node_version: int
    generation: int


class ClusterStore(StateStore):
    """The state of all destinations of a cluster; `session` is the process's, started, and closed by its owner."""

    def __init__(self, session: Session) -> None:
        self._session, self._title = session, session.service.title
        self._known: dict[str, _Known] = {}

    async def load(self, destination: str) -> Stored:
        with self._as_store_error():
            head, _ = await self._read(destination)
        return Stored(head.position, head.epoch, head.version, head.last_pos)

    async def begin_epoch(self, destination: str, *, above: int = 0, term: Term = NO_TERM) -> Guard:
        if not term.epoch:
            raise StateStoreError(
                f"the position of {destination} in {self._title} can only be written under its lock there"
            )
        paths = self._session.paths.destination(destination)
        with self._as_store_error():
            generation = self._session.generation
            head, node = await self._read(destination)
            epoch = await self._session.get(paths.epoch)
            if epoch is None or epoch.version != term.fence:
                raise Fenced(f"the lock of {destination} that came with epoch {term.epoch} is over")
            if (known := max(head.epoch, above)) > term.epoch:
                raise Fenced(f"{destination} was run under epoch {known} already; ours is {term.epoch}")
            begun = _Known(replace(head, epoch=term.epoch), -1 if node is None else node.version, generation)
            data = begun.head.encode()
            # Written also if the epoch is already stored. Then a write that a former run of ours still has under way
            # comes too late; and if somebody has recreated the epoch node, this node's version distinguishes the two.
            write: Op = Create(paths.position, data) if node is None else Set(paths.position, data, node.version)
            await self._write(destination, begun, term.fence, [write], data)
        self._known[destination] = begun
        return Guard(term.epoch, head.version, term.fence)

    async def commit(self, destination: str, guard: Guard, change: StateChange) -> Guard:
        """Raises StateStoreError if it could not be written within twice the session timeout.

        A large schema history is written first, in requests of its own. It counts only once the position node has the
        number of pieces, so what an interrupted write left is overwritten by the next."""
        paths = self._session.paths.destination(destination)
        with self._as_store_error():
            known = self._known_for(destination, guard)
            void, entries = change.in_force()
            pieces = await runtime.in_thread(split, entries, _PIECE) if entries else []
            head = known.head.moved(change, len(pieces), runtime.now_us(), void=void)
            head, operations = await self._history_operations(paths, head)
            data = head.encode()
            last = [Set(paths.position, data, known.node_version), *operations]
            for batch in _batches(await self._piece_operations(paths, known.head.pieces, pieces), last):
                ahead: Op = Check(paths.position, known.node_version)
                await self._write(destination, known, guard.fence, [ahead, *batch], None)
            await self._write(destination, known, guard.fence, last, data)
        known.head = head
        if void:
            await self._remove_void(paths, guard.fence, head.first_piece)
        return Guard(guard.epoch, head.version, guard.fence)

    async def history(self, destination: str, limit: int = 100) -> list[HistoryEntry]:
        """Returns the changes by people and policies, one checkpoint a minute, and the present one."""
        paths = self._session.paths.destination(destination)
        with self._as_store_error():
            head, node = await self._read(destination)
            names = await self._session.children(paths.history)
            slots = [paths.slot(name) for name in names]
            found = {}
            for path, slot in zip(slots, await self._get_all(slots), strict=True):
                if slot is not None:
                    entry = read_entry(slot.data, path)
                    found[entry.version] = entry
            if node is not None and head.version:
                found[head.version] = head.entry()
        return sorted(found.values(), key=lambda entry: entry.version, reverse=True)[:limit]

    async def schema_entries(self, destination: str) -> list[dict[str, Any]]:
        paths = self._session.paths.destination(destination)
        with self._as_store_error():
            head, _ = await self._read(destination)
            while True:
                names = [paths.piece(number) for number in range(head.first_piece, head.pieces)]
                nodes = await self._get_all(names)
                if None not in nodes:
                    break
                before, (head, _) = head.first_piece, await self._read(destination)
                if head.first_piece == before:
                    break  # else they have become void meanwhile
        for name, node in zip(names, nodes, strict=True):
            if node is None:
                raise BrokenRecord(name, "it is not there")
        found = [(name, node.data) for name, node in zip(names, nodes, strict=True) if node is not None]
        return await runtime.in_thread(join, found)

    @contextlib.contextmanager
    def _as_store_error(self) -> Iterator[None]:
        try:
            yield
        except LockServiceError as error:
            why = f"the state in {self._title} can't be used: {error.args[0]}"
            raise StateStoreError(why, remedy=error.remedy, retriable=error.retriable) from error

    # -- for commands ---------------------------------------------------------------------------------------------

    def describe(self) -> str:
        return f"{self._title} at {self._session.service.address}"

    async def problems(self, destination: str, *, must_exist: bool = False) -> list[str]:
        paths = self._session.paths.destination(destination)
        try:
            head, node = await self._read(destination)
            if must_exist and node is None:
                return [
                    f"there is no node {paths.position} in {self._title}: no daemon has run {destination} with this "
                    f"configuration -> check the addresses and root in [{self._session.service.name}]"
                ]
            if head.pieces:
                await self.schema_entries(destination)
            problem = await self._session.service.problem(paths.base, self._session.timeout)
        except (LockServiceError, StateStoreError) as error:
            return [str(error)]
        return [problem] if problem else []

    # -- reading --------------------------------------------------------------------------------------------------

    async def _read(self, destination: str) -> tuple[Head, Node | None]:
        """Reads the latest state: a follower may be behind."""
        path = self._session.paths.destination(destination).position
        await self._session.sync()
        node = await self._session.get(path)
        return (Head() if node is None else Head.decode(node.data, path)), node

    async def _get_all(self, paths: list[str]) -> list[Node | None]:
        nodes: list[Node | None] = []
        for start in range(0, len(paths), _AT_ONCE):
            nodes += await all_of(*(self._session.get(path) for path in paths[start : start + _AT_ONCE]))
        return nodes

    def _known_for(self, destination: str, guard: Guard) -> _Known:
        """Returns what begin_epoch() or commit() left here; nothing else will do, because the node's version belongs to
        the guard."""
        known = self._known.get(destination)
        if known is None or (known.head.epoch, known.head.version) != (guard.epoch, guard.version):
            raise self._fenced(destination, f"the guard of epoch {guard.epoch}, version {guard.version} is void")
        return known

    # -- writing --------------------------------------------------------------------------------------------------

    async def _history_operations(self, paths: DestinationPaths, head: Head) -> tuple[Head, list[Op]]:
        """Returns the write of this change's slot: often none."""
        if not head.history_due():
            return head, []
        head, slot = head.noted(RINGS.get(head.actor, _RING))
        path, entry = paths.slot(slot), head.encode_entry()
        there = await self._session.get(path) is not None
        return head, [Set(path, entry) if there else Create(path, entry)]

    async def _piece_operations(self, paths: DestinationPaths, number: int, pieces: list[bytes]) -> list[Op]:
        if not pieces:
            return []
        there = set(await self._session.children(paths.schema))
        operations: list[Op] = []
        for piece in pieces:
            path = paths.piece(number)
            left_behind = path.rpartition("/")[2] in there
            operations.append(Set(path, piece) if left_behind else Create(path, piece))
            number += 1
        return operations

    async def _remove_void(self, paths: DestinationPaths, fence: int, first: int) -> None:
        """Removes pieces of the schema history that no head refers to any more, also those that an earlier call has
        left. Pieces that it can't remove now are left to the next call."""
        with contextlib.suppress(LockServiceError):
            there = await self._session.children(paths.schema)
            names = sorted(name for name in there if name.isdigit() and int(name) < first)
            for start in range(0, len(names), _AT_ONCE):
                gone = [Delete(f"{paths.schema}/{name}") for name in names[start : start + _AT_ONCE]]
                await self._session.multi(Check(paths.epoch, fence), *gone)

    async def _write(
        self,
        destination: str,
        known: _Known,
        fence: int,
        operations: list[Op],
        data: bytes | None,
    ) -> None:
        """Writes one guarded request, until its outcome is known. `data` is the new content of the position node; None:
        pieces only, which may be written twice."""
        paths = self._session.paths.destination(destination)
        deadline = runtime.monotonic() + 2 * self._session.timeout
        unknown = False
        while True:
            try:
                if unknown:
                    await self._session.sync()  # what is not executed by now never will be
                    if data is None:
                        operations = [await self._again(operation) for operation in operations]
                    elif (version := await self._done(paths, data, known.node_version)) is not None:
                        break
                    unknown = False
                guarded = Check(paths.epoch, fence), *operations
                version = (await self._session.multi(*guarded, generation=known.generation))[1]
                break
            except Refused as refused:
                if refused.why in ("bad_version", "no_node", "node_exists"):
                    raise self._fenced(destination, str(refused)) from refused
                raise
            except SessionOver as error:
                raise self._fenced(destination, str(error)) from error
            except (Disconnected, OutcomeUnknown) as error:
                unknown = unknown or isinstance(error, OutcomeUnknown)
                if runtime.monotonic() > deadline:
                    raise
        if data is not None:
            known.node_version = version

    async def _again(self, operation: Op) -> Op:
        """Returns the write for a piece that may already be written."""
        if isinstance(operation, Create) and await self._session.get(operation.path) is not None:
            return Set(operation.path, operation.data)
        return operation

    async def _done(self, paths: DestinationPaths, data: bytes, before: int) -> int | None:
        """Returns the version of the position node if it has `data`, written after `before`."""
        node = await self._session.get(paths.position)
        return node.version if node is not None and node.data == data and node.version != before else None

    def _fenced(self, destination: str, why: str) -> Fenced:
        """Returns the error for a write of ours that came too late; counts it."""
        counts = self._session.counts.fenced_writes
        counts[destination] = counts.get(destination, 0) + 1
        self._known.pop(destination, None)
        _log.warning("a write of the state was refused", destination=destination, reason=why)
        return Fenced(f"nothing was written for {destination}, which this daemon no longer runs: {why}")


def _size(operation: Op) -> int:
    return len(operation.path) + 100 + (len(operation.data) if isinstance(operation, Create | Set) else 0)


def _batches(pieces: list[Op], last: list[Op]) -> list[list[Op]]:
    """Moves as many pieces as fit into the request `last`; returns the others as small enough requests before it."""
    room = _REQUEST - sum(map(_size, last))
    if room < 0:
        raise StateStoreError(
            "the position is too large for a node",
            remedy="the GTID set has too many intervals or servers; use the state store of another kind",
        )
    while pieces and _size(pieces[-1]) <= room:
        room -= _size(pieces[-1])
        last.append(pieces.pop())
    batches: list[list[Op]] = []
    for piece in pieces:
        if not batches or sum(map(_size, [*batches[-1], piece])) > _REQUEST:
            batches.append([])
        batches[-1].append(piece)
    return batches
