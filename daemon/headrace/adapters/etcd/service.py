"""etcd as a lock service: the session is a lease, ephemeral nodes are keys of it, a multi is a transaction."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from headrace import runtime
from headrace.adapters.etcd.aetcd_internals import rpc
from headrace.adapters.etcd.connection import EtcdConnection, credentials
from headrace.adapters.etcd.settings import EtcdSettings
from headrace.ports.lock_service import (
    Check,
    Create,
    Delete,
    Disconnected,
    Link,
    LockService,
    Node,
    Op,
    Refused,
    ServiceError,
    SessionOver,
    Set,
    Why,
)
from headrace.tasks import cancel, first

_PAUSE = 0.1
"""Seconds before the next server is tried."""
_STOP_LIMIT = 2.0
_PAGE = 500
"""Maximum keys of one request."""
_MOST = 100
"""Maximum operations of one transaction of a proof; etcd's limit is 128 (--max-txn-ops)."""


class Etcd(LockService):
    """See LockService. A node's version is the revision of its last write, which etcd never gives out twice.

    Each session has a key of its own, `root`/sessions/LEASE, and each transaction compares its revision. So nothing is
    written for a session that is over. A request that was sent before sync() wrote that key, and had not arrived by
    then, will never be executed. etcd itself guarantees no such order, because a request may wait anywhere on its way
    to the leader."""

    title = "etcd"

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self.name, self.address, self.root = settings.service, ",".join(settings.endpoints), settings.root
        self.timeout = settings.session_timeout
        self._connection: EtcdConnection | None = None
        self._on_link: Callable[[Link, int, float], None]
        self._running: asyncio.Task[None] | None = None
        self._granted = 0
        """The lease's TTL, in seconds."""
        self._lease, self._revision = 0, 0
        """The session's lease, 0: there is none; and the revision of its key."""
        self._in_doubt = False
        """Whether something was sent whose outcome is unknown."""
        self._syncing = asyncio.Lock()
        self._alive_at = -math.inf
        self._last_words: Any = None

    # -- life -----------------------------------------------------------------------------------------------------

    def open(self, on_link: Callable[[Link, int, float], None]) -> None:
        self._on_link, tls = on_link, credentials(self._settings)
        self._running = asyncio.create_task(self._run(tls), name="etcd")

    async def close(self) -> None:
        running, self._running = self._running, None
        if self._connection is not None:
            with contextlib.suppress(ServiceError):
                revoke, request = self._connection.lease.LeaseRevoke, rpc.LeaseRevokeRequest(ID=self._lease)
                await self._connection.call(revoke, request, "the lease", _STOP_LIMIT)
        await cancel(running, limit=_STOP_LIMIT)

    @property
    def connected(self) -> bool:
        return self._connection is not None

    @property
    def _limit(self) -> float:
        """Returns the seconds for a server to answer: short enough that a dead machine, or a request that was lost with
        the leader, does not cost the session."""
        return max(1.0, self.timeout / max(4, 2 * len(self._settings.endpoints)))

    async def _run(self, tls: Any) -> None:
        for endpoint in itertools.cycle(self._settings.endpoints):
            connection = EtcdConnection(endpoint, self._settings, tls)
            try:
                await self._serve(connection)
            except Exception as error:
                self.last_problem = f"{endpoint}: {error.args[0] if isinstance(error, ServiceError) else repr(error)}"
                self.refusal = error if isinstance(error, Refused) else None
            finally:
                was, self._connection = self._connection, None
                await connection.close()
            if was is not None and self._lease:
                self._on_link("suspended", 0, 0.0)
            await asyncio.sleep(_PAUSE)

    async def _serve(self, connection: EtcdConnection) -> None:
        """Uses a server until it no longer answers. Raises ServiceError."""
        await connection.login(self._limit)
        if self._lease:
            await self._keep_alive(connection, self._limit)
        else:
            request = rpc.LeaseGrantRequest(TTL=math.ceil(self.timeout))
            granted = await connection.call(connection.lease.LeaseGrant, request, "a lease", self._limit)
            own = rpc.PutRequest(key=self._own(granted.ID), lease=granted.ID)
            written = await connection.call(connection.kv.Put, own, "the session", self._limit)
            self._lease, self._revision, self._granted = granted.ID, written.header.revision, granted.TTL
            self._in_doubt, self._alive_at = False, runtime.monotonic()
        self._connection = connection
        self._on_link("connected", self._lease, float(self._granted))
        await first({"watches": connection.watching(), "session": self._keep(connection)})

    async def _keep(self, connection: EtcdConnection) -> None:
        while True:
            await asyncio.sleep(max(0.0, self._alive_at + self._granted / 6 - runtime.monotonic()))
            await self._keep_alive(connection, self._limit)

    async def _keep_alive(self, connection: EtcdConnection, limit: float) -> int:
        """Renews the lease. Returns the server's Raft term from before. Raises SessionOver."""
        asked_at, lease = runtime.monotonic(), self._lease
        answer = await connection.keep_alive(lease, limit)
        if answer.TTL <= 0:
            raise self._over(lease)
        self._alive_at = asked_at
        return int(answer.header.raft_term)

    def _over(self, lease: int) -> SessionOver:
        """Ends the session; the next connection begins another one."""
        if lease == self._lease != 0:
            self._lease, self._connection = 0, None
            self._on_link("lost", 0, 0.0)
        return SessionOver("the etcd lease is over")

    def _own(self, lease: int) -> bytes:
        return f"{self.root}/sessions/{lease:x}".encode()

    def _open(self) -> EtcdConnection:
        if self._connection is None:
            raise Disconnected("there is no connection to etcd")
        return self._connection

    # -- reads ----------------------------------------------------------------------------------------------------

    async def get(self, path: str, limit: float, watch: Callable[[], None] | None = None) -> Node | None:
        connection, key = self._open(), path.encode()
        answer = await connection.call(connection.kv.Range, rpc.RangeRequest(key=key), path, limit)
        if watch is not None:
            connection.watch(key, answer.header.revision + 1, watch)
        return next((Node(kv.value, kv.mod_revision, kv.lease, kv.create_revision) for kv in answer.kvs), None)

    async def children(self, path: str, limit: float) -> list[str]:
        connection, found = self._open(), dict[str, None]()
        start, end, more = f"{path}/".encode(), f"{path}0".encode(), True  # 0 sorts after the slash
        while more:
            request = rpc.RangeRequest(key=start, range_end=end, limit=_PAGE, keys_only=True)
            answer = await connection.call(connection.kv.Range, request, path, limit)
            parts = [kv.key[len(path) + 1 :].decode().partition("/") for kv in answer.kvs]
            found |= dict.fromkeys(name for name, _, _ in parts)
            if more := answer.more:  # skips everything below a child
                name, slash, _ = parts[-1]
                start = f"{path}/{name}{'0' if slash else chr(0)}".encode()
        return [*found]

    # -- writes ---------------------------------------------------------------------------------------------------

    async def sync(self, limit: float) -> None:
        """Waits for earlier writes; reads are linearizable by themselves."""
        async with self._syncing:
            if not self._in_doubt:
                return
            connection, lease = self._open(), self._lease
            own = self._own(lease)
            put = rpc.RequestOp(request_put=rpc.PutRequest(key=own, ignore_lease=True))
            request = rpc.TxnRequest(compare=[_created(own, rpc.Compare.GREATER)], success=[put])
            answer = await connection.call(connection.kv.Txn, request, "the session", limit)
            if not answer.succeeded:
                raise self._over(lease)
            self._revision, self._in_doubt = answer.header.revision, False

    async def multi(self, operations: Sequence[Op], limit: float) -> list[int]:
        revision = (await self._write(operations, limit)).revision
        return [revision if isinstance(one, Create | Set) else 0 for one in operations]

    async def prove(self, operations: Sequence[Op], limit: float) -> float:
        """See LockService.prove. The server that thinks it is the leader renews a lease without a majority, so a
        renewal alone proves nothing: it may come from a leader that was frozen and has been replaced. A transaction
        after it is executed by the leader, or read with its majority. Both answers have the Raft term of the last entry
        that the asked server had applied, the first from before the renewal, the second from after the transaction. If
        the terms are equal, no other leader was elected in between, and the one that renewed the lease is the one that
        counts its time; a leader that is elected later begins the time of every lease again. So the lease lives for its
        TTL from when the renewal was requested."""
        while True:
            asked_at = runtime.monotonic()
            terms = {await self._keep_alive(self._open(), min(limit, self._limit))}
            for start in range(0, max(1, len(operations)), _MOST):
                try:
                    terms.add((await self._write(operations[start : start + _MOST], limit)).raft_term)
                except Refused as refused:
                    refused.index += start
                    raise
            if len(terms) == 1:
                return asked_at

    def write_soon(self, path: str, data: bytes) -> None:
        with contextlib.suppress(Exception):
            self._last_words = self._open().write_soon(path.encode(), data, self._limit)

    async def problem(self, path: str, limit: float) -> str:
        connection, put = self._open(), rpc.PutRequest(key=f"{path}/headrace-check".encode())
        never = _created(put.key, rpc.Compare.LESS)
        request = rpc.TxnRequest(compare=[never], success=[rpc.RequestOp(request_put=put)])
        try:  # rights are checked before the comparisons
            await connection.call(connection.kv.Txn, request, path, limit)
        except Refused as refused:
            return str(refused)
        return ""

    async def _write(self, operations: Sequence[Op], limit: float) -> Any:
        """Writes a transaction. Returns the header of the answer."""
        limit = min(limit, self._limit)
        if self._in_doubt:
            await self.sync(limit)
        while True:
            connection, lease, revision = self._open(), self._lease, self._revision
            own = self._own(lease)
            request = rpc.TxnRequest(
                compare=[_modified(own, revision), *(_condition(one) for one in operations)],
                success=[done for one in operations if (done := _change(one, lease)) is not None],
                failure=[_read(own), *(_read(one.path.encode()) for one in operations)],
            )
            what = operations[0].path if operations else "the session"
            try:
                answer = await connection.call(connection.kv.Txn, request, what, limit)
            except Refused:
                raise
            except BaseException:  # also if nobody waits for the answer any more
                self._in_doubt = self._in_doubt or lease == self._lease
                raise
            if answer.succeeded:
                return answer.header
            mine, *there = (next(iter(one.response_range.kvs), None) for one in answer.responses)
            if mine is None:
                raise self._over(lease)
            for index, (one, kv) in enumerate(zip(operations, there, strict=True)):
                if (why := _misfit(one, kv)) is not None:
                    raise Refused(f"etcd refused {one.path}: {why}", why, index)
            self._revision = mine.mod_revision  # of a sync() of ours


def _created(key: bytes, result: Any) -> rpc.Compare:
    return rpc.Compare(result=result, target=rpc.Compare.CREATE, key=key, create_revision=0)


def _modified(key: bytes, revision: int) -> rpc.Compare:
    return rpc.Compare(result=rpc.Compare.EQUAL, target=rpc.Compare.MOD, key=key, mod_revision=revision)


def _read(key: bytes) -> rpc.RequestOp:
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key, keys_only=True))


def _condition(one: Op) -> rpc.Compare:
    if isinstance(one, Create):
        return _created(one.path.encode(), rpc.Compare.EQUAL)
    if one.version < 0:
        return _created(one.path.encode(), rpc.Compare.GREATER)
    return _modified(one.path.encode(), one.version)


def _change(one: Op, lease: int) -> rpc.RequestOp | None:
    key = one.path.encode()
    match one:
        case Create():
            put = rpc.PutRequest(key=key, value=one.data, lease=lease if one.ephemeral else 0)
            return rpc.RequestOp(request_put=put)
        case Set():
            return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=one.data, ignore_lease=True))
        case Delete():
            return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))
        case Check():
            return None


def _misfit(one: Op, kv: Any) -> Why | None:
    if isinstance(one, Create):
        return None if kv is None else "node_exists"
    if kv is None:
        return "no_node"
    return None if one.version in (-1, kv.mod_revision) else "bad_version"
