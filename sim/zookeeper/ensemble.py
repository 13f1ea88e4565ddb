"""A model of a ZooKeeper ensemble: its servers, sessions and nodes.

As in ZooKeeper's Administrator's and Programmer's Guides: writes go through the leader and need a majority; a follower
answers reads from what it has applied, also while it is cut off and has not noticed; it reports its clients to the
leader when it answers the leader's ping; the leader expires sessions at its ticks; a new leader restarts the time of
all sessions; an ephemeral node ends with its session."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kazoo import exceptions

from headrace.ports.lock_service import Create, Delete, Op, Set
from sim.loop import Process, SimLoop
from sim.network import Network

if TYPE_CHECKING:
    from sim.zookeeper.client import SimKazoo

TICK = 1.0
_SYNC_TICKS = 5
"""Ticks after which a follower that does not hear of the leader gives up."""
ROOT = "/"
_ELECTION = (0.3, 2.0)
"""Seconds that an election takes."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A node: `created` and `changed` are the numbers of the transactions."""

    data: bytes
    version: int
    owner: int
    created: int


@dataclass(slots=True)
class Session:
    """A client's session as the leader knows it."""

    number: int
    timeout: float
    heard: float
    """When the leader last heard of it."""
    over: bool = False
    owned: dict[str, None] = field(default_factory=dict)


Change = tuple[str, Stored | None]


class Server:
    """One server of the ensemble."""

    def __init__(self, ensemble: Ensemble, name: str) -> None:
        self.ensemble, self.name = ensemble, name
        self.process = Process(ensemble.loop, name)
        self.nodes = {ROOT: Stored(b"", 0, 0, 0)}
        self.applied = 0
        self.due = deque[tuple[float, int]]()
        """When transactions arrive that it has not applied: their numbers."""
        self.watches = dict[str, list[Callable[[], None]]]()
        self.touched = dict[int, None]()
        """Sessions of which it heard since its last report to the leader."""
        self.heard_leader = ensemble.loop.time()
        self.clients: list[SimKazoo] = []

    def catch_up(self) -> None:
        """Applies what has arrived by now. Called before each read, because nobody else sees when that is done."""
        now = self.ensemble.loop.time()
        while self.due and self.due[0][0] <= now:
            self.apply_to(self.due.popleft()[1])

    @property
    def serves(self) -> bool:
        """Returns whether it takes clients: it believes that it belongs to a majority."""
        passed = self.ensemble.loop.time() - self.heard_leader
        return self.process.alive and not self.process.frozen and passed < _SYNC_TICKS * TICK

    def kill(self) -> None:
        """Ends its process. What it has applied stays."""
        self.process.end()
        self.drop_clients()

    def restart(self) -> None:
        """Starts it again."""
        if not self.process.alive:
            self.process = Process(self.ensemble.loop, self.name)
            self.heard_leader = -1e9

    def apply_to(self, number: int) -> None:
        """Applies the ensemble's transactions up to this number."""
        log = self.ensemble.log
        while self.applied < min(number, len(log)):
            for path, node in log[self.applied]:
                self.nodes.pop(path, None)
                if node is not None:
                    self.nodes[path] = node
                for watch in self.watches.pop(path, ()):
                    watch()
            self.applied += 1

    def drop_clients(self) -> None:
        """Closes all connections of clients."""
        clients, self.clients = self.clients, []
        self.watches.clear()
        for client in clients:
            self.ensemble.network.send(self.name, client.process.name, client.dropper(), client.context)


class Ensemble:
    """Three servers, or another number. A write is committed when a majority has it."""

    def __init__(self, loop: SimLoop, network: Network, rng: random.Random, names: Sequence[str]) -> None:
        self.loop, self.network, self.rng = loop, network, rng
        self.log = list[list[Change]]()
        """The committed transactions."""
        self.servers = {name: Server(self, name) for name in names}
        self.leader: Server | None = next(iter(self.servers.values()))
        self.sessions = dict[int, Session]()
        self.lag = 0.05
        """Maximum seconds by which a follower applies later than the leader."""
        self.on_commit: Callable[[list[Change]], None] = lambda changes: None
        """Called with each transaction."""
        self._numbers = 0
        self._electing = False
        loop.call_later(TICK, self._tick, context=loop.world.context())

    def reaches(self, one: Server, other: Server) -> bool:
        """Returns whether two servers hear each other."""
        blocked = self.network.blocked
        alive = other.process.alive and not other.process.frozen
        return one is other or (alive and not blocked(one.name, other.name) and not blocked(other.name, one.name))

    def quorum(self, server: Server) -> bool:
        """Returns whether a server reaches a majority, itself included."""
        if not server.process.alive or server.process.frozen:
            return False
        return 2 * sum(self.reaches(server, other) for other in self.servers.values()) > len(self.servers)

    def new_session(self, timeout: float) -> Session:
        """Begins a session; called at the leader."""
        self._numbers += 1
        made = self.sessions[self._numbers] = Session(self._numbers, timeout, self.loop.time())
        return made

    @property
    def nodes(self) -> dict[str, Stored]:
        """Returns the nodes as the leader has them."""
        return self.leader.nodes if self.leader is not None else {}

    # -- time -----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.loop.call_later(TICK, self._tick, context=self.loop.world.context())
        leader, now = self.leader, self.loop.time()
        if leader is not None and self.quorum(leader):
            leader.heard_leader = now
            for server in self.servers.values():
                if self.reaches(leader, server):
                    server.heard_leader = now
                    server.apply_to(len(self.log))
                    for number in server.touched:
                        self.sessions[number].heard = now
                    server.touched.clear()
            for session in list(self.sessions.values()):
                if not session.over and now - session.heard > session.timeout:
                    self.end_session(session)
        elif not self._electing and any(self.quorum(server) for server in self.servers.values()):
            self._electing = True
            delay = self.rng.uniform(*_ELECTION)
            self.loop.call_later(delay, self._elect, context=self.loop.world.context())
        for server in self.servers.values():
            if not server.serves and server.clients:
                server.drop_clients()

    def _elect(self) -> None:
        self._electing = False
        able = [server for server in self.servers.values() if self.quorum(server)]
        if not able or (self.leader is not None and self.quorum(self.leader)):
            return
        # What was committed is at a majority, so one of a new majority has it, and the others take it from there.
        self.leader = able[int(self.rng.random() * len(able))]
        self.leader.apply_to(len(self.log))
        now = self.loop.time()
        for session in self.sessions.values():
            session.heard = now
        for server in able:
            server.heard_leader = now

    def end_session(self, session: Session) -> None:
        """Ends a session, and its ephemeral nodes with it."""
        session.over = True
        if session.owned:
            self.commit([(path, None) for path in session.owned])

    # -- writing --------------------------------------------------------------------------------------------------

    def commit(self, changes: list[Change]) -> int:
        """Commits changes at the leader; the others apply them a little later. Returns the transaction's number."""
        self.log.append(changes)
        self.on_commit(changes)
        number, leader = len(self.log), self.leader
        assert leader is not None
        leader.apply_to(number)
        for server in self.servers.values():
            if server is not leader and self.reaches(leader, server):
                due = self.loop.time() + self.rng.random() * self.lag
                server.due.append((due, number))
                if any(path in server.watches for path, _ in changes):
                    self.loop.call_at(due, server.catch_up, context=server.process.context())
        return number

    def execute(self, session: Session, operations: Sequence[Op]) -> list[Any]:
        """Executes a multi at the leader. Returns kazoo's results: of each operation, or errors for all."""
        leader = self.leader
        assert leader is not None
        nodes, after, changes = leader.nodes, dict[str, Stored | None](), list[Change]()
        results = list[Any]()
        number = len(self.log) + 1

        def there(path: str) -> Stored | None:
            return after[path] if path in after else nodes.get(path)

        def has_children(path: str) -> bool:
            start = f"{path}/"
            return any(one.startswith(start) and there(one) is not None for one in (*nodes, *after))

        for index, one in enumerate(operations):
            known = there(one.path)
            error: Exception | None = None
            if isinstance(one, Create):
                parent = there(one.path.rpartition("/")[0] or ROOT)
                if parent is None:
                    error = exceptions.NoNodeError()
                elif known is not None:
                    error = exceptions.NodeExistsError()
                elif parent.owner:
                    error = exceptions.NoChildrenForEphemeralsError()
                else:
                    made = Stored(one.data, 0, session.number if one.ephemeral else 0, number)
                    after[one.path] = made
                    changes.append((one.path, made))
                    results.append(one.path)
            elif known is None:
                error = exceptions.NoNodeError()
            elif one.version not in (-1, known.version):
                error = exceptions.BadVersionError()
            elif isinstance(one, Set):
                made = Stored(one.data, known.version + 1, known.owner, known.created)
                after[one.path] = made
                changes.append((one.path, made))
                results.append(SimpleNamespace(version=made.version))
            elif isinstance(one, Delete) and has_children(one.path):
                error = exceptions.NotEmptyError()
            elif isinstance(one, Delete):
                after[one.path] = None
                changes.append((one.path, None))
                results.append(True)
            else:
                results.append(True)
            if error is not None:
                rest = len(operations) - index - 1
                return [
                    *(exceptions.RolledBackError() for _ in range(index)),
                    error,
                    *(exceptions.RuntimeInconsistency() for _ in range(rest)),
                ]
        for path, node in changes:
            if node is None:
                if (gone := nodes.get(path)) is not None and gone.owner in self.sessions:
                    self.sessions[gone.owner].owned.pop(path, None)
            elif node.owner:
                self.sessions[node.owner].owned[path] = None
        if changes:
            self.commit(changes)
        return results
