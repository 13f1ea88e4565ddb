"""The one session of a process with its lock service: its life, its registration among the daemons, the proof of its
locks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeGuard, TypeVar

import orjson
import structlog

from headrace import __version__, runtime
from headrace.cluster.paths import Paths, node_name
from headrace.cluster.proofs import Proofs
from headrace.errors import LockServiceError
from headrace.ports.lock import ClusterCounts
from headrace.ports.lock_service import (
    Create,
    Disconnected,
    Link,
    LockService,
    Node,
    Op,
    OutcomeUnknown,
    Refused,
    ServiceError,
    SessionOver,
    Set,
    read_json,
)
from headrace.tasks import all_of, set_within

_T = TypeVar("_T")
_log = structlog.get_logger(__name__)
_PAUSE = 0.5
"""Seconds between two attempts at a failed request."""


class NodeNameTaken(ServiceError):
    """Another live daemon has our name."""

    retriable = False


class Session:
    """The session that all locks and stores of a process share.

    `node` is this daemon's name, `info` what it publishes of itself (JSON types). After the session is lost the service
    makes another one by itself: `generation` identifies them, and increases whenever one ends. An operator's command is
    no `member`: it is not visible to others, and can be used on a host where a daemon of that name runs. `capacity` is
    how many locks it may hold at once; 0: any number."""

    def __init__(
        self, service: LockService, node: str, info: dict[str, Any], *, member: bool = True, capacity: int = 0
    ) -> None:
        self.service = service
        self._capacity = capacity
        self._taking = 0
        self._member = member
        self.node = node
        self.paths = Paths(service.root)
        self.counts = ClusterCounts(service.name)
        self.drained = False
        """Whether this daemon must run nothing."""
        self.generation = 0
        self.session_id = 0
        self.state: Link = "lost"
        self.proofs = Proofs(service.timeout, self._prove, self._own_proof, self._register_again)
        """The proofs of the held locks."""
        self._info = {"node": node, **info, "since": runtime.now_us(), "version": __version__}
        self._open = False
        self._changed = asyncio.Event()
        self._listeners = dict[Callable[[], None], None]()
        self._tasks = dict[asyncio.Task[None], None]()
        self._registered = False
        self._drain_unknown = True

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects and registers among the live daemons, after waiting for the registration of a crashed predecessor to
        end. Raises LockServiceError."""
        service, self._open = self.service, True
        try:
            service.open(self._on_link)
            limit = max(3.0, service.timeout)
            try:
                await self.wait_connected(limit, refused=True)
            except Disconnected as error:
                why = f": {service.last_problem}" if service.last_problem else ""
                raise ServiceError(
                    f"no {service.title} of {service.address} could be reached within {limit:g} s{why}",
                    remedy="check whether its servers run and have a leader, and their addresses and the TLS keys in "
                    f"[{service.name}]",
                ) from error
            await self._register()
            await self._read_drain()
            self.spawn(self._keep(), "proofs")
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Ends the session, and with it every lock; safe to call twice."""
        was_open, self._open = self._open, False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end("was closed")
        if was_open:
            await self.service.close()

    @property
    def timeout(self) -> float:
        """Returns the session timeout in seconds, as granted by the servers."""
        return self.proofs.timeout

    @property
    def connected(self) -> bool:
        """Returns whether a call can be made now."""
        return self._open and self.state == "connected" and self.service.connected

    async def wait_connected(self, limit: float, generation: int | None = None, *, refused: bool = False) -> None:
        """Waits until a call can be made. Raises Disconnected after `limit` seconds, and SessionOver as soon as the
        session is not that of `generation`. With `refused`, raises Refused as soon as a server rejects us."""
        title = self.service.title
        if not self.connected:  # rare, and nothing else needs the time limit
            try:
                async with asyncio.timeout(limit):
                    while not self.connected:
                        if not self._open:
                            raise Disconnected(f"the {title} session is closed")
                        if generation is not None and generation != self.generation:
                            break
                        if refused and self.service.refusal:
                            raise self.service.refusal
                        await set_within(self._changed, 0.1)  # the client may know of a change before it notifies us
            except TimeoutError:
                raise Disconnected(
                    f"there has been no connection to {title} ({self.service.address}) for {limit:g} s",
                    remedy="check whether its servers run and have a leader",
                ) from None
        if generation is not None and generation != self.generation:
            raise SessionOver(f"the {title} session is over")

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback` after each change of the connection and of `drained`. Returns a function that ends this."""
        self._listeners[callback] = None
        return lambda: self._listeners.pop(callback, None)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs a task until it is done or the session is closed."""
        task = asyncio.create_task(work, name=f"{self.service.name}: {name}")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    # -- calls ----------------------------------------------------------------------------------------------------

    async def get(self, path: str, watch: Callable[[], None] | None = None) -> Node | None:
        """See LockService.get. Waits for the connection. Raises LockServiceError."""
        return await self._read(lambda: self.service.get(path, self.timeout, watch))

    async def children(self, path: str) -> list[str]:
        """Returns the names below a node; none if it does not exist. Waits for the connection. Raises
        LockServiceError."""
        return await self._read(lambda: self.service.children(path, self.timeout))

    async def read_children(self, path: str) -> dict[str, Node]:
        """Returns the nodes below a node, by name. Waits for the connection. Raises LockServiceError."""
        names = await self.children(path)
        nodes = await all_of(*(self.get(f"{path}/{name}") for name in names))
        found = zip(names, nodes, strict=True)  # one may have been deleted since
        return {node_name(name): node for name, node in found if node is not None}

    def owns(self, node: Node | None) -> TypeGuard[Node]:
        """Returns whether the node exists and belongs to the present session."""
        return node is not None and node.owner == self.session_id != 0

    async def sync(self) -> None:
        """See LockService.sync. Waits for the connection. Raises LockServiceError."""
        await self._read(lambda: self.service.sync(self.timeout))

    async def multi(self, *operations: Op, generation: int | None = None) -> list[int]:
        """Executes all operations or none, once: after an error the caller must find out what happened; see
        LockService.multi. Waits for the connection. `generation`: only within that session. Raises Refused,
        OutcomeUnknown, SessionOver or Disconnected.

        An answer that arrives after the session has changed may belong to the next one: its outcome counts as
        unknown."""
        return await self._write(self.service.multi, operations, generation)

    async def put_up(
        self, path: str, data: bytes, generation: int, watch: Callable[[], None] | None = None
    ) -> Node | None:
        """Creates an ephemeral node of the session of `generation`. Returns None, or the node that already exists; it
        is ours if the answer was lost. Raises LockServiceError."""
        deadline = runtime.monotonic() + 4 * self.timeout
        while True:
            try:
                await self.multi(Create(path, data, ephemeral=True), generation=generation)
                return None
            except (Refused, OutcomeUnknown) as error:
                if isinstance(error, Refused) and error.why != "node_exists":
                    raise
                if (there := await self.get(path, watch)) is not None:
                    return there
                if runtime.monotonic() > deadline:
                    raise

    async def _read(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Repeats a read that failed: this is safe."""
        for _ in range(2):
            await self.wait_connected(self.timeout)
            with contextlib.suppress(Disconnected, OutcomeUnknown, SessionOver):
                return await call()
        await self.wait_connected(self.timeout)
        return await call()

    async def _write(
        self, call: Callable[[Sequence[Op], float], Awaitable[_T]], operations: Sequence[Op], generation: int | None
    ) -> _T:
        await self.wait_connected(self.timeout, generation)
        before = self.generation
        answer = await call(operations, self.timeout)
        if self.generation != before:
            raise OutcomeUnknown(f"the {self.service.title} session ended while a change was made")
        return answer

    # -- the connection -------------------------------------------------------------------------------------------

    def _on_link(self, state: Link, session: int, timeout: float) -> None:
        if not self._open:
            return
        title, reason = self.service.title, self.service.last_problem
        if state == "connected":
            if session != self.session_id:
                self._end("was lost")
                self.session_id = session
                self.counts.sessions += 1
                self._registered = False
            elif timeout < self.timeout:
                # The leases are based on the longer timeout, so they are not reliable.
                self.proofs.lose_all(f"the servers have shortened the {title} session's timeout")
            self.proofs.reconnected(timeout)
            _log.info(f"{title} is connected", session=f"{session & (1 << 64) - 1:#x}", timeout=timeout)
        elif state == "suspended":
            self.counts.suspensions += 1
            _log.warning(f"the connection to {title} is lost", reason=reason)
        else:
            _log.error(f"the {title} session is lost", reason=reason)
            self._end("was lost")
        self.state = state
        self._drain_unknown = True
        self.proofs.soon.set()
        self._report()

    def _end(self, what: str) -> None:
        self.generation += 1
        self.session_id = 0
        self.state = "lost"
        self._registered = False
        self.proofs.lose_all(f"the {self.service.title} session {what}")

    def _report(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for listener in tuple(self._listeners):
            listener()

    # -- among the daemons ----------------------------------------------------------------------------------------

    async def members(self) -> dict[str, dict[str, Any]]:
        """Returns the live daemons by name, as each describes itself. Raises LockServiceError."""
        nodes = await self.read_children(self.paths.cluster)
        return {name: read_json(node.data) for name, node in nodes.items()}

    async def _register(self) -> None:
        """Creates our node in `cluster`. A crashed predecessor's node is deleted when its session ends."""
        self._registered = self._registered or not self._member
        path, deadline = self.paths.member(self.node), runtime.monotonic() + self.timeout + 2.0
        while not self._registered:
            gone = asyncio.Event()
            there = await self.put_up(path, orjson.dumps(self._info), self.generation, gone.set)
            if there is None or self.owns(there):
                self._registered = True
            elif not await set_within(gone, max(0.0, deadline - runtime.monotonic())):
                other = read_json(there.data)
                raise NodeNameTaken(
                    f"another daemon has the name {self.node}: that at "
                    f"{other.get('address') or 'an unknown address'}, version {other.get('version', '?')}",
                    remedy="give each daemon its own [daemon] node",
                )

    async def _read_drain(self) -> None:
        if not self._drain_unknown or not self._member:
            return
        self._drain_unknown = False

        def again() -> None:
            self._drain_unknown = True
            self.proofs.soon.set()

        try:
            drained = await self.get(self.paths.drain(self.node), again) is not None
        except BaseException:
            self._drain_unknown = True
            raise
        if drained != self.drained:
            self.drained = drained
            _log.info("this daemon is drained" if drained else "this daemon may run destinations again")
            self._report()

    # -- how many locks -------------------------------------------------------------------------------------------

    def is_full(self) -> bool:
        """Returns whether no further lock may be taken."""
        return 0 < self._capacity <= self.proofs.held + self._taking

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Counts a lock as held while it is being taken."""
        self._taking += 1
        try:
            yield
        finally:
            self._taking -= 1

    # -- the proof ------------------------------------------------------------------------------------------------

    def _own_proof(self) -> list[Op]:
        return [Set(self.paths.member(self.node), orjson.dumps(self._info))] if self._member else []

    async def _prove(self, operations: Sequence[Op]) -> float:
        return await self._write(self.service.prove, operations, self.generation)

    async def _register_again(self) -> None:
        self._registered = False
        await self._register()

    async def _keep(self) -> None:
        """Proves the session in time, and recreates what a lost one has taken along."""
        problem = ""
        while True:
            try:
                if not self._registered:
                    await self._register()
                await self._read_drain()
                await self.proofs.now()
                problem = ""
            except LockServiceError as error:
                if (
                    not isinstance(error, Disconnected | OutcomeUnknown | SessionOver)
                    and error.operator_text() != problem
                ):
                    problem = error.operator_text()
                    _log.error(f"{self.service.title} does not do what is needed", error=problem)
                self.proofs.soon.clear()
                await set_within(self._changed, _PAUSE)
                continue
            except Exception:  # without proofs every lease lapses, and nothing else would show the cause
                _log.exception("unexpected error while proving the session")
                await asyncio.sleep(_PAUSE)
                continue
            await self.proofs.until_next()
