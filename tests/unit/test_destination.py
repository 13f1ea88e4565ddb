"""The actor of a destination without servers: lost positions and policies, addresses, epochs, and what waits."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from headrace.destination import absence
from headrace.destination import destination as module
from headrace.errors import (
    Fenced,
    LostKind,
    PositionLost,
    ServerIdTaken,
    SinkError,
    SourceEnded,
    SourceError,
    SourceMisconfigured,
    SourceSilent,
    SourceUnreachable,
    StateStoreError,
)
from headrace.model import Gap, Position, State
from headrace.ports.parking import ParkingStore
from tests.destinations import STORED, DestinationSite
from tests.made_binlog import SID
from tests.streams import START, HeldSink, error_packet, three, until

LOST = PositionLost("lost", kind=LostKind.POSITION_PURGED)
REFUSAL = error_packet(1236, "Could not find first log file name in binary log index file")
ACTING = {"on_position_lost": "earliest"}


async def test_a_policy_moves_a_position_that_is_lost_at_the_opening_and_streams_from_there(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, starts, _ = three()
    site = DestinationSite(store, monkeypatch, **ACTING)
    await site.put()
    site.answers, site.moves = [LOST, [bytes(log.packets)]], [Position("server", "b.000001", 4, last_pos=9)]
    task = site.task()
    await until(lambda: site.sink.messages == 6)
    site.stop.set()
    await task
    assert site.status.moves.last is not None
    assert (site.status.moves.last.reason, site.status.moves.counts) == ("position_purged", {"position_purged": 1})
    assert (await site.stored()).offset == starts[3]
    history = await store.history("shop")
    assert [entry.actor for entry in history if entry.actor == "policy"] == ["policy"]
    assert next(entry for entry in history if entry.actor == "policy").details["gap"]["reason"] == "position_purged"
    assert (await store.schema_entries("shop"))[0]["kind"] == "doubt"


@pytest.mark.parametrize(("policy", "moves"), [("fail", 1), ("earliest", 0)])
async def test_a_policy_that_does_not_act_leaves_the_position(
    policy: str, moves: int, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DestinationSite(store, monkeypatch, on_position_lost=policy)
    await site.put()
    site.answers, site.moves = [LOST], [START] * moves
    with pytest.raises(PositionLost):
        await site.actor.run(site.stop)
    assert await site.stored() == STORED
    assert site.status.moves.last is None


async def test_each_run_closes_the_store_of_parked_messages(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site = DestinationSite(store, monkeypatch, **ACTING)
    await site.put()
    parked = AsyncMock(ParkingStore)
    site.actor._dependencies = replace(site.actor._dependencies, parked=parked)
    site.answers, site.moves = [LOST] * 10, [Position("server", f"b.00000{i}", 4) for i in range(9)]
    with pytest.raises(PositionLost):
        await site.actor.run(site.stop)
    assert parked.close.await_count == len(site.asked)


async def test_moves_do_not_go_round_in_circles(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site = DestinationSite(store, monkeypatch, **ACTING)
    await site.put()
    site.answers, site.moves = [LOST] * 10, [Position("server", f"b.00000{i}", 4) for i in range(9)]
    with pytest.raises(PositionLost):
        await site.actor.run(site.stop)
    assert len(site.asked) == 4


async def test_what_waits_for_confirmation_is_tried_again_before_a_policy_gives_it_up(
    store: Any, unhurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink was away until the source had purged what the sink never got. With more than one reading, the start of
    the file may be stored before its first row is read."""
    log, _, _ = three()
    site = DestinationSite(store, monkeypatch, checkpoint_interval=60.0, **ACTING)
    await site.put()
    site.sink.held = True
    moved = Position("server", "b.000009", 4)
    site.answers, site.moves = [[bytes(log.packets) + REFUSAL]], [moved]
    with pytest.raises(PositionLost):
        await site.actor.run(site.stop)
    assert site.relocated == [], "the next attempt may still read it"
    assert await site.stored() == STORED
    assert site.actor._unconfirmed.oldest > 0
    site.answers = [[REFUSAL], LOST, [bytes(log.packets)]]
    site.moves = [moved, Position("server", "b.000001", 4)]
    site.sink = HeldSink()
    task = site.task()
    await until(lambda: site.sink.messages == 6)
    assert site.relocated == [STORED, moved], "neither the dump nor the opening could"
    site.stop.set()
    await task


async def test_after_a_move_nothing_is_waited_for_that_will_not_come(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _, packets = three()
    for by_policy in (True, False):
        site = DestinationSite(store, monkeypatch, **ACTING)
        await site.put()
        site.actor._unconfirmed._carried = 1e-9  # long ago
        site.actor._checkpointer.version = (await store.load("shop")).version
        head = [bytes(log.packets)[: packets[0]]]  # and no change ever
        site.answers = [LOST, head] if by_policy else [head]
        site.moves = [Position("server", "b.000001", 4)]
        if not by_policy:
            await site.put(Position("server", "b.000001", 4))
        task = site.task()
        await until(lambda: site.status.state is State.STREAMING)  # noqa: B023
        await asyncio.sleep(0.2)
        assert site.status.state is State.STREAMING
        site.stop.set()
        await task


async def test_without_a_move_a_stall_goes_on_until_something_is_confirmed(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _, packets = three()
    site = DestinationSite(store, monkeypatch)
    await site.put()
    site.status.enter(State.STALLED, "sink", "of before")
    site.actor._unconfirmed._carried = 1e-9
    site.actor._checkpointer.version = (await store.load("shop")).version
    more = asyncio.Event()
    site.answers = [[bytes(log.packets)[: packets[0]], more, bytes(log.packets)[packets[0] :]]]
    task = site.task()
    await until(lambda: site.status.received.events > 0)
    await asyncio.sleep(0.1)
    assert site.status.state is State.STALLED
    more.set()
    await until(lambda: site.status.state is State.STREAMING)
    await until(lambda: site.actor._unconfirmed.oldest == 0.0)  # the other batches are confirmed behind the first
    site.stop.set()
    await task


async def test_a_first_start_stores_and_shows_where_it_begins_before_anything_changes(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DestinationSite(store, monkeypatch)
    site.answers = [[asyncio.Event()]]
    task = site.task()
    await until(lambda: site.status.stored.position is not None)
    assert site.status.stored.position == await site.stored() == START
    site.stop.set()
    await task


async def test_a_position_that_was_moved_meanwhile_is_never_overwritten(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = Position("server", "b.000007", 4)
    site = DestinationSite(store, monkeypatch, **ACTING)
    await site.put()

    async def put() -> list[bytes]:
        await site.put(chosen)
        return []

    site.answers = [put]
    with pytest.raises(Fenced, match="while its source was opened"):
        await site.actor.run(site.stop)
    assert site.dumps[0].closed
    site.answers, site.moves, site.meanwhile = [LOST], [START], put  # type: ignore[assignment]
    with pytest.raises(Fenced, match="while a policy searched"):
        await site.actor.run(site.stop)
    assert await site.stored() == chosen


async def test_only_what_others_write_ends_a_wait(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_STORE", 0.01)
    log, _, _ = three()
    site = DestinationSite(store, monkeypatch)
    await site.put()
    site.answers = [[bytes(log.packets), SourceUnreachable("away")]]
    with pytest.raises(SourceUnreachable):
        await site.actor.run(site.stop)
    waiting = asyncio.create_task(site.actor.changed())
    await asyncio.sleep(0.1)
    assert not waiting.done(), "our own checkpoints are no change from outside"
    await site.put()
    async with asyncio.timeout(1):
        await waiting


class Answers:
    """What the checks of a source find, one after the other; the last one for ever."""

    def __init__(self, *reachable: bool) -> None:
        self._answers, self.count = list(reachable), 0

    async def __call__(self) -> bool:
        self.count += 1
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


async def failed(
    site: DestinationSite,
    error: SourceError,
    monkeypatch: pytest.MonkeyPatch,
    answers: Answers,
    *,
    opened: bool = False,
) -> None:
    """A run that ended so, once the source was `opened` or before; `answers` are those of the wait behind it."""
    monkeypatch.setattr(absence, "_POLL", 0.01)
    monkeypatch.setattr(site.actor._source, "reachable", answers)
    site.answers = [[error]] if opened else [error]
    with pytest.raises(SourceError):
        await site.actor.run(site.stop)


def ended_dump(cause: SourceError | None) -> SourceEnded:
    error = SourceEnded("the source closed the binlog stream")
    error.__cause__ = cause
    return error


AWAY = SourceUnreachable("away")


@pytest.mark.parametrize(
    ("error", "answers"),
    [
        (AWAY, [False, False, True]),
        (AWAY, [True]),
        (ended_dump(AWAY), [True]),
        (ended_dump(None), [True, True, False, True]),
        (SourceSilent("no byte came"), [False, True]),
    ],
    ids=["away", "back before the first check", "could not be begun again", "ended", "silent"],
)
async def test_a_source_that_is_reached_again_ends_a_wait_however_short_it_was_away(
    error: SourceError, answers: list[bool], store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, made = DestinationSite(store, monkeypatch), Answers(*answers)
    await failed(site, error, monkeypatch, made)
    async with asyncio.timeout(5):
        assert await site.actor.changed() == "the source is back"
    assert made.count == len(answers)


@pytest.mark.parametrize(
    "error", [LOST, ServerIdTaken("taken", disconnected=True), SourceMisconfigured("off"), ended_dump(None)]
)
async def test_a_source_that_answers_does_not_end_a_wait_for_what_it_has_answered(
    error: SourceError, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DestinationSite(store, monkeypatch)
    await failed(site, error, monkeypatch, Answers(True))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await site.actor.changed()


@pytest.mark.parametrize("opened", [False, True])
async def test_a_source_that_takes_connections_and_fails_again_at_once_is_not_tried_each_second(
    opened: bool, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DestinationSite(store, monkeypatch)
    await failed(site, AWAY, monkeypatch, Answers(True), opened=opened)
    async with asyncio.timeout(5):
        await site.actor.changed()
    await failed(site, AWAY, monkeypatch, Answers(True), opened=opened)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await site.actor.changed()
    await failed(site, AWAY, monkeypatch, Answers(False, True), opened=opened)
    async with asyncio.timeout(5):
        await site.actor.changed()
    monkeypatch.setattr(absence, "_LASTED", 0.0)
    await failed(site, AWAY, monkeypatch, Answers(True), opened=True)
    async with asyncio.timeout(5):
        await site.actor.changed()


async def test_a_state_store_that_can_be_read_again_ends_a_wait(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absence, "_POLL", 0.01)
    monkeypatch.setattr(module, "_POLL_STORE", 0.01)
    site, load, away = DestinationSite(store, monkeypatch), store.load, True

    async def loads(name: str) -> Any:
        if away:
            raise StateStoreError("away")
        return await load(name)

    monkeypatch.setattr(store, "load", loads)
    with pytest.raises(StateStoreError):
        await site.actor.run(site.stop)
    waiting = asyncio.create_task(site.actor.changed())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    away = False
    async with asyncio.timeout(5):
        assert await waiting == "the state store is back"
    for ends in (True, False):
        away = True
        with pytest.raises(StateStoreError):
            await site.actor.run(site.stop)
        away = False  # before the first check
        site.actor._absence._in_vain["state store"] = int(not ends)
        waiting = asyncio.create_task(site.actor.changed())
        await asyncio.sleep(0.2)
        assert waiting.done() is ends
        waiting.cancel()


@pytest.mark.parametrize("loaded", [False, True])
async def test_a_wait_ends_in_time_although_a_client_library_swallows_the_cancellation_of_a_check(
    loaded: bool, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As aiokafka does while it closes a consumer: the check goes on, and the next one would begin."""
    monkeypatch.setattr(absence, "_POLL", 0.01)
    monkeypatch.setattr(module, "_POLL_STORE", 0.01)
    site = DestinationSite(store, monkeypatch)

    async def away(name: str) -> Any:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)
        raise StateStoreError("away")

    monkeypatch.setattr(store, "load", away)
    with pytest.raises(StateStoreError):
        await site.actor.run(site.stop)
    site.actor._checkpointer.loaded = loaded
    async with asyncio.timeout(5):
        for _ in range(20):
            waiting = asyncio.create_task(site.actor.changed())
            await asyncio.sleep(0.07)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting


async def test_a_sink_that_is_away_at_the_start_is_not_tried_again_for_what_was_stored_before(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_STORE", 0.01)
    site = DestinationSite(store, monkeypatch)
    await site.put()

    async def away() -> None:
        raise SinkError("away")

    monkeypatch.setattr(site.sink, "start", away)
    with pytest.raises(SinkError):
        await site.actor.run(site.stop)
    assert site.status.stored.position == STORED, "how near it is to being purged is watched all the same"
    waiting = asyncio.create_task(site.actor.changed())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await site.put()
    async with asyncio.timeout(1):
        await waiting


async def test_a_move_while_a_sink_was_tried_in_vain_ends_the_wait_at_once(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_POLL_STORE", 0.01)
    site = DestinationSite(store, monkeypatch)
    await site.put()

    async def away() -> None:
        await site.put()
        raise SinkError("away")

    monkeypatch.setattr(site.sink, "start", away)
    with pytest.raises(SinkError):
        await site.actor.run(site.stop)
    async with asyncio.timeout(1):
        await site.actor.changed()


async def test_the_address_that_served_last_is_tried_first_and_a_dump_is_begun_again_there_only(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    standby = [{"host": "b"}, {"host": "c"}]
    site = DestinationSite(store, monkeypatch, standby=standby, on_diverged="continue")
    await site.put()
    away = SourceUnreachable("away")
    site.answers = [([away], "c"), away]
    for _ in range(2):
        with pytest.raises(SourceUnreachable):
            await site.actor.run(site.stop)
    assert site.asked == [["h", "b", "c"], ["c", "h", "b"]]
    assert site.status.source.address == "c:3306"
    await site.actor._source.reopen(STORED)
    assert site.asked[-1] == ["again c fail"]


async def test_an_id_that_was_taken_from_us_is_passed_to_the_next_opening_and_no_longer(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DestinationSite(store, monkeypatch, server_id=77)
    await site.put()
    taken = ServerIdTaken("taken")
    site.answers = [[taken], SourceUnreachable("away"), [SourceUnreachable("away")], SourceUnreachable("away")]
    for error in (ServerIdTaken, SourceUnreachable, SourceUnreachable, SourceUnreachable):
        with pytest.raises(error):
            await site.actor.run(site.stop)
    assert [reader.taken for reader in site.readers] == [0, 77, 77, 0]


@pytest.mark.parametrize("state", [State.POSITION_LOST, State.SOURCE_CHANGED, State.SERVER_ID_TAKEN])
async def test_an_attempt_does_not_leave_a_state_that_somebody_has_to_see(
    state: State, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DestinationSite(store, monkeypatch)
    site.status.enter(state, "source", "why")
    site.answers = [SourceUnreachable("away")]
    with pytest.raises(SourceUnreachable):
        await site.actor.run(site.stop)
    assert site.status.state is state
    site.status.enter(State.FAILED, "source", "why")
    site.answers = [SourceUnreachable("away")]
    with pytest.raises(SourceUnreachable):
        await site.actor.run(site.stop)
    assert site.status.state is State.STARTING


async def test_an_epoch_is_above_that_of_our_row_on_the_source(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stored_epoch(_: Any) -> int:
        return 41

    monkeypatch.setattr(module.HeartbeatWriter, "stored_epoch", stored_epoch)
    site = DestinationSite(store, monkeypatch)
    site.answers = [[SourceUnreachable("away")]]
    with pytest.raises(SourceUnreachable):
        await site.actor.run(site.stop)
    assert site.status.holding.epoch == 42


async def test_a_first_start_is_stored_before_the_first_change(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site = DestinationSite(store, monkeypatch)
    site.answers = [[b""]]
    task = site.task()
    await until(lambda: site.dumps and site.dumps[0].waiting_since)
    assert await site.stored() == START
    site.stop.set()
    await task


async def test_what_a_divergence_gives_up_is_stored_and_reported_and_this_run_doubts_the_schemas(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DestinationSite(store, monkeypatch)
    await site.put()
    doubt = {"kind": "doubt", "pos": 5, "at": "", "why": "statements were lost"}
    seen = list[Any]()

    site.answers, site.entries = [[]], (doubt,)
    site.start = Position("other", "", 4, f"{SID}:1")
    site.gap = Gap("diverged", "a", "b", transactions=2, gtids=f"{SID}:1-2")
    monkeypatch.setattr(
        "headrace.mysql.table_schemas.SchemaHistory.restore", lambda self, entries, last_pos: seen.extend(entries)
    )
    task = site.task()
    await until(lambda: site.status.moves.last is not None)
    site.stop.set()
    await task
    assert seen == [doubt]
    assert (await site.stored()).server_uuid == "other"
    assert await store.schema_entries("shop") == [doubt]
    assert site.status.moves.counts == {"diverged": 1}


class SilentServer:
    """One that does not answer while a source is opened."""

    def __init__(self) -> None:
        self.opening, self.ended = asyncio.Event(), asyncio.Event()

    async def answer(self) -> list[bytes]:
        self.opening.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        return []


async def test_a_stop_does_not_wait_for_a_server_that_does_not_answer(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DestinationSite(store, monkeypatch)
    server = SilentServer()
    site.answers = [server.answer]
    task = site.task()
    await server.opening.wait()
    site.stop.set()
    async with asyncio.timeout(1):
        await task
    assert server.ended.is_set()


async def test_a_forced_end_while_the_source_is_opened_leaves_nothing(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DestinationSite(store, monkeypatch)
    server = SilentServer()
    site.answers = [server.answer]
    task = site.task()
    await server.opening.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.ended.is_set()
    assert len(asyncio.all_tasks()) == 1


async def test_what_was_opened_in_the_moment_of_a_stop_is_closed(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site = DestinationSite(store, monkeypatch)
    opening = asyncio.Event()

    async def answer() -> list[bytes]:
        opening.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return []  # too late to be ended
        raise AssertionError

    site.answers = [answer]
    task = site.task()
    await opening.wait()
    site.stop.set()
    await task
    assert [dump.closed for dump in site.dumps] == [True]
