"""A model of kazoo's client on an ensemble. The adapter of the project runs unchanged above it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

from kazoo import exceptions
from kazoo.protocol.states import KazooState, KeeperState

from headrace.adapters.zookeeper.service import ZooKeeper
from headrace.adapters.zookeeper.settings import ZooKeeperSettings
from headrace.ports.lock_service import Check, ClusterAdapter, Create, Delete, LockService, Op, Set
from headrace.tasks import set_within
from sim.loop import LANE
from sim.network import Wire
from sim.zookeeper.ensemble import ROOT, Ensemble, Server, Session, Stored

ENSEMBLE: ContextVar[Ensemble] = ContextVar("ensemble")
"""The ensemble that the adapters of the present simulation connect to."""
_STOP_LIMIT = 5.0
"""Maximum seconds that the adapter waits for the end of the session, as with kazoo."""


class _Result:
    """kazoo's IAsyncResult, as far as the adapter uses it."""

    def __init__(self) -> None:
        self.value: Any = None
        self.exception: Exception | None = None
        self._done = False
        self._callbacks = list[Callable[[_Result], None]]()

    def rawlink(self, callback: Callable[[_Result], None]) -> None:
        """Calls it with the result, at once if it is there."""
        if self._done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def successful(self) -> bool:
        """Returns whether it ended without an error."""
        return self._done and self.exception is None

    def settle(self, value: Any = None, exception: Exception | None = None) -> None:
        """Ends it, unless it has ended."""
        if not self._done:
            self._done, self.value, self.exception = True, value, exception
            for callback in self._callbacks:
                callback(self)


class _Transaction:
    def __init__(self, client: SimKazoo) -> None:
        self._client, self._operations = client, list[Op]()

    def create(self, path: str, data: bytes, acl: Any = None, ephemeral: bool = False) -> None:
        self._operations.append(Create(path, data, ephemeral))

    def set_data(self, path: str, data: bytes, version: int) -> None:
        self._operations.append(Set(path, data, version))

    def check(self, path: str, version: int) -> None:
        self._operations.append(Check(path, version))

    def delete(self, path: str, version: int) -> None:
        self._operations.append(Delete(path, version))

    def commit_async(self) -> _Result:
        return self._client.write(self._operations)


class SimKazoo:
    """A client of the ensemble, as kazoo is one: it pings, notices that its server is away, finds another, and goes on
    with its session if that has not expired."""

    def __init__(self, ensemble: Ensemble, timeout: float, on_state: Callable[[str], None]) -> None:
        self._ensemble, self._timeout, self._on_state = ensemble, timeout, on_state
        self.process = LANE.get().process
        self.context = self.process.context()
        self._rng = random.Random(ensemble.rng.getrandbits(64))
        self._session: Session | None = None
        self._server: Server | None = None
        self._pending = dict[_Result, None]()
        self._watches = dict[Callable[[], None], Callable[[Any], None]]()
        """What each event of the present connection calls."""
        self._answered = 0.0
        self._epoch = 0
        """Counts connections: what belongs to a former one is dropped."""
        self._there: Wire | None = None
        self._back: Wire | None = None
        """Of the present connection."""
        self._closed = False
        self.last_zxid = 0
        self.client_state = KeeperState.CONNECTING
        self._state: str = KazooState.LOST
        """What was reported last, or what kazoo begins with."""

    @property
    def connected(self) -> bool:
        return self._server is not None

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        return (self._session.number, b"") if self._session is not None else None

    def _report(self, state: str) -> None:
        if state != self._state:
            self._state = state
            self._on_state(state)

    def start_async(self) -> None:
        """Begins to connect."""
        self._later(0.0, self._connect)

    def stop(self) -> _Result:
        """Ends the session, if a server can be reached; the result comes once it is over."""
        done, server, session = _Result(), self._server, self._session
        if self._closed:
            done.settle()
            return done
        self._closed = True

        def over() -> None:
            self._drop(report=False)
            self.client_state = KeeperState.CLOSED
            self._report(KazooState.LOST)
            done.settle()

        if server is None or session is None:
            over()
            return done

        def leave() -> None:
            if not session.over:
                self._ensemble.end_session(session)
            server.apply_to(len(self._ensemble.log))
            self._answer(server, over)

        self._ask(server, lambda: self._at_leader(server, leave))
        return done

    # -- the connection -------------------------------------------------------------------------------------------

    def _later(self, delay: float, call: Callable[..., None], *given: Any) -> None:
        self._ensemble.loop.call_later(delay, call, *given, context=self.context)

    def _connect(self) -> None:
        if self._closed or self._server is not None:
            return
        servers = list(self._ensemble.servers.values())
        server = servers[int(self._rng.random() * len(servers))]
        self._epoch += 1
        network, ours = self._ensemble.network, self.process.name
        self._there = Wire(network, ours, server.name, server.process.context())
        self._back = Wire(network, server.name, ours, self.context)
        epoch = self._epoch
        self._ask(server, lambda: self._welcome(server, epoch))
        self._later(min(self._timeout / 3, 2.0), self._give_up, epoch)

    def _give_up(self, epoch: int) -> None:
        if epoch == self._epoch and self._server is None and not self._closed:
            self._connect()

    def _welcome(self, server: Server, epoch: int) -> None:
        """Serves the client's request to connect, at the server."""
        ensemble, session = self._ensemble, self._session
        leader = ensemble.leader
        if not server.serves or leader is None or not ensemble.reaches(leader, server) or not ensemble.quorum(leader):
            return
        if session is not None and not session.over:
            session.heard = ensemble.loop.time()  # the leader validates each session that connects
            self._answer(server, lambda: self._connected(server, epoch, session))
        elif session is not None:
            self._answer(server, lambda: self._expired(epoch))
        else:
            made = ensemble.new_session(self._timeout)
            self._answer(server, lambda: self._connected(server, epoch, made))

    def _connected(self, server: Server, epoch: int, session: Session) -> None:
        if epoch != self._epoch or self._closed:
            return
        self._session, self._server, self._answered = session, server, self._ensemble.loop.time()
        server.clients.append(self)
        self.client_state = KeeperState.CONNECTED
        self._report(KazooState.CONNECTED)
        self._later(self._timeout / 3, self._ping, epoch)

    def _expired(self, epoch: int) -> None:
        if epoch != self._epoch or self._closed:
            return
        self._session = None
        self.client_state = KeeperState.EXPIRED_SESSION
        self._report(KazooState.LOST)
        self._later(0.0, self._connect)

    def _ping(self, epoch: int) -> None:
        if epoch != self._epoch or self._server is None or self._closed:
            return
        ensemble, server, session = self._ensemble, self._server, self._session
        assert session is not None
        if ensemble.loop.time() - self._answered > self._timeout * 2 / 3:
            self.dropper()()
            return

        def touch() -> None:
            if server.serves and self in server.clients:
                if server is ensemble.leader:
                    session.heard = ensemble.loop.time()
                else:
                    server.touched[session.number] = None
                self._answer(server, answered)

        def answered() -> None:
            if epoch == self._epoch:
                self._answered = ensemble.loop.time()

        self._ask(server, touch)
        self._later(self._timeout / 3, self._ping, epoch)

    def dropper(self) -> Callable[[], None]:
        """Returns what ends the present connection, when it is called."""
        epoch = self._epoch

        def drop() -> None:
            if epoch == self._epoch and not self._closed:
                self._drop()
                self._later(self._rng.random(), self._connect)

        return drop

    def _drop(self, *, report: bool = True) -> None:
        server, self._server = self._server, None
        self._epoch += 1
        if server is not None and self in server.clients:
            server.clients.remove(self)
        pending, self._pending = self._pending, {}
        for result in pending:
            result.settle(exception=exceptions.ConnectionLoss())
        watches, self._watches = self._watches, {}
        if report and server is not None:
            self.client_state = KeeperState.CONNECTING
            self._report(KazooState.SUSPENDED)
            for watch in watches.values():  # as kazoo does: not at the end of the session
                watch(None)

    # -- requests -------------------------------------------------------------------------------------------------

    def _ask(self, server: Server, serve: Callable[[], Any]) -> None:
        """Runs `serve` at the server, after a way, in order."""
        assert self._there is not None
        self._there.send(serve)

    def _answer(self, server: Server, take: Callable[[], Any]) -> None:
        """Runs `take` at the client, after the way back, in order."""
        assert self._back is not None
        self._back.send(take)

    def _request(self, serve: Callable[[Server, Callable[..., None]], None]) -> _Result:
        """Sends a request. `serve` runs at the server, with what gives the answer."""
        result, server, epoch = _Result(), self._server, self._epoch
        if server is None:
            result.settle(exception=exceptions.ConnectionLoss())
            return result
        self._pending[result] = None

        def settle(**outcome: Any) -> None:
            if epoch == self._epoch:
                self._pending.pop(result, None)
                result.settle(**outcome)

        def answer(**outcome: Any) -> None:
            self._answer(server, lambda: settle(**outcome))

        def run() -> None:
            if server.serves and self in server.clients:
                server.catch_up()
                serve(server, answer)

        self._ask(server, run)
        return result

    def _watched(self, server: Server, path: str, watch: Callable[[Any], None] | None) -> None:
        if watch is None:
            return
        epoch = self._epoch

        def fire() -> None:
            if epoch == self._epoch and self._watches.pop(fire, None) is not None:
                watch(None)

        self._watches[fire] = watch
        server.watches.setdefault(path, []).append(lambda: self._answer(server, fire))

    def get_async(self, path: str, watch: Callable[[Any], None] | None = None) -> _Result:
        """Reads a node from the server's own state."""

        def serve(server: Server, answer: Callable[..., None]) -> None:
            if (node := server.nodes.get(path)) is None:
                answer(exception=exceptions.NoNodeError())
            else:
                self._watched(server, path, watch)
                answer(value=(node.data, _stat(node)))

        return self._request(serve)

    def exists_async(self, path: str, watch: Callable[[Any], None] | None = None) -> _Result:
        """Returns a node's description, None without one."""

        def serve(server: Server, answer: Callable[..., None]) -> None:
            self._watched(server, path, watch)
            node = server.nodes.get(path)
            answer(value=None if node is None else _stat(node))

        return self._request(serve)

    def get_children_async(self, path: str) -> _Result:
        """Returns the names below a node."""

        def serve(server: Server, answer: Callable[..., None]) -> None:
            if path not in server.nodes:
                answer(exception=exceptions.NoNodeError())
                return
            start = path if path == ROOT else f"{path}/"
            names = [one[len(start) :] for one in server.nodes if one.startswith(start)]
            answer(value=[name for name in names if name and "/" not in name])

        return self._request(serve)

    def sync_async(self, path: str) -> _Result:
        """Answers once the server has applied what the leader had committed."""

        def serve(server: Server, answer: Callable[..., None]) -> None:
            def caught_up() -> None:
                server.apply_to(len(self._ensemble.log))
                answer(value=path)

            self._at_leader(server, caught_up)

        return self._request(serve)

    def write(self, operations: Sequence[Op]) -> _Result:
        """Executes a multi at the leader."""
        session = self._session

        def serve(server: Server, answer: Callable[..., None]) -> None:
            def execute() -> None:
                if session is None or session.over:
                    answer(exception=exceptions.SessionExpiredError())
                    return
                session.heard = self._ensemble.loop.time()
                results = self._ensemble.execute(session, operations)
                server.apply_to(len(self._ensemble.log))
                answer(value=results)

            self._at_leader(server, execute)

        return self._request(serve)

    def _at_leader(self, server: Server, execute: Callable[[], Any]) -> None:
        """Executes there, if the leader has its majority; else nobody answers."""
        ensemble, leader = self._ensemble, self._ensemble.leader
        if leader is None:
            return

        def arrive() -> None:
            if ensemble.leader is leader and ensemble.quorum(leader):
                execute()

        if server is leader:
            arrive()
        else:
            ensemble.network.send(server.name, leader.name, arrive, leader.process.context())

    def create_async(self, path: str, data: bytes) -> _Result:
        """Creates one node."""
        return _first(self.write([Create(path, data)]))

    def set_async(self, path: str, data: bytes) -> _Result:
        """Writes one node."""
        return _first(self.write([Set(path, data)]))

    def transaction(self) -> _Transaction:
        """Returns an empty multi."""
        return _Transaction(self)


def _first(results: _Result) -> _Result:
    made = _Result()

    def take(result: _Result) -> None:
        one = result.exception or result.value[0]
        failed = isinstance(one, Exception)
        made.settle(None if failed else one, one if failed else None)

    results.rawlink(take)
    return made


def _stat(node: Stored) -> Any:
    return SimpleNamespace(version=node.version, ephemeralOwner=node.owner, czxid=node.created)


class SimZooKeeper(ZooKeeper):
    """The project's adapter with this client in place of kazoo's."""

    def _make(self) -> Any:
        made: SimKazoo

        def listen(state: str) -> None:
            identity = made.client_id
            session = int(identity[0]) if identity and state == KazooState.CONNECTED else 0
            self._link(state.lower(), session, self.timeout)  # type: ignore[arg-type]

        self._take_timeout(self.timeout)
        made = SimKazoo(ENSEMBLE.get(), self.timeout, listen)
        return made

    async def _stop(self, client: Any) -> None:
        ended = asyncio.Event()
        client.stop().rawlink(lambda _: ended.set())
        await set_within(ended, _STOP_LIMIT)


class SimZooKeeperAdapter(ClusterAdapter):
    section = ZooKeeperSettings

    def service(self, settings: ZooKeeperSettings) -> LockService:
        return SimZooKeeper(settings)


def settings_of(sections: Mapping[str, Mapping[str, Any]]) -> ZooKeeperSettings:
    """Returns the settings in the sections of headrace.toml."""
    return ZooKeeperSettings.model_validate(sections["zookeeper"])
