"""Calls kazoo, which runs in threads of its own, from the event loop: every call has a time limit, none is queued."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from headrace.adapters.zookeeper.errors import Disconnected, OutcomeUnknown, Refused, SessionOver, Why, ZooKeeperError
from headrace.adapters.zookeeper.kazoo_internals import tell_session_timeout
from headrace.adapters.zookeeper.operations import Check, Create, Delete, Node, Op, Set
from headrace.adapters.zookeeper.settings import ZooKeeperSettings
from headrace.adapters.zookeeper.sockets import Connector
from headrace.tasks import set_within

_REASONS: dict[type[Exception], Why] = {
    exceptions.NoNodeError: "no_node",
    exceptions.NodeExistsError: "node_exists",
    exceptions.BadVersionError: "bad_version",
    exceptions.NotEmptyError: "not_empty",
    exceptions.NoAuthError: "no_auth",
}
_ROLLED_BACK = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
"""What a multi answers for the operations that were not the fault."""
_BROKEN = (exceptions.ConnectionLoss, exceptions.OperationTimeoutError, exceptions.SessionMovedError)
_STOP_LIMIT = 5.0
"""Seconds."""


class Client:
    """One kazoo client. `on_link` is called in the event loop for each change of the connection, in order: with
    connected, suspended or lost; the session, 0 while there is none; and the timeout that the servers granted it, in
    seconds. Raises LockServiceError when the TLS files can't be used."""

    def __init__(self, settings: ZooKeeperSettings, on_link: Callable[[str, int, float], None]) -> None:
        self._settings = settings
        self._on_link = on_link
        self._loop = asyncio.get_running_loop()
        self._granted = 0.0
        self.last_problem = ""
        """What the last attempt to connect failed with."""
        self._kazoo = self._make()

    @property
    def connected(self) -> bool:
        """As of now, ahead of `on_link`."""
        return bool(self._kazoo.connected)

    @property
    def dead(self) -> bool:
        """Whether kazoo has given up for good: its thread has ended."""
        return self._kazoo.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED)

    def forget_progress(self) -> None:
        """Lets a server take us that is behind what we have seen. An ensemble that was rebuilt is so for good, and
        would refuse us without a word; to it our session is over, and it says so. Reads that matter follow a sync()."""
        self._kazoo.last_zxid = 0

    def begin(self) -> None:
        """Starts to connect, and goes on until stop()."""
        self._kazoo.start_async()

    async def stop(self) -> None:
        """Ends the session and the threads; a stop that does not end in time is left to itself."""
        ended = asyncio.Event()

        def run() -> None:
            with contextlib.suppress(Exception):
                self._kazoo.stop()
                self._kazoo.close()
            self._to_loop(ended.set)

        # Not an executor's thread: Python waits for those when it exits.
        threading.Thread(target=run, name="headrace-zookeeper-stop", daemon=True).start()
        await set_within(ended, _STOP_LIMIT)

    async def get(self, path: str, limit: float, watch: Callable[[], None] | None = None) -> Node | None:
        """A node, or None. `watch` is called once, in the loop: when the node changes or goes, or comes when it is not
        there, and when the connection breaks."""
        watcher = None if watch is None else lambda _event: self._to_loop(watch)
        try:
            data, stat = await self._call(lambda: self._kazoo.get_async(path, watch=watcher), path, limit)
        except Refused as refused:
            if refused.why != "no_node":
                raise
            if watcher is not None:
                # Asking for a node that is not there leaves no watch; asking whether it is there does.
                there = await self._call(lambda: self._kazoo.exists_async(path, watch=watcher), path, limit)
                if there is not None:
                    return await self.get(path, limit)
            return None
        return Node(data, stat.version, stat.ephemeralOwner, stat.czxid, stat.mzxid, stat.mtime)

    async def children(self, path: str, limit: float) -> list[str]:
        """Names below a node; none when it is not there."""
        try:
            return list(await self._call(lambda: self._kazoo.get_children_async(path), path, limit))
        except Refused as refused:
            if refused.why == "no_node":
                return []
            raise

    async def sync(self, path: str, limit: float) -> None:
        """The server that we are connected to has caught up when this returns."""
        await self._call(lambda: self._kazoo.sync_async(path), path, limit)

    def write_soon(self, path: str, data: bytes) -> None:
        """Writes a node, which is made when it is not there. May be called in any thread: it waits for nothing, and
        what becomes of it nobody learns."""
        with contextlib.suppress(Exception):
            made = self._kazoo.create_async(path, data)
            made.rawlink(lambda result: result.successful() or self._kazoo.set_async(path, data))

    async def multi(self, operations: Sequence[Op], limit: float) -> list[int]:
        """All or nothing. Returns the new version for each Set, 0 for the others. Raises Refused."""
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
            raise ZooKeeperError(f"ZooKeeper's answer to a change of {path} is not understood: {results!r}")
        return [int(getattr(result, "version", 0)) for result in results]

    async def _call(self, start: Callable[[], Any], path: str, limit: float) -> Any:
        if not self.connected:  # kazoo would keep it and send it later, when nobody waits for it any more
            raise Disconnected("there is no connection to ZooKeeper")
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
                f"ZooKeeper did not answer within {limit:g} s ({path})", remedy="look whether the ensemble has a leader"
            ) from None
        except exceptions.KazooException as error:
            raise self._error(error, path) from error

    def _error(self, error: Exception, path: str, index: int = 0) -> ZooKeeperError:
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
        tell_session_timeout(client, self._take_timeout)

        def listen(state: str) -> None:  # in kazoo's connection thread: it must not wait
            identity = client.client_id
            session = int(identity[0]) if identity and state == KazooState.CONNECTED else 0
            self._to_loop(self._on_link, state.lower(), session, self._granted)

        client.add_listener(listen)
        return client

    def _take_timeout(self, seconds: float) -> None:
        self._granted = seconds

    def _note_problem(self, record: logging.LogRecord) -> bool:
        """Keeps kazoo's last complaint for our own errors; the session tells of its states itself."""
        message = record.getMessage()
        if record.exc_info and record.exc_info[1]:
            message = f"{message}: {record.exc_info[1]}"
        if not message.startswith("Transition"):
            self.last_problem = message
        return False
