"""What the tests on lock services share: a root of the test's own, sessions as several daemons have them, and locks."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from aetcd import rpc
from kazoo.client import KazooClient

from headrace.cluster.lock import SharedLock
from headrace.cluster.session import Session
from headrace.ports.lock_service import LockService
from tests.contracts.conftest import TOYS

_roots = itertools.count(1)
TIMEOUT = 2.0
"""Of the sessions, in seconds: the least that the settings allow."""
SERVICES = ["zookeeper", pytest.param("etcd", marks=pytest.mark.long)]
"""For tests of what is the same with each: etcd's are long, but where a test says something else."""
BOTH = pytest.mark.parametrize("keeper", ["zookeeper", "etcd"], indirect=True)
ZOOKEEPER = pytest.mark.parametrize("keeper", ["zookeeper"], indirect=True)
ADDRESSES = {"zookeeper": "hosts", "etcd": "endpoints"}
"""The key of each section that says where the servers are."""


async def nothing_known() -> int:
    return 0


async def until(condition: Callable[[], bool], limit: float = 20) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"not in {limit} s"
        await asyncio.sleep(0.02)


async def within(limit: float, work: Awaitable[Any]) -> Any:
    async with asyncio.timeout(limit):
        return await work


class EtcdOperator:
    """A client of somebody with a shell, with the calls of kazoo's that tests use."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address.partition(",")[0], options=[("grpc.enable_http_proxy", 0)])
        self._kv = rpc.KVStub(self._channel)

    def _find(self, path: str) -> Any:
        return next(iter(self._kv.Range(rpc.RangeRequest(key=path.encode())).kvs), None)

    def exists(self, path: str) -> Any:
        found = self._find(path)
        return found and SimpleNamespace(version=found.mod_revision, ephemeralOwner=found.lease)

    def get(self, path: str) -> tuple[bytes, Any]:
        return self._find(path).value, self.exists(path)

    def set(self, path: str, data: bytes, makepath: bool = False) -> None:
        self._kv.Put(rpc.PutRequest(key=path.encode(), value=data))

    create = set

    def delete(self, path: str) -> None:
        self._kv.DeleteRange(rpc.DeleteRangeRequest(key=path.encode()))

    def get_children(self, path: str) -> list[str]:
        found = self._kv.Range(rpc.RangeRequest(key=f"{path}/".encode(), range_end=f"{path}0".encode())).kvs
        return [kv.key.decode().rpartition("/")[2] for kv in found]

    def stop(self) -> None:
        self._channel.close()

    def close(self) -> None:
        """As kazoo has both."""


class Keeper:
    """A root of its own on running servers, and everything that a test opens there. `hosts` is the address in the
    section of whatever service, `session_timeout` and others are its keys."""

    def __init__(self, kind: str, server: Any) -> None:
        self.kind, self.server = kind, server
        self.root = f"/test{next(_roots)}/headrace"
        self._opened: list[Session] = []
        self._operator: Any = None

    def service(self, hosts: str = "", **more: Any) -> LockService:
        raw = {
            ADDRESSES[self.kind]: hosts or self.server.address,
            "root": self.root,
            "session_timeout": TIMEOUT,
            **more,
        }
        adapter = TOYS.cluster_adapter(self.kind)
        return adapter.service(adapter.section.model_validate(raw))

    async def session(self, node: str, hosts: str = "", **more: Any) -> Session:
        session = Session(self.service(hosts, **more), node, {"address": f"{node}:9180"})
        await session.start()
        self._opened.append(session)
        return session

    async def lock(self, node: str, destination: str = "shop", hosts: str = "", **more: Any) -> SharedLock:
        """A lock in a session of its own."""
        session = await self.session(node, hosts, **more)
        return SharedLock(session, destination, node, f"{node}:9180")

    @property
    def operator(self) -> Any:
        """A client of somebody with a shell."""
        if self._operator is None and self.kind == "etcd":
            self._operator = EtcdOperator(self.server.address)
        elif self._operator is None:
            self._operator = KazooClient(self.server.hosts)
            self._operator.start(15)
        return self._operator

    def node(self, path: str) -> str:
        return f"{self.root}/{path}"

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in self._opened))
        if self._operator is not None:
            self._operator.stop()
            self._operator.close()
