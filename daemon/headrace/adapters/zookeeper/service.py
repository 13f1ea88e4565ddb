"""ZooKeeper by kazoo, which runs in threads of its own: every call has a time limit, none is queued."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from headrace import runtime
from headrace.adapters.zookeeper.kazoo_internals import on_session_timeout
from headrace.adapters.zookeeper.settings import ZooKeeperSettings
from headrace.adapters.zookeeper.sockets import Connector
from headrace.ports.lock_service import (
    Check,
    Create,
    Delete,
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
    Why,
)
from headrace.tasks import cancel, set_within

_REASONS: dict[type[Exception], Why] = {
    exceptions.NoNodeError: "no_node",
    exceptions.NodeExistsError: "node_exists",
    exceptions.BadVersionError: "bad_version",
    exceptions.NotEmptyError: "not_empty",
    exceptions.NoAuthError: "no_auth",
}
_ROLLED_BACK = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
"""The error of a multi for operations that did not cause its failure."""
_BROKEN = (exceptions.ConnectionLoss, exceptions.OperationTimeoutError, exceptions.SessionMovedError)
_STOP_LIMIT = 5.0
"""Maximum seconds to stop."""
_POLL = 0.5
"""Seconds between two checks whether the client still works."""
_NEVER = 2_147_483_647
"""A version that no node has."""


class ZooKeeper(LockService):
    """See LockService."""

    title = "ZooKeeper"
    serves_others = True

    def __init__(self, settings: ZooKeeperSettings) -> None:
        self._settings = settings
        self.name, self.address, self.root = settings.service, ",".join(settings.hosts), settings.root
        self.timeout = settings.session_timeout
        self._kazoo: Any = None
        self._granted = 0.0
        self._on_link: Callable[[Link, int, float], None] = lambda state, session, timeout: None
        self._keeping: asyncio.Task[None] | None = None
        self._proved_at = -math.inf
        self._heard = False
        """Whether the leader itself has just heard of us."""

    def open(self, on_link: Callable[[Link, int, float], None]) -> None:
        self._loop, self._on_link = asyncio.get_running_loop(), on_link
        self._kazoo = self._make()
        self._kazoo.start_async()
        self._keeping = asyncio.create_task(self._keep(), name="zookeeper client")

    async def close(self) -> None:
        """Closes the session; a stop that does not end in time is abandoned."""
        await cancel(self._keeping)
        client, self._kazoo = self._kazoo, None
        if client is not None:
            await self._stop(client)

    @property
    def connected(self) -> bool:
        return self._kazoo is not None and bool(self._kazoo.connected)

    async def _keep(self) -> None:
        """Does what kazoo does not. Its thread ends permanently on an unexpected error; another client replaces it
        then. A rebuilt ensemble permanently has older data than we have seen, and would silently refuse us; to it our
        session is over, so this is reported. Reads that matter follow a sync()."""
        away_since = math.inf
        while True:
            await asyncio.sleep(_POLL)
            away_since = math.inf if self.connected else min(away_since, runtime.monotonic())
            if self._kazoo.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED):
                self._link("lost", 0, 0.0)
                await self._stop(self._kazoo)
                with contextlib.suppress(ServiceError):  # a file of the TLS settings; later, then
                    self._kazoo = self._make()
                    self._kazoo.start_async()
            elif runtime.monotonic() - away_since > (self._granted or self.timeout):
                self._kazoo.last_zxid = 0

    async def _stop(self, client: Any) -> None:
        ended = asyncio.Event()

        def run() -> None:
            with contextlib.suppress(Exception):
                client.stop()
                client.close()
            self._to_loop(ended.set)

        # Not an executor's thread: Python waits for those when it exits.
        threading.Thread(target=run, name="headrace-zookeeper-stop", daemon=True).start()  # noqa: TID251 - kazoo has threads of its own
        await set_within(ended, _STOP_LIMIT)

    async def get(self, path: str, limit: float, watch: Callable[[], None] | None = None) -> Node | None:
        watcher = None if watch is None else lambda _event: self._to_loop(watch)
        try:
            data, stat = await self._call(lambda: self._kazoo.get_async(path, watch=watcher), path, limit)
        except Refused as refused:
            if refused.why != "no_node":
                raise
            if watcher is not None:
                # Reading a node that does not exist sets no watch; asking whether it exists does.
                there = await self._call(lambda: self._kazoo.exists_async(path, watch=watcher), path, limit)
                if there is not None:
                    return await self.get(path, limit)
            return None
        return Node(data, stat.version, stat.ephemeralOwner, stat.czxid)

    async def children(self, path: str, limit: float) -> list[str]:
        try:
            return list(await self._call(lambda: self._kazoo.get_children_async(path), path, limit))
        except Refused as refused:
            if refused.why == "no_node":
                return []
            raise

    async def sync(self, limit: float) -> None:
        """Waits until the server that we are connected to has caught up. The servers refuse requests of a session's
        former connection, and answer in order on the present one."""
        await self._call(lambda: self._kazoo.sync_async(self.root), self.root, limit)

    def write_soon(self, path: str, data: bytes) -> None:
        with contextlib.suppress(Exception):
            made = self._kazoo.create_async(path, data)
            made.rawlink(lambda result: result.successful() or self._kazoo.set_async(path, data))

    async def problem(self, path: str, limit: float) -> str:
        while path and await self.get(path, limit) is None:
            path = path.rpartition("/")[0]
        try:  # can't succeed because of the version: so it is refused either for our rights, or for that
            await self._multi([Create(f"{path}/headrace-check", b""), Check(path or "/", _NEVER)], limit)
        except Refused as refused:
            return "" if refused.why == "bad_version" else str(refused)
        return ""

    async def prove(self, operations: Sequence[Op], limit: float) -> float:
        """See LockService.prove. A read may be answered by a server that is cut off from the others, and proves
        nothing; a write has to go through the leader, which knows whether the session lives.

        The leader counts a session's timeout from when it last heard of it. A follower reports its clients only when it
        answers the leader's next ping. If the follower dies before, the leader last heard of us at our proof before
        that one, which is a sixth of the timeout older: the last third of the timeout covers that. If a process was
        frozen, and its server dies right after it continues, the leader may have heard of it only long before. So after
        a gap the second proof is the first that counts, because its server has long reported the one before to the
        leader. The leader checks each session that connects, and restarts its time."""
        while True:
            asked_at = runtime.monotonic()
            await self.multi(operations, limit)
            settled = self._heard or asked_at - self._proved_at < self._granted / 3
            self._heard, self._proved_at = False, asked_at
            if settled:
                return asked_at
            await asyncio.sleep(self._granted / 4)

    async def multi(self, operations: Sequence[Op], limit: float) -> list[int]:
        while True:
            try:
                return await self._multi(operations, limit)
            except Refused as refused:
                at = operations[refused.index]
                if refused.why != "no_node" or not isinstance(at, Create):
                    raise
            try:
                await self.multi([Create(at.path.rpartition("/")[0], b"", public=at.public)], limit)
            except Refused as parent:
                if parent.why != "node_exists":
                    raise

    async def _multi(self, operations: Sequence[Op], limit: float) -> list[int]:
        if not self.connected:
            raise _disconnected()
        transaction = self._kazoo.transaction()
        for one in operations:
            match one:
                case Create():
                    acl = OPEN_ACL_UNSAFE if one.public else None
                    transaction.create(one.path, one.data, acl=acl, ephemeral=one.ephemeral)
                case Set():
                    transaction.set_data(one.path, one.data, one.version)
                case Check():
                    transaction.check(one.path, one.version)
                case Delete():
                    transaction.delete(one.path, one.version)
        path = operations[0].path
        results: list[Any] = await self._call(transaction.commit_async, path, limit)
        for index, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(result, _ROLLED_BACK):
                raise self._error(result, operations[index].path, index)
        if any(isinstance(result, Exception) for result in results) or len(results) != len(operations):
            raise ServiceError(f"ZooKeeper's answer to a change of {path} is not understood: {results!r}")
        return [int(getattr(result, "version", 0)) for result in results]

    async def _call(self, start: Callable[[], Any], path: str, limit: float) -> Any:
        if not self.connected:  # kazoo would keep it and send it later, when nobody waits for it any more
            raise _disconnected()
        future: asyncio.Future[Any] = self._loop.create_future()

        def settle(result: Any) -> None:
            if future.done():
                return
            if result.exception is None:
                future.set_result(result.value)
            else:
                future.set_exception(result.exception)

        start().rawlink(lambda result: self._to_loop(settle, result))
        try:
            async with asyncio.timeout(limit):
                return await future
        except TimeoutError:
            raise OutcomeUnknown(
                f"ZooKeeper did not answer within {limit:g} s ({path})",
                remedy="check whether the ensemble has a leader",
            ) from None
        except exceptions.KazooException as error:
            raise self._error(error, path) from error

    def _error(self, error: Exception, path: str, index: int = 0) -> ServiceError:
        if isinstance(error, exceptions.SessionExpiredError):
            return SessionOver("the ZooKeeper session is over")
        if isinstance(error, _BROKEN):
            return OutcomeUnknown(f"the connection to ZooKeeper broke ({path})")
        why: Why = next((word for kind, word in _REASONS.items() if isinstance(error, kind)), "other")
        if why == "no_auth":
            return Refused(
                f"ZooKeeper does not let us use {path}",
                why,
                index,
                remedy="give [zookeeper] the user that made the nodes, or have an administrator change their ACL",
            )
        return Refused(f"ZooKeeper refused {path}: {type(error).__name__} {error}".rstrip(), why, index)

    def _to_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _make(self) -> Any:
        settings = self._settings
        handler = SequentialThreadingHandler()
        handler.create_connection = Connector(settings)
        user, password = settings.user, settings.password.get_secret_value()
        logger = logging.Logger("kazoo", logging.WARNING)
        logger.addFilter(self._note_problem)
        client = KazooClient(
            hosts=",".join(settings.hosts),
            timeout=settings.session_timeout,
            handler=handler,
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, max_delay=1.0, sleep_func=handler.sleep_func),
            command_retry=KazooRetry(max_tries=0, sleep_func=handler.sleep_func),
            auth_data=[("digest", f"{user}:{password}")] if user else None,
            default_acl=[make_digest_acl(user, password, all=True)] if user else None,
            logger=logger,
        )
        on_session_timeout(client, self._take_timeout)

        def listen(state: str) -> None:  # in kazoo's connection thread: it must not wait
            identity = client.client_id
            session = int(identity[0]) if identity and state == KazooState.CONNECTED else 0
            self._to_loop(self._link, state.lower(), session, self._granted)

        client.add_listener(listen)
        return client

    def _link(self, state: Link, session: int, granted: float) -> None:
        self._heard = self._heard or state == "connected"
        self._on_link(state, session, granted)

    def _take_timeout(self, seconds: float) -> None:
        self._granted = seconds

    def _note_problem(self, record: logging.LogRecord) -> bool:
        """Keeps kazoo's last complaint for our own errors; the session reports its states itself."""
        message = record.getMessage()
        if record.exc_info and record.exc_info[1]:
            message = f"{message}: {record.exc_info[1]}"
        if not message.startswith("Transition"):
            self.last_problem = message
        return False


def _disconnected() -> Disconnected:
    return Disconnected("there is no connection to ZooKeeper")
