"""The state store in a lock service: what is written is read back, whatever its size, and only the holder can write."""

from __future__ import annotations

import asyncio
import random
import string
import time
from dataclasses import replace
from unittest.mock import AsyncMock

import pytest

from headrace.cluster import state as cluster_state
from headrace.cluster.lock import SharedLock
from headrace.cluster.session import Session
from headrace.cluster.state import ClusterStore
from headrace.errors import Fenced, StateStoreError
from headrace.lease import Term
from headrace.ports import state_records
from headrace.ports.lock_service import Node
from headrace.ports.state import VOID, Guard, StateChange, Stored
from tests.lock_bench import Keeper, nothing_known, within
from tests.positions import POSITION
from tests.proxy import Proxy

pytestmark = pytest.mark.server


async def _held(session: Session, destination: str = "shop") -> tuple[ClusterStore, SharedLock, Guard]:
    lock, store = SharedLock(session, destination, session.node, ""), ClusterStore(session)
    await within(10, lock.acquire(nothing_known))
    return store, lock, await store.begin_epoch(destination, term=lock.term)


async def test_an_unknown_destination_has_nothing(keeper: Keeper) -> None:
    store = ClusterStore(await keeper.session("a"))
    assert await store.load("shop") == Stored(None, 0, 0)
    assert await store.schema_entries("shop") == []
    assert await store.history("shop") == []
    assert await store.problems("shop") == []
    assert "shop" in (await store.problems("shop", must_exist=True))[0]


async def test_another_daemon_reads_what_was_written_and_continues_after_it(keeper: Keeper) -> None:
    store, lock, guard = await _held(await keeper.session("a"))
    assert guard == Guard(1, 0, lock.term.fence)
    guard = await store.commit("shop", guard, StateChange(POSITION))
    assert guard == Guard(1, 1, lock.term.fence)
    other = await keeper.session("b")
    assert await ClusterStore(other).load("shop") == Stored(POSITION, 1, 1, POSITION.last_pos)
    await lock.release()
    store, lock, guard = await _held(other)
    assert guard == Guard(2, 1, lock.term.fence)
    await store.commit("shop", guard, StateChange(replace(POSITION, offset=5000)))
    assert (await store.load("shop")).version == 2


async def test_a_run_that_begins_again_under_its_epoch_voids_the_former_guard(keeper: Keeper) -> None:
    store, lock, guard = await _held(await keeper.session("a"))
    guard = await store.commit("shop", guard, StateChange(POSITION))
    again = await store.begin_epoch("shop", above=guard.epoch, term=lock.term)
    assert again == guard
    again = await store.commit("shop", again, StateChange(POSITION))
    with pytest.raises(Fenced):
        await store.commit("shop", guard, StateChange(POSITION))
    with pytest.raises(Fenced):
        await store.begin_epoch("shop", above=lock.term.epoch + 1, term=lock.term)
    with pytest.raises(Fenced):
        await store.begin_epoch("shop", term=Term(lock.term.epoch, lock.term.fence + 1))


async def test_a_position_that_is_taken_away_leaves_the_last_number(keeper: Keeper) -> None:
    store, _, guard = await _held(await keeper.session("a"))
    guard = await store.commit("shop", guard, StateChange(POSITION))
    await store.commit("shop", guard, StateChange(None, actor="operator"))
    assert await store.load("shop") == Stored(None, 1, 2, POSITION.last_pos)
    assert [entry.position for entry in await store.history("shop")] == [None, POSITION]


async def test_a_zombie_writes_nothing_and_is_counted(keeper: Keeper) -> None:
    zombie_session = await keeper.session("a")
    zombie, _, old = await _held(zombie_session)
    old = await zombie.commit("shop", old, StateChange(POSITION))
    keeper.operator.delete(keeper.node("destinations/shop/running"))  # so that its session, and its belief, live on
    store, _, guard = await _held(await keeper.session("b"))
    with pytest.raises(Fenced):
        await zombie.commit("shop", old, StateChange(replace(POSITION, offset=9), ({"table": "t"},)))
    assert zombie_session.counts.fenced_writes == {"shop": 1}
    assert (await store.load("shop")).position == POSITION
    assert await store.schema_entries("shop") == []
    await store.commit("shop", guard, StateChange(replace(POSITION, offset=10)))
    with pytest.raises(Fenced):
        await zombie.commit("shop", old, StateChange(replace(POSITION, offset=9)))
    assert zombie_session.counts.fenced_writes == {"shop": 2}


@pytest.mark.parametrize("times_set", [0, 1])
async def test_an_epoch_node_recreated_by_hand_guards_as_well(keeper: Keeper, times_set: int) -> None:
    store, _, guard = await _held(await keeper.session("a"))
    epoch = keeper.node("destinations/shop/epoch")
    keeper.operator.delete(epoch)
    keeper.operator.create(epoch, b"1")
    for _ in range(times_set):
        keeper.operator.set(epoch, b"1")
    if times_set:  # now it has the very version, but a successor has begun by writing the position node
        assert (keeper.operator.get(epoch)[1].version == guard.fence) is (keeper.kind == "zookeeper")
        position = keeper.node("destinations/shop/position")
        keeper.operator.set(position, keeper.operator.get(position)[0])
    with pytest.raises(Fenced):
        await store.commit("shop", guard, StateChange(POSITION))
    with pytest.raises(Fenced):
        await store.commit("shop", guard, StateChange(POSITION))


async def test_a_schema_history_of_several_megabytes_is_split_and_read_back(keeper: Keeper) -> None:
    store, _, guard = await _held(await keeper.session("a"))
    noise = random.Random(1)
    small = {"table": "small", "layout": "x" * 100}
    large = [{"table": f"t{i}", "layout": "".join(noise.choices(string.printable, k=40_000))} for i in range(100)]
    guard = await store.commit("shop", guard, StateChange(POSITION, (small,)))
    guard = await store.commit("shop", guard, StateChange(POSITION, tuple(large)))
    guard = await store.commit("shop", guard, StateChange(POSITION, (small, small)))
    assert len(keeper.operator.get_children(keeper.node("destinations/shop/schema"))) > 8
    assert await ClusterStore(await keeper.session("b")).schema_entries("shop") == [small, *large, small, small]
    assert await store.problems("shop") == []
    keeper.operator.delete(keeper.node("destinations/shop/schema/0000000003"))
    with pytest.raises(StateStoreError, match="0000000003"):
        await store.schema_entries("shop")


async def test_pieces_that_an_interrupted_write_left_do_not_count(keeper: Keeper) -> None:
    store, _, guard = await _held(await keeper.session("a"))
    for number in range(3):
        keeper.operator.create(
            keeper.node(f"destinations/shop/schema/{number:010d}"), b"1/3\nhalf a write", makepath=True
        )
    assert await store.schema_entries("shop") == []
    guard = await store.commit("shop", guard, StateChange(POSITION, ({"table": "t"},)))
    assert await store.schema_entries("shop") == [{"table": "t"}]


async def test_a_kill_before_void_pieces_are_removed_leaves_them_to_the_next_who_compacts(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, lock, guard = await _held(await keeper.session("a"))
    void, names = (
        {**VOID, "at": "x"},
        lambda: sorted(keeper.operator.get_children(keeper.node("destinations/shop/schema"))),
    )
    for number in range(20):
        guard = await store.commit("shop", guard, StateChange(POSITION, ({"n": number},)))
    with monkeypatch.context() as killed:
        killed.setattr(ClusterStore, "_remove_void", AsyncMock(side_effect=OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            await store.commit("shop", guard, StateChange(POSITION, (void, {"n": 20})))
    assert len(names()) == 21
    await lock.release()
    store, _, guard = await _held(await keeper.session("b"))
    assert await store.schema_entries("shop") == [void, {"n": 20}]
    guard = await store.commit("shop", guard, StateChange(POSITION, ({"n": 21},)))
    assert await store.schema_entries("shop") == [void, {"n": 20}, {"n": 21}]
    guard = await store.commit("shop", guard, StateChange(POSITION, (void, {"n": 22})))
    assert names() == [f"{22:010d}"]
    assert await store.schema_entries("shop") == [void, {"n": 22}]
    assert await store.problems("shop") == []


async def test_a_history_that_is_compacted_while_it_is_read_is_read_again(keeper: Keeper) -> None:
    store, _, guard = await _held(await keeper.session("a"))
    void, reader = {**VOID, "at": "x"}, await keeper.session("b")
    for number in range(4):
        guard = await store.commit("shop", guard, StateChange(POSITION, ({"n": number},)))
    get, compacted = reader.get, asyncio.Event()

    async def get_slowly(path: str) -> Node | None:
        nonlocal guard
        if "/schema/" in path and not compacted.is_set():
            compacted.set()
            guard = await store.commit("shop", guard, StateChange(POSITION, (void, {"n": 4})))
        return await get(path)

    reader.get = get_slowly  # type: ignore[method-assign]
    assert await ClusterStore(reader).schema_entries("shop") == [void, {"n": 4}]
    assert compacted.is_set()


async def test_a_large_gtid_set_is_stored(keeper: Keeper) -> None:
    store, _, guard = await _held(await keeper.session("a"))
    noise = random.Random(2)
    ends = sorted(noise.sample(range(1, 10**9), 40_000))
    intervals = ":".join(f"{a}-{b}" for a, b in zip(ends[::2], ends[1::2], strict=True))
    position = replace(POSITION, gtid_set=f"{POSITION.server_uuid}:{intervals}")
    assert len(position.gtid_set) > 300_000
    for _ in range(3):
        guard = await store.commit("shop", guard, StateChange(position))
    assert (await store.load("shop")).position == position
    huge = "".join(noise.choices(string.printable, k=2_000_000))
    with pytest.raises(StateStoreError, match="too large"):
        await store.commit("shop", guard, StateChange(replace(POSITION, gtid_set=huge)))


async def test_the_history_keeps_moves_a_checkpoint_a_minute_and_the_first(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _, guard = await _held(await keeper.session("a"))
    for offset in range(5):
        guard = await store.commit("shop", guard, StateChange(replace(POSITION, offset=offset)))
    assert [entry.position.offset for entry in await store.history("shop") if entry.position] == [4, 0]
    monkeypatch.setattr(state_records, "CHECKPOINT_US", 0)
    monkeypatch.setitem(cluster_state.RINGS, "checkpoint", 4)
    guard = await store.commit("shop", guard, StateChange(replace(POSITION, offset=100), actor="operator"))
    for offset in range(5, 20):
        guard = await store.commit("shop", guard, StateChange(replace(POSITION, offset=offset)))
    history = await store.history("shop")
    assert [entry.position.offset for entry in history if entry.position] == [19, 18, 17, 16, 100, 0]
    assert [entry.actor for entry in history][-2:] == ["operator", "checkpoint"]
    assert history[0].version == 21
    assert abs(history[0].changed_us / 1e6 - time.time()) < 60
    assert len(await store.history("shop", 2)) == 2


async def test_a_write_waits_through_a_short_break(keeper: Keeper) -> None:
    with Proxy(keeper.server.host, keeper.server.port) as proxy:
        store, _, guard = await _held(await keeper.session("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=6))
        for number in range(5):
            writing = asyncio.create_task(store.commit("shop", guard, StateChange(replace(POSITION, offset=number))))
            if number % 2:
                await asyncio.sleep(0)
            proxy.close_all()
            guard = await within(8, writing)
        assert (await store.load("shop")).version == 5


async def test_an_answer_that_is_lost_is_found_out(keeper: Keeper) -> None:
    with Proxy(keeper.server.host, keeper.server.port) as proxy:
        store, _, guard = await _held(await keeper.session("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=6))
        proxy.cut(1)  # the request goes through, and the connection breaks within the answer
        entries = tuple({"table": "".join(random.Random(3).choices(string.printable, k=100_000))} for _ in range(15))
        guard = await within(10, store.commit("shop", guard, StateChange(POSITION, entries)))
        assert proxy.has_cut
        proxy.cut(1)
        guard = await within(10, store.commit("shop", guard, StateChange(POSITION)))
        assert guard.version == 2
        assert await store.schema_entries("shop") == list(entries)


async def test_a_write_after_the_session_is_lost_is_fenced(keeper: Keeper) -> None:
    with Proxy(keeper.server.host, keeper.server.port) as proxy:
        session = await keeper.session("a", hosts=f"127.0.0.1:{proxy.port}")
        store, _, guard = await _held(session)
        proxy.blackhole()
        writing = asyncio.create_task(store.commit("shop", guard, StateChange(POSITION)))
        successor, _, new = await _held(await keeper.session("b"))
        await successor.commit("shop", new, StateChange(replace(POSITION, offset=1)))
        proxy.thaw()
        with pytest.raises((Fenced, StateStoreError)):
            await within(10, writing)
        stored = await successor.load("shop")
        assert stored.position is not None
        assert stored.position.offset == 1


async def test_a_lock_without_term_and_foreign_contents_are_refused(keeper: Keeper) -> None:
    store, _, _ = await _held(await keeper.session("a"))
    with pytest.raises(StateStoreError, match="lock"):
        await store.begin_epoch("shop")
    keeper.operator.set(keeper.node("destinations/shop/position"), b"{}")
    with pytest.raises(StateStoreError, match="destinations/shop/position"):
        await store.load("shop")
    assert "destinations/shop/position" in (await store.problems("shop"))[0]
