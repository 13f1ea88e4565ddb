"""What is etcd's own: leases, leaders that freeze, requests that arrive late, accounts, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from aetcd import rpc

from devstack import Stack
from devstack.servers.base import Tls
from headrace.adapters.etcd import service as module
from headrace.adapters.etcd.connection import EtcdConnection
from headrace.adapters.etcd.settings import EtcdSettings
from headrace.cluster.lock import SharedLock
from headrace.cluster.session import Session
from headrace.cluster.state import ClusterStore
from headrace.errors import LockServiceError
from headrace.ports.lock_service import Check, Create, Disconnected, OutcomeUnknown, SessionOver
from tests.certificates import Authority
from tests.lock_bench import Keeper, nothing_known, until, within

pytestmark = pytest.mark.server


@pytest.fixture
async def keys(etcd: Any) -> AsyncIterator[Keeper]:
    made = Keeper("etcd", etcd)
    yield made
    await made.close()


async def opened(keys: Keeper, **more: Any) -> Any:
    """A service by itself, connected."""
    service = keys.service(**more)
    service.open(lambda state, session, timeout: None)
    await until(lambda: service.connected)
    return service


async def revoke(connection: Any, lease: int) -> None:
    await connection.call(connection.lease.LeaseRevoke, rpc.LeaseRevokeRequest(ID=lease), "a lease", 1.0)


async def test_what_a_session_sent_late_is_never_done(keys: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    service, sent, path = await opened(keys), list[rpc.TxnRequest](), keys.node("late")

    async def lose(method: Any, request: rpc.TxnRequest, what: str, limit: float) -> Any:
        sent.append(request)
        raise OutcomeUnknown("it is on its way")

    with monkeypatch.context() as network:
        network.setattr(service._connection, "call", lose)
        with pytest.raises(OutcomeUnknown):
            await service.multi([Create(path, b"")], 1.0)
        with pytest.raises(OutcomeUnknown):
            await service.sync(1.0)
    await service.sync(1.0)
    for request in sent:
        await service._connection.call(service._connection.kv.Txn, request, "what was late", 1.0)
    assert await service.get(path, 1.0) is None
    await service.multi([Create(path, b"")], 1.0)  # also after a sync() that was late itself
    monkeypatch.setattr(service._connection, "call", lose)
    with pytest.raises(OutcomeUnknown):
        await service.multi([Create(f"{path}/after", b"")], 1.0)
    monkeypatch.undo()
    await revoke(service._connection, service._lease)
    connection = EtcdConnection(keys.server.address, service._settings, None)
    assert not (await connection.call(connection.kv.Txn, sent[-1], "what was late", 1.0)).succeeded, (
        "its session is over"
    )
    await connection.close()
    await service.close()


CALLS: dict[str, Callable[[Any, Keeper], Awaitable[Any]]] = {
    "a write": lambda service, keys: service.multi([Create(keys.node("b"), b"")], 1.0),
    "a check": lambda service, keys: service._write([Check(keys.node("a"), 1)], 1.0),
    "a proof": lambda service, _: service.prove([], 1.0),
}


@pytest.mark.parametrize("end", ["its lease is revoked", "somebody deletes its key"])
@pytest.mark.parametrize("call", CALLS)
async def test_nothing_is_written_for_a_session_that_is_over_and_another_begins(
    keys: Keeper, call: str, end: str
) -> None:
    service = await opened(keys)
    connection, lease = service._connection, service._lease
    await service.multi([Create(keys.node("a"), b"", ephemeral=True)], 1.0)
    if end == "its lease is revoked":
        await revoke(connection, lease)
    else:
        request = rpc.DeleteRangeRequest(key=service._own(lease))
        await connection.call(connection.kv.DeleteRange, request, "the session", 1.0)
    with pytest.raises(SessionOver):
        await CALLS[call](service, keys)
    await until(lambda: service.connected and service._lease not in (0, lease))
    await service.multi([Create(keys.node("b"), b"")], 1.0)
    await service.close()


async def test_calls_and_watches_on_a_connection_that_was_closed_end_at_once(keys: Keeper) -> None:
    service, changed = await opened(keys), asyncio.Event()
    connection = service._connection
    await service.get(keys.node("a"), 1.0, changed.set)
    reading = asyncio.create_task(service.get(keys.node("b"), 5.0))
    await connection.close()
    await within(1, changed.wait())
    with contextlib.suppress(OutcomeUnknown):
        await within(1, reading)
    with pytest.raises(OutcomeUnknown):
        await connection.call(connection.kv.Range, rpc.RangeRequest(key=b"a"), "a", 1.0)
    late = asyncio.Event()
    connection.watch(b"a", 1, late.set)
    await within(1, late.wait())
    await until(lambda: service.connected)
    await service.close()


async def test_a_cancellation_that_meets_the_end_of_a_call_is_not_lost(keys: Keeper) -> None:
    """gRPC makes calls in tasks of its own. Such a task that is cancelled when its call has just failed says so, and
    drops the cancellation."""
    connection = EtcdConnection(keys.server.address, EtcdSettings.model_validate({"endpoints": "h:1"}), None)

    async def fail(request: Any, **more: Any) -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            late = grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata(), grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(*late) from None

    task = asyncio.create_task(connection.call(fail, None, "a", 60))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task], timeout=1.0)
    assert task.cancelled()
    with pytest.raises(TimeoutError):
        await within(0.05, connection.call(fail, None, "a", 60))
    await connection.close()


async def test_children_come_in_pages_and_each_once(keys: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAGE", 3)
    service, names = await opened(keys), ["shop", "shop-2", "shop0", "é", "a b"]
    for name in names:
        await service.multi([Create(keys.node(f"d/{name}"), b"")], 1.0)
        for number in range(7):
            await service.multi([Create(keys.node(f"d/{name}/{number}/deep"), b"")], 1.0)
    found = await service.children(keys.node("d"), 1.0)
    assert sorted(found) == sorted(names)
    assert len(await service.children(keys.node("d/shop"), 1.0)) == 7
    assert await service.children(keys.node("nothing"), 1.0) == []
    await service.close()


async def test_more_locks_than_a_transaction_may_have_operations_are_proved(keys: Keeper) -> None:
    session = await keys.session("a")
    locks = [SharedLock(session, f"d{number}", "a", "") for number in range(80)]
    for lock in locks:
        assert await lock.try_acquire(nothing_known)
    await within(5, session.proofs.now())
    keys.operator.set(keys.node("destinations/d70/epoch"), b"9")
    await within(5, session.proofs.now())
    assert [lock for lock in locks if lock.lease.lost] == [locks[70]]
    assert all(lock.lease.remaining for lock in locks if lock is not locks[70])


async def taken(lock: Any) -> None:
    """Takes the lock, also if no leader is elected for longer than a session's timeout."""
    while True:
        with contextlib.suppress(Disconnected):
            return await lock.acquire(nothing_known)


@pytest.mark.long
async def test_a_frozen_leader_that_wakes_proves_no_lease_that_another_has_ended(stack: Stack) -> None:
    """The holder talks to the frozen leader alone. When that one wakes it still renews leases, not yet knowing that it
    was replaced, and perhaps that the next leader has ended them."""
    server = stack.etcd(nodes=3)
    keys = Keeper("etcd", server)
    try:
        leader = server.leader
        assert leader is not None
        others = ",".join(node.address for node in server.nodes if node is not leader)
        holder, other = await keys.lock("a", hosts=leader.address), await keys.lock("b", hosts=others)
        patient = await opened(keys, hosts=leader.address, session_timeout=60)
        terms, keep_alive = list[int](), patient._keep_alive

        async def record(*more: Any) -> int:
            terms.append(await keep_alive(*more))
            return terms[-1]

        patient._keep_alive = record
        await patient.prove([], 5.0)
        before = terms[-1]
        await holder.acquire(nothing_known)
        waiting = asyncio.create_task(taken(other))
        leader.freeze()
        await within(5, holder.lease.lapsed())
        await within(20, waiting)
        assert not holder.lease.remaining
        proving = asyncio.create_task(patient.prove([], 20.0))
        await asyncio.sleep(0.2)
        assert not proving.done()
        leader.thaw()
        with contextlib.suppress(OutcomeUnknown):
            await proving
            assert terms[-1] > before, "no answer of the old term counts"
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline and not holder.lease.lost:
            assert not holder.lease.remaining
            await asyncio.sleep(0.005)
        await until(lambda: bool(holder.lease.lost))
        if other.lease.lost:  # the leader that wakes has etcd end the leases that have run out in its own memory
            await within(20, taken(other))
        assert other.lease.check() is None
        assert holder.lease.lost
    finally:
        for node in server.nodes:
            node.thaw()
        await asyncio.gather(keys.close(), patient.close())
        server.kill()


@pytest.mark.long
async def test_an_account_may_use_what_is_below_the_root_and_nobody_else_may(stack: Stack) -> None:
    server = stack.etcd(name="etcd-auth")
    keys = Keeper("etcd", server)
    channel = grpc.insecure_channel(server.address, options=[("grpc.enable_http_proxy", 0)])
    auth, prefix = rpc.AuthStub(channel), f"{keys.root}/".encode()
    for user, password in (("root", "r"), ("headrace", "secret"), ("somebody", "else"), ("narrow", "n")):
        auth.UserAdd(rpc.AuthUserAddRequest(name=user, password=password))
        auth.RoleAdd(rpc.AuthRoleAddRequest(name=user))
        auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=user, role=user))
    below = rpc.Permission(permType=rpc.Permission.READWRITE, key=prefix, range_end=prefix[:-1] + b"0")
    auth.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name="headrace", perm=below))
    sessions = rpc.Permission(permType=rpc.Permission.READWRITE, key=prefix + b"s", range_end=prefix + b"t")
    auth.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name="narrow", perm=sessions))
    auth.AuthEnable(rpc.AuthEnableRequest())
    ours, theirs = {"user": "headrace", "password": "secret"}, {"user": "somebody", "password": "else"}
    try:
        lock = await keys.lock("a", **ours)
        await lock.acquire(nothing_known)
        await within(5, lock._session.proofs.now())
        assert await ClusterStore(lock._session).problems("shop") == []
        service: Any = lock._session.service
        service._connection._token = "one that has expired"
        await within(5, lock._session.proofs.now())
        command = Session(keys.service(user="narrow", password="n"), "b", {}, member=False)
        await command.start()
        assert "give [etcd] a user whose role may" in (await ClusterStore(command).problems("shop"))[0]
        await command.close()
        with pytest.raises(LockServiceError, match=r"the user headrace: .*invalid user ID .*check user and password"):
            await keys.session("b", user="headrace", password="wrong")
        with pytest.raises(LockServiceError, match="does not let us use the session"):
            await keys.session("b", **theirs)
        with pytest.raises(LockServiceError, match="user name is empty"):
            await keys.session("b")
    finally:
        await keys.close()
        channel.close()
        server.kill()


@pytest.mark.long
async def test_an_encrypted_session_with_certificates_on_both_sides(stack: Stack, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = stack.etcd(tls=Tls(authority.make("server")[2], authority.path), name="etcd-tls")
    keys = Keeper("etcd", server)
    certificate, key, _ = authority.make("client")
    tls: dict[str, Any] = {"tls": "required", "tls_ca": authority.path, "tls_certificate": certificate, "tls_key": key}
    try:
        lock = await keys.lock("a", **tls)
        await lock.acquire(nothing_known)
        await within(5, lock._session.proofs.now())
        (tmp_path / "other").mkdir()
        with pytest.raises(LockServiceError, match=r"TLS handshake failed|Tls handshake failed"):
            await keys.session("b", **{**tls, "tls_ca": Authority(tmp_path / "other").path})
        (tmp_path / "empty.pem").touch()
        with pytest.raises(LockServiceError, match=r"empty\.pem"):
            await keys.session("b", tls="required", tls_ca=tmp_path / "empty.pem")
    finally:
        await keys.close()
        server.kill()
