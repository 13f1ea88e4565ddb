"""What every state store promises (ports.state.StateStore), tried with each of them that counts the epochs itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.errors import Fenced
from headrace.ports.state import VOID, StateChange, StateStore, Stored
from tests.positions import POSITION

Make = Callable[[], StateStore]
LATER = replace(POSITION, offset=POSITION.offset + 100)


async def opened(make: Make) -> StateStore:
    store = make()
    await store.open()
    return store


async def test_nothing_is_known_of_a_destination_that_nobody_has_run(make_state: Make) -> None:
    store = await opened(make_state)
    assert await store.load("shop") == Stored(None, 0, 0)
    assert await store.schema_entries("shop") == []
    assert await store.history("shop") == []
    await store.close()
    await store.close()


async def test_what_is_committed_is_there_for_the_next_who_opens_it(make_state: Make) -> None:
    one = await opened(make_state)
    guard = await one.begin_epoch("shop")
    guard = await one.commit("shop", guard, StateChange(POSITION, ({"n": 1}, {"n": 2})))
    guard = await one.commit("shop", guard, StateChange(LATER, ({"n": 3},), "policy", {"why": "x"}))
    await one.close()
    two = await opened(make_state)
    assert await two.load("shop") == Stored(LATER, guard.epoch, guard.version, LATER.last_pos)
    assert await two.schema_entries("shop") == [{"n": 1}, {"n": 2}, {"n": 3}]
    newest = (await two.history("shop"))[0]
    assert (newest.actor, newest.position, newest.details) == ("policy", LATER, {"why": "x"})
    await two.close()


async def test_any_text_can_be_stored(make_state: Make) -> None:
    """Also one that UTF-8 can't have: a checkpoint that fails for it would fail for ever."""
    store = await opened(make_state)
    guard = await store.begin_epoch("shop")
    change = StateChange(POSITION, ({"name": "Á \udc81\ud800", "\udcff": 1},), "operator", {"why": "\udc81"})
    await store.commit("shop", guard, change)
    assert await store.schema_entries("shop") == [{"name": "Á ??", "?": 1}]
    assert (await store.history("shop"))[0].details == {"why": "?"}
    await store.close()


async def test_entries_that_are_void_are_gone_with_the_write_that_makes_them_void(make_state: Make) -> None:
    store = await opened(make_state)
    guard, void = await store.begin_epoch("shop"), {**VOID, "at": "x"}
    for number in range(3):
        guard = await store.commit("shop", guard, StateChange(POSITION, ({"n": number},)))
    old = guard
    guard = await store.commit(
        "shop", guard, StateChange(LATER, ({"n": 3}, void, {"n": 4}, {"kind": "back", "pos": 7}))
    )
    counted = [void, {"n": 4}, {"kind": "back", "pos": 7}]
    assert await store.schema_entries("shop") == counted
    with pytest.raises(Fenced):
        await store.commit("shop", old, StateChange(POSITION, ({**VOID, "at": "y"},)))
    guard = await store.commit("shop", guard, StateChange(LATER, ({"n": 5},)))
    for one in (store, await opened(make_state)):
        assert await one.schema_entries("shop") == [*counted, {"n": 5}]
        assert (await one.load("shop")).position == LATER
    guard = await store.commit("shop", guard, StateChange(LATER, (void,)))
    assert await store.schema_entries("shop") == [void]
    await store.close()


async def test_only_the_newest_guard_writes(make_state: Make) -> None:
    store = await opened(make_state)
    first = await store.begin_epoch("shop")
    second = await store.begin_epoch("shop")
    assert second.epoch > first.epoch
    with pytest.raises(Fenced):
        await store.commit("shop", first, StateChange(POSITION))
    third = await store.commit("shop", second, StateChange(POSITION))
    with pytest.raises(Fenced):
        await store.commit("shop", second, StateChange(LATER))
    assert (await store.load("shop")).position == POSITION
    assert (third.epoch, third.version) == (second.epoch, (await store.load("shop")).version)
    await store.close()


async def test_an_epoch_is_above_what_is_known_elsewhere(make_state: Make) -> None:
    store = await opened(make_state)
    assert (await store.begin_epoch("shop", above=41)).epoch > 41
    await store.close()


async def test_a_position_that_is_taken_away_leaves_the_last_number(make_state: Make) -> None:
    store = await opened(make_state)
    guard = await store.begin_epoch("shop")
    guard = await store.commit("shop", guard, StateChange(POSITION))
    await store.commit("shop", guard, StateChange(None, actor="operator"))
    stored = await store.load("shop")
    assert (stored.position, stored.last_pos) == (None, POSITION.last_pos)
    await store.close()


async def test_it_says_what_it_is_and_what_is_wrong_with_it_and_changes_nothing(make_state: Make) -> None:
    store = make_state()
    assert store.describe()
    assert await store.problems("shop") == []
    missing: Any = await store.problems("shop", must_exist=True)
    assert len(missing) == 1, "nobody has written it, and looking at it did not make it"
    made = await opened(make_state)
    await made.commit("shop", await made.begin_epoch("shop"), StateChange(POSITION))
    assert await store.problems("shop", must_exist=True) == []
    await made.close()
    await store.close()
