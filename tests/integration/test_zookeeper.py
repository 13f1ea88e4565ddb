"""What is ZooKeeper's own: accounts, TLS, the timeout that it grants, an ensemble that was rebuilt, kazoo's threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from devstack.servers.base import Tls
from headrace.cluster.lock import SharedLock
from headrace.cluster.session import Session
from headrace.cluster.state import ClusterStore
from headrace.errors import Fenced, LockServiceError, StateStoreError
from headrace.model import Position
from headrace.ports.lock_service import Refused
from headrace.ports.state import StateChange
from tests.certificates import Authority
from tests.lock_bench import Keeper, nothing_known, until, within

pytestmark = pytest.mark.server

POSITION = Position("3e11fa47-71ca-11e1-9e33-c80aa9429562", "mysql-bin.000003", 4711, last_pos=7)


@pytest.fixture
async def three(stack: Stack) -> AsyncIterator[Keeper]:
    """An ensemble of the test's own, of three nodes."""
    server = stack.zookeeper(nodes=3)
    ensemble = Keeper("zookeeper", server)
    yield ensemble
    await ensemble.close()
    server.kill()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def encrypted(stack: Stack, authority: Authority) -> Iterator[Any]:
    server = stack.zookeeper(tls=Tls(authority.make("server")[2], authority.path), name="zookeeper-tls")
    yield server
    server.kill()


async def test_the_timeout_that_the_servers_grant_counts(zoo: Keeper) -> None:
    session = await zoo.session("a", session_timeout=60)
    assert session.timeout == 10.0  # 20 ticks of half a second
    assert session.proofs.hold("shop", ()).lease.margin == pytest.approx(10 / 3)


async def test_with_auth_nobody_else_reads_or_changes_anything(zoo: Keeper) -> None:
    session = await zoo.session("a", user="headrace", password="secret")
    lock, store = SharedLock(session, "shop", "a", ""), ClusterStore(session)
    await lock.acquire(nothing_known)
    guard = await store.begin_epoch("shop", term=lock.term)
    await store.commit("shop", guard, StateChange(POSITION, ({"table": "t"},)))
    with pytest.raises(LockServiceError, match=r"give \[zookeeper\] the user"):
        await zoo.session("b", user="somebody", password="else")
    command = Session(zoo.service(user="somebody", password="else"), "b", {}, member=False)
    await command.start()
    try:
        with pytest.raises(Refused) as refused:
            await command.get(zoo.node("destinations/shop/position"))
        assert refused.value.why == "no_auth"
        with pytest.raises(StateStoreError, match=r"give \[zookeeper\] the user"):
            await ClusterStore(command).load("shop")
        assert "give [zookeeper] the user" in (await ClusterStore(command).problems("shop"))[0]
    finally:
        await command.close()
    friend = await zoo.session("c", user="headrace", password="secret")
    assert (await ClusterStore(friend).load("shop")).position == POSITION


async def test_an_encrypted_session_with_certificates_on_both_sides(encrypted: Any, authority: Authority) -> None:
    zoo = Keeper("zookeeper", encrypted)
    certificate, key, _ = authority.make("client")
    tls = {"tls": "required", "tls_ca": authority.path, "tls_certificate": certificate, "tls_key": key}
    try:
        lock = await zoo.lock("a", hosts=encrypted.secure_hosts, **tls)
        await lock.acquire(nothing_known)
        await lock._session.proofs.now()
        assert lock.lease.check() is None
    finally:
        await zoo.close()


async def test_a_server_whose_certificate_is_not_trusted_is_refused(
    encrypted: Any, authority: Authority, tmp_path: Path
) -> None:
    zoo = Keeper("zookeeper", encrypted)
    certificate, key, _ = authority.make("client")
    other = Authority(tmp_path).path
    tls = {"tls": "required", "tls_ca": other, "tls_certificate": certificate, "tls_key": key}
    with pytest.raises(LockServiceError, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
        await within(15, zoo.session("a", hosts=encrypted.secure_hosts, **tls))
    (tmp_path / "empty.pem").touch()
    empty = {"tls": "required", "tls_ca": tmp_path / "empty.pem"}
    with pytest.raises(LockServiceError, match=r"empty\.pem"):
        await zoo.session("a", hosts=encrypted.secure_hosts, **empty)


async def test_a_session_without_a_majority_lapses_and_a_rebuilt_ensemble_begins_above(three: Keeper) -> None:
    session = await three.session("a", session_timeout=2)
    lock, store = SharedLock(session, "shop", "a", ""), ClusterStore(session)

    async def known_epoch() -> int:
        return 17

    await lock.acquire(known_epoch)
    guard = await store.begin_epoch("shop", term=lock.term)
    guard = await store.commit("shop", guard, StateChange(POSITION))
    three.server.kill()
    await within(3, lock.lease.lapsed())
    with pytest.raises(StateStoreError):
        await within(10, store.commit("shop", guard, StateChange(POSITION)))
    for node in three.server.nodes:
        for place in node.datadir.glob("version-*"):
            for file in place.iterdir():
                file.unlink()
    three.server.start()
    await until(lambda: session.connected)
    await within(5, lock.lease.lapsed())
    await until(lambda: bool(lock.lease.lost))
    with pytest.raises(Fenced):
        await store.commit("shop", guard, StateChange(POSITION))
    await lock.release()

    async def higher() -> int:
        return 18  # what the heartbeat row says

    await within(10, lock.acquire(higher))
    assert lock.term.epoch == 19
    guard = await store.begin_epoch("shop", above=18, term=lock.term)
    await store.commit("shop", guard, StateChange(POSITION))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_client_thread_that_ends_on_an_unexpected_error_is_replaced(
    zoo: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await zoo.session("a")
    lock = SharedLock(session, "shop", "a", "a:9180")
    await lock.acquire(nothing_known)
    service: Any = session.service

    def fail(*_: Any) -> None:
        raise ValueError("what nobody thought of")

    monkeypatch.setattr(service._kazoo._connection, "_read_socket", fail)
    await until(lambda: bool(lock.lease.lost))
    await until(lambda: session.connected)
    await within(10, lock.acquire(nothing_known))
    assert lock.term.epoch == 2
    assert list(await session.members()) == ["a"]
