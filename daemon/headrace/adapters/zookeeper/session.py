"""The one ZooKeeper session of a process: its life, its place among the daemons, the proof that its locks are ours."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeGuard, TypeVar

import orjson
import structlog

from headrace import __version__
from headrace.adapters.zookeeper.client import Client
from headrace.adapters.zookeeper.errors import (
    Disconnected,
    NodeNameTaken,
    OutcomeUnknown,
    Refused,
    SessionOver,
    ZooKeeperError,
)
from headrace.adapters.zookeeper.operations import Create, Node, Op, Set, read_json
from headrace.adapters.zookeeper.paths import Paths, node_name
from headrace.adapters.zookeeper.proofs import Proofs
from headrace.adapters.zookeeper.settings import ZooKeeperSettings
from headrace.ports.cluster import ClusterCounts
from headrace.tasks import set_within

_T = TypeVar("_T")
_log = structlog.get_logger(__name__)
_LOOK = 0.5
"""Seconds between two attempts at what ZooKeeper did not do."""


class Session:
    """Shared by all locks and stores of a process.

    `node` is this daemon's name, `info` what others are to know of it (JSON types). After the session is lost kazoo
    makes another one by itself: `generation` tells them apart, and grows whenever one ends. A command of an operator is
    no `member`: nobody else sees it, and it can be used where a daemon of that name runs. `capacity` is how many locks
    it may hold at once; 0: any number.
    """

    def __init__(
        self, settings: ZooKeeperSettings, node: str, info: dict[str, Any], *, member: bool = True, capacity: int = 0
    ) -> None:
        self.settings = settings
        self._capacity = capacity
        self._taking = 0
        self._member = member
        self.node = node
        self.paths = Paths(settings.root)
        self.counts = ClusterCounts(settings.service)
        self.drained = False
        """Whether this daemon is to run nothing."""
        self.generation = 0
        self.session_id = 0
        self.state = "lost"
        """connected, suspended or lost"""
        self.proofs = Proofs(settings.session_timeout, self._write_proof, self._own_proof, self._register_again)
        """What the held locks are proved by."""
        self._info = {"node": node, **info, "since": time.time_ns() // 1000, "version": __version__}
        self._client: Client | None = None
        self._changed = asyncio.Event()
        self._listeners: set[Callable[[], None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._suspended_at = 0.0
        self._registered = False
        self._drain_unknown = True

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects and takes our place among the live daemons, waiting for that of a crashed predecessor to end.
        Raises LockServiceError."""
        self._client = client = Client(self.settings, self._on_link)
        try:
            client.begin()
            limit = max(3.0, self.settings.session_timeout)
            try:
                await self.wait_connected(limit)
            except Disconnected as error:
                why = f": {client.last_problem}" if client.last_problem else ""
                raise ZooKeeperError(
                    f"no ZooKeeper of {', '.join(self.settings.hosts)} could be reached within {limit:g} s{why}",
                    remedy="look whether the ensemble runs and has a leader, at [zookeeper] hosts and at its TLS keys",
                ) from error
            await self._register()
            await self._look_drained()
            self.spawn(self._keep(), "proofs")
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Ends the session, and with it every lock; safe to call twice."""
        client, self._client = self._client, None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end("the ZooKeeper session was closed")
        if client is not None:
            await client.stop()

    @property
    def timeout(self) -> float:
        """Of the session, in seconds, as the servers granted it."""
        return self.proofs.timeout

    @property
    def connected(self) -> bool:
        """Whether a call can be made now."""
        return self._client is not None and self.state == "connected" and self._client.connected

    async def wait_connected(self, limit: float, generation: int | None = None) -> None:
        """Returns once a call can be made. Raises Disconnected after `limit` seconds, and SessionOver as soon as the
        session is not that of `generation`."""
        try:
            async with asyncio.timeout(limit):
                while not self.connected:
                    if self._client is None:
                        raise Disconnected("the ZooKeeper session is closed")
                    if generation is not None and generation != self.generation:
                        break
                    await set_within(self._changed, 0.1)  # the client may know of a change before we are told
        except TimeoutError:
            raise Disconnected(
                f"there has been no connection to ZooKeeper ({', '.join(self.settings.hosts)}) for {limit:g} s",
                remedy="look whether the ensemble runs and has a leader",
            ) from None
        if generation is not None and generation != self.generation:
            raise SessionOver("the ZooKeeper session is over")

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """`callback` is called after each change of the connection and of `drained`. Returns what ends that."""
        self._listeners.add(callback)
        return lambda: self._listeners.discard(callback)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs until it is done or the session is closed."""
        task = asyncio.create_task(work, name=f"zookeeper: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- calls ----------------------------------------------------------------------------------------------------

    async def get(self, path: str, watch: Callable[[], None] | None = None) -> Node | None:
        """See Client.get. Waits for the connection. Raises LockServiceError."""
        return await self._read(lambda client: client.get(path, self.timeout, watch))

    def write_soon(self, path: str, data: bytes) -> None:
        """See Client.write_soon."""
        if (client := self._client) is not None:
            client.write_soon(path, data)

    async def children(self, path: str) -> list[str]:
        """Names below a node; none when it is not there. Waits for the connection. Raises LockServiceError."""
        return await self._read(lambda client: client.children(path, self.timeout))

    async def read_children(self, path: str) -> dict[str, Node]:
        """The nodes below a node, by name. Waits for the connection. Raises LockServiceError."""
        names = await self.children(path)
        nodes = await asyncio.gather(*(self.get(f"{path}/{name}") for name in names))
        found = zip(names, nodes, strict=True)  # one may have gone since
        return {node_name(name): node for name, node in found if node is not None}

    def owns(self, node: Node | None) -> TypeGuard[Node]:
        """Whether it is there and belongs to the present session."""
        return node is not None and node.owner == self.session_id != 0

    async def sync(self) -> None:
        """Reads from here on see all that was written before. Waits for the connection. Raises LockServiceError."""
        await self._read(lambda client: client.sync(self.paths.root, self.timeout))

    async def multi(self, *operations: Op, generation: int | None = None) -> list[int]:
        """All or nothing, once: what went wrong on the way is for the caller to find out. Waits for the connection.
        `generation`: only within that session. Raises Refused, OutcomeUnknown, SessionOver or Disconnected.

        An answer that comes when the session has changed meanwhile may belong to the next one: its outcome counts as
        unknown.
        """
        await self.wait_connected(self.timeout, generation)
        before = self.generation
        versions = await self._open_client().multi(operations, self.timeout)
        if self.generation != before:
            raise OutcomeUnknown("the ZooKeeper session ended while a change was made")
        return versions

    async def make_parents(self, *paths: str) -> None:
        """Creates persistent nodes that are not there, with their parents. Raises LockServiceError."""
        for path in paths:
            if await self.get(path) is not None:
                continue
            await self.make_parents(*([path.rpartition("/")[0]] if path.count("/") > 1 else []))
            try:
                await self.multi(Create(path, b""))
            except Refused as refused:
                if refused.why != "node_exists":
                    raise

    async def put_up(
        self, path: str, data: bytes, generation: int, watch: Callable[[], None] | None = None
    ) -> Node | None:
        """Creates an ephemeral node of the session of `generation`, and its parents. Returns None, or the node that
        stands there already; it is ours when the answer was lost. Raises LockServiceError."""
        while True:
            try:
                await self.multi(Create(path, data, ephemeral=True), generation=generation)
                return None
            except (Refused, OutcomeUnknown) as error:
                why = error.why if isinstance(error, Refused) else "node_exists"
                if why == "no_node":
                    await self.make_parents(path.rpartition("/")[0])
                elif why != "node_exists":
                    raise
                elif (there := await self.get(path, watch)) is not None:
                    return there

    async def _read(self, call: Callable[[Client], Awaitable[_T]]) -> _T:
        """Reads can be asked for again."""
        for _ in range(2):
            await self.wait_connected(self.timeout)
            try:
                return await call(self._open_client())
            except (Disconnected, OutcomeUnknown, SessionOver):
                continue
        await self.wait_connected(self.timeout)
        return await call(self._open_client())

    def _open_client(self) -> Client:
        if self._client is None:
            raise Disconnected("the ZooKeeper session is closed")
        return self._client

    # -- the connection -------------------------------------------------------------------------------------------

    def _on_link(self, state: str, session: int, timeout: float) -> None:
        if self._client is None:
            return
        if state == "connected":
            if session != self.session_id:
                self._end("the ZooKeeper session was lost")
                self.session_id = session
                self.counts.sessions += 1
                self._registered = False
            elif timeout < self.timeout:
                # The leases run by the longer one, so they can't be relied upon.
                self.proofs.lose_all("the servers have shortened the ZooKeeper session's timeout")
            self.proofs.reconnected(timeout)
            _log.info("ZooKeeper is connected", session=f"{session & (1 << 64) - 1:#x}", timeout=timeout)
        elif state == "suspended":
            self.counts.suspensions += 1
            self._suspended_at = time.monotonic()
            _log.warning("the connection to ZooKeeper is lost", reason=self._client.last_problem)
        else:
            _log.error("the ZooKeeper session is lost", reason=self._client.last_problem)
            self._end("the ZooKeeper session was lost")
        self.state = state
        self._drain_unknown = True
        self.proofs.soon.set()
        self._tell()

    def _end(self, reason: str) -> None:
        self.generation += 1
        self.session_id = 0
        self.state = "lost"
        self._registered = False
        self.proofs.lose_all(reason)

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for listener in tuple(self._listeners):
            listener()

    # -- among the daemons ----------------------------------------------------------------------------------------

    async def members(self) -> dict[str, dict[str, Any]]:
        """The live daemons by name, as each describes itself. Raises LockServiceError."""
        nodes = await self.read_children(self.paths.cluster)
        return {name: read_json(node.data) for name, node in nodes.items()}

    async def _register(self) -> None:
        """Our node in `cluster`. A crashed predecessor's goes when its session ends."""
        self._registered = self._registered or not self._member
        if not self._registered:
            await self.make_parents(self.paths.cluster, self.paths.destinations, self.paths.drains)
        path, deadline = self.paths.member(self.node), time.monotonic() + self.timeout + 2.0
        while not self._registered:
            gone = asyncio.Event()
            there = await self.put_up(path, orjson.dumps(self._info), self.generation, gone.set)
            if there is None or self.owns(there):
                self._registered = True
            elif not await set_within(gone, max(0.0, deadline - time.monotonic())):
                other = read_json(there.data)
                raise NodeNameTaken(
                    f"another daemon goes by the name {self.node}: that at "
                    f"{other.get('address') or 'an unknown address'}, version {other.get('version', '?')}",
                    remedy="give each daemon its own [daemon] node",
                )

    async def _look_drained(self) -> None:
        if not self._drain_unknown or not self._member:
            return
        self._drain_unknown = False

        def again() -> None:
            self._drain_unknown = True
            self.proofs.soon.set()

        drained = await self.get(self.paths.drain(self.node), again) is not None
        if drained != self.drained:
            self.drained = drained
            _log.info("this daemon is to run nothing" if drained else "this daemon may run destinations again")
            self._tell()

    # -- how many locks -------------------------------------------------------------------------------------------

    def is_full(self) -> bool:
        """Whether no further lock may be taken."""
        return 0 < self._capacity <= self.proofs.held + self._taking

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """While a lock is being taken, it counts as held."""
        self._taking += 1
        try:
            yield
        finally:
            self._taking -= 1

    # -- the proof ------------------------------------------------------------------------------------------------

    def _own_proof(self) -> list[Op]:
        return [Set(self.paths.member(self.node), orjson.dumps(self._info))] if self._member else []

    async def _write_proof(self, operations: Sequence[Op]) -> None:
        await self.multi(*operations, generation=self.generation)

    async def _register_again(self) -> None:
        self._registered = False
        await self._register()

    async def _keep(self) -> None:
        """Proves the session in time, and puts up again what a lost one has taken along."""
        problem = ""
        while True:
            try:
                await self._revive()
                if not self._registered:
                    await self._register()
                await self._look_drained()
                await self.proofs.now()
                problem = ""
            except ZooKeeperError as error:
                if not isinstance(error, Disconnected | OutcomeUnknown | SessionOver) and error.told() != problem:
                    problem = error.told()
                    _log.error("ZooKeeper does not do what is needed", error=problem)
                self.proofs.soon.clear()
                if self.state == "suspended" and time.monotonic() - self._suspended_at > self.timeout:
                    self._open_client().forget_progress()
                await set_within(self._changed, _LOOK)
                continue
            await self.proofs.until_next()

    async def _revive(self) -> None:
        """kazoo's thread ends for good on an error that it does not expect: then another client takes its place."""
        client = self._client
        if client is None or not client.dead:
            return
        _log.error("the ZooKeeper client has ended", reason=client.last_problem)
        self._end("the ZooKeeper client has ended")
        self._tell()
        await client.stop()
        if self._client is client:
            self._client = Client(self.settings, self._on_link)
            self._client.begin()
