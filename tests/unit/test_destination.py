"""The actor of a destination without servers: lost places and policies, addresses, epochs, and what waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace import destination as module
from headrace.destination import Destination
from headrace.errors import Fenced, LostKind, PositionLost, ServerIdTaken, SinkError, SourceUnreachable, SplitBrain
from headrace.lease import Lease, Tenure
from headrace.model import Gap, Position, State
from headrace.mysql.relocate import Move
from headrace.settings import DestinationSettings
from headrace.state.base import StateChange
from headrace.status import DestinationStatus
from tests.made_binlog import SID
from tests.streams import (
    START,
    Dump,
    HeldSink,
    daemon_settings,
    error_packet,
    open_store,
    opened,
    settings,
    three,
    until,
)

LOST = PositionLost("lost", kind=LostKind.POSITION_PURGED)
STORED = Position("server", "b.000001", 4, last_pos=5)
REFUSAL = error_packet(1236, "Could not find first log file name in binary log index file")


class FreeLock:
    """A lock that nobody else wants."""

    holder, declined, shared, tenure = "", "", False, Tenure()

    def __init__(self) -> None:
        self.lease = Lease()
        self.taken = self.released = 0
        self.floors = list[int]()
        self.away = asyncio.Event()
        """Set when somebody else is preferred; then it is not to be had for us."""
        self.back = asyncio.Event()
        """Set when the lock service is back."""

    async def try_acquire(self, floor: Any) -> bool:
        self.floors.append(await floor())
        self.taken += not self.away.is_set()
        return not self.away.is_set()

    async def acquire(self, floor: Any) -> None:
        while not await self.try_acquire(floor):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def asked_away(self) -> str:
        await self.away.wait()
        return "somebody else is to run it"

    async def recovered(self) -> None:
        await self.back.wait()

    async def set_ready(self, ready: bool) -> None:
        pass

    async def release(self) -> None:
        self.released += 1


class Site:
    """A destination whose source opens as `answers` say, one after the other: an error, or the bytes of a dump."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch, **source: Any) -> None:
        self.config: DestinationSettings = settings(source=source, heartbeat={"enabled": False, "interval": 0.01})
        monkeypatch.setattr(module, "_SIGNS_MARGIN", 0.1)
        self.store, self.status, self.sink = store, DestinationStatus("shop"), HeldSink()
        self.answers, self.asked, self.readers = list[Any](), list[list[str]](), list[Any]()
        self.moves, self.looked = list[Position](), list[Position]()
        self.dumps, self.meanwhile = list[Dump](), None
        self.lock: Any = FreeLock()
        self.actor = Destination(self.config, daemon_settings(drain_timeout=0.3), store, self.lock, self.status)
        self.stop = asyncio.Event()
        monkeypatch.setattr(module, "open_any", self._open_any)
        monkeypatch.setattr(module, "open_source", self._open_source)
        monkeypatch.setattr(module, "relocate_by_policy", self._relocate)
        monkeypatch.setattr("headrace.delivery.open_delivery", lambda _, store, __: (self.sink, store))
        monkeypatch.setattr("headrace.layouts.read_schemas", self._nothing)

    async def _nothing(self, *_: Any, **__: Any) -> Any:
        from headrace.mysql.schema_history import Reading

        return Reading()

    async def _open_any(self, candidates: list[Any], position: Position | None, **how: Any) -> Any:
        self.asked.append([one.host for one in candidates])
        self.readers.append(how["reader"])
        answer = self.answers.pop(0)
        if callable(answer):
            answer = await answer()
        if isinstance(answer, Exception):
            raise answer
        steps, host = (answer, candidates[0].host) if isinstance(answer, list) else answer
        self.dumps.append(Dump(*steps))
        made = opened(self.dumps[-1], position or START, self.config)
        made.settings = next(one for one in candidates if one.host == host)
        await how["before_dump"](made)
        return made

    async def _open_source(self, one: Any, position: Position, **how: Any) -> Any:
        self.asked.append([f"again {one.host} {one.on_diverged}"])
        return opened(Dump(), position, self.config)

    async def _relocate(self, source: Any, policy: str, lost: PositionLost, stored: Position) -> Move | None:
        self.looked.append(stored)
        if self.meanwhile is not None:
            await self.meanwhile()
        if not self.moves:
            return None
        return Move(
            self.moves.pop(0), Gap(lost.kind.value, "a", "b"), ({"kind": "doubt", "pos": 5, "at": "", "why": ""},)
        )

    async def put(self, position: Position | None = STORED) -> None:
        """Somebody else stores a position."""
        guard = await self.store.begin_epoch("shop")
        await self.store.commit("shop", guard, StateChange(position, actor="operator"))

    async def stored(self) -> Any:
        return (await self.store.load("shop")).position

    def task(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.actor.run(self.stop))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Any]:
    made = await open_store(tmp_path)
    yield made
    await made.close()


ACTING = {"on_position_lost": "earliest"}


async def test_a_policy_moves_a_position_that_is_lost_at_the_opening_and_streams_from_there(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, starts, _ = three()
    site = Site(store, monkeypatch, **ACTING)
    await site.put()
    site.answers, site.moves = [LOST, [bytes(log.packets)]], [Position("server", "b.000001", 4, last_pos=9)]
    task = site.task()
    await until(lambda: site.sink.messages == 6)
    site.stop.set()
    await task
    assert site.status.gap is not None
    assert (site.status.gap.reason, site.status.gaps) == ("position_purged", {"position_purged": 1})
    assert (await site.stored()).offset == starts[3]
    history = await store.history("shop")
    assert [entry.actor for entry in history if entry.actor == "policy"] == ["policy"]
    assert next(entry for entry in history if entry.actor == "policy").details["gap"]["reason"] == "position_purged"
    assert (await store.schema_entries("shop"))[0]["kind"] == "doubt"


@pytest.mark.parametrize(("policy", "moves"), [("fail", 1), ("earliest", 0)])
async def test_a_policy_that_does_not_act_leaves_the_position(
    policy: str, moves: int, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(store, monkeypatch, on_position_lost=policy)
    await site.put()
    site.answers, site.moves = [LOST], [START] * moves
    with pytest.raises(PositionLost):
        await site.actor.run(site.stop)
    assert await site.stored() == STORED
    assert site.status.gap is None


async def test_moves_do_not_go_round_in_circles(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(store, monkeypatch, **ACTING)
    await site.put()
    site.answers, site.moves = [LOST] * 10, [Position("server", f"b.00000{i}", 4) for i in range(9)]
    with pytest.raises(PositionLost):
        await site.actor.run(site.stop)
    assert len(site.asked) == 4


async def test_what_waits_for_confirmation_is_tried_again_before_a_policy_gives_it_up(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink was away until the source had purged what the sink never got."""
    log, _, _ = three()
    site = Site(store, monkeypatch, **ACTING)
    await site.put()
    site.sink.held = True
    moved = Position("server", "b.000009", 4)
    site.answers, site.moves = [[bytes(log.packets) + REFUSAL]], [moved]
    with pytest.raises(PositionLost):
        await site.actor.run(site.stop)
    assert site.looked == [], "the next attempt may still read it"
    assert await site.stored() == STORED
    assert site.actor._behind.since > 0
    site.answers = [[REFUSAL], LOST, [bytes(log.packets)]]
    site.moves = [moved, Position("server", "b.000001", 4)]
    site.sink = HeldSink()
    task = site.task()
    await until(lambda: site.sink.messages == 6)
    assert site.looked == [STORED, moved], "neither the dump nor the opening could"
    site.stop.set()
    await task


async def test_after_a_move_nothing_is_waited_for_that_will_not_come(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _, packets = three()
    for by_policy in (True, False):
        site = Site(store, monkeypatch, **ACTING)
        await site.put()
        site.actor._behind.since = 1e-9  # long ago
        site.actor._version = (await store.load("shop")).version
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
    site = Site(store, monkeypatch)
    await site.put()
    site.status.enter(State.STALLED, "sink", "of before")
    site.actor._behind.since = 1e-9
    site.actor._version = (await store.load("shop")).version
    more = asyncio.Event()
    site.answers = [[bytes(log.packets)[: packets[0]], more, bytes(log.packets)[packets[0] :]]]
    task = site.task()
    await until(lambda: site.status.events > 0)
    await asyncio.sleep(0.1)
    assert site.status.state is State.STALLED
    more.set()
    await until(lambda: site.status.state is State.STREAMING)
    assert site.actor._behind.since == 0.0
    site.stop.set()
    await task


async def test_a_position_that_was_moved_meanwhile_is_never_overwritten(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = Position("server", "b.000007", 4)
    site = Site(store, monkeypatch, **ACTING)
    await site.put()

    async def put() -> list[bytes]:
        await site.put(chosen)
        return []

    site.answers = [put]
    with pytest.raises(Fenced, match="while its source was opened"):
        await site.actor.run(site.stop)
    assert site.dumps[0].closed
    site.answers, site.moves, site.meanwhile = [LOST], [START], put  # type: ignore[assignment]
    with pytest.raises(Fenced, match="while a policy looked"):
        await site.actor.run(site.stop)
    assert await site.stored() == chosen


async def test_only_what_others_write_ends_a_wait(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_AT_STORE", 0.01)
    log, _, _ = three()
    site = Site(store, monkeypatch)
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


async def test_a_sink_that_is_away_at_the_start_is_not_tried_again_for_what_was_stored_before(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK_AT_STORE", 0.01)
    site = Site(store, monkeypatch)
    await site.put()

    async def away() -> None:
        raise SinkError("away")

    monkeypatch.setattr(site.sink, "start", away)
    with pytest.raises(SinkError):
        await site.actor.run(site.stop)
    assert site.status.position == STORED, "how near it is to being purged is watched all the same"
    waiting = asyncio.create_task(site.actor.changed())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await site.put()
    async with asyncio.timeout(1):
        await waiting


async def test_the_address_that_served_last_is_tried_first_and_a_dump_is_begun_again_there_only(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    standby = [{"host": "b"}, {"host": "c"}]
    site = Site(store, monkeypatch, standby=standby, on_diverged="continue")
    await site.put()
    away = SourceUnreachable("away")
    site.answers = [([away], "c"), away]
    for _ in range(2):
        with pytest.raises(SourceUnreachable):
            await site.actor.run(site.stop)
    assert site.asked == [["h", "b", "c"], ["c", "h", "b"]]
    assert site.status.source_address == "c:3306"
    await site.actor._reopen(STORED)
    assert site.asked[-1] == ["again c fail"]


async def test_an_id_that_was_taken_from_us_is_told_to_the_next_opening_and_no_longer(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(store, monkeypatch, server_id=77)
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
    site = Site(store, monkeypatch)
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

    monkeypatch.setattr(module.Companion, "stored_epoch", stored_epoch)
    site = Site(store, monkeypatch)
    site.answers = [[SourceUnreachable("away")]]
    with pytest.raises(SourceUnreachable):
        await site.actor.run(site.stop)
    assert site.status.epoch == 42


async def test_a_first_start_is_stored_before_the_first_change(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(store, monkeypatch)
    site.answers = [[b""]]
    task = site.task()
    await until(lambda: site.dumps and site.dumps[0].waiting_since)
    assert await site.stored() == START
    site.stop.set()
    await task


async def test_what_a_divergence_gives_up_is_stored_and_told_and_this_run_doubts_the_layouts(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(store, monkeypatch)
    await site.put()
    doubt = {"kind": "doubt", "pos": 5, "at": "", "why": "statements were lost"}
    seen = list[Any]()

    async def open_any(candidates: Any, position: Any, **how: Any) -> Any:
        gap = Gap("diverged", "a", "b", transactions=2, gtids=f"{SID}:1-2")
        made = opened(Dump(), Position("other", "", 4, f"{SID}:1"), site.config, gap=gap, entries=(doubt,))
        restore = how["before_dump"].__self__
        monkeypatch.setattr(
            "headrace.layouts.SchemaHistory.restore", lambda self, entries, last_pos: seen.extend(entries)
        )
        await how["before_dump"](made)
        assert restore.history is not None
        return made

    monkeypatch.setattr(module, "open_any", open_any)
    task = site.task()
    await until(lambda: site.status.gap is not None)
    site.stop.set()
    await task
    assert seen == [doubt]
    assert (await site.stored()).server_uuid == "other"
    assert await store.schema_entries("shop") == [doubt]
    assert site.status.gaps == {"diverged": 1}


async def test_a_stop_does_not_wait_for_a_server_that_does_not_answer(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(store, monkeypatch)
    opening, ended = asyncio.Event(), asyncio.Event()

    async def answer() -> list[bytes]:
        opening.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return []

    site.answers = [answer]
    task = site.task()
    await opening.wait()
    site.stop.set()
    async with asyncio.timeout(1):
        await task
    assert ended.is_set()


async def test_an_end_by_force_while_the_source_is_opened_leaves_nothing_behind(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(store, monkeypatch)
    opening, ended = asyncio.Event(), asyncio.Event()

    async def answer() -> list[bytes]:
        opening.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return []

    site.answers = [answer]
    task = site.task()
    await opening.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert len(asyncio.all_tasks()) == 1


async def test_what_was_opened_in_the_moment_of_a_stop_is_closed(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(store, monkeypatch)
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


# -- who runs it --------------------------------------------------------------------------------------------------


async def test_a_destination_that_is_wanted_elsewhere_is_drained_stored_and_given_back(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, starts, _ = three()
    site = Site(store, monkeypatch)
    monkeypatch.setattr("headrace.standby.Standby._problems", nothing_wrong)
    await site.put()
    site.answers = [[bytes(log.packets)], []]
    site.sink.held = True
    task = site.task()
    await until(lambda: site.sink.messages == 6)
    assert site.status.role == "ACTIVE"
    site.lock.away.set()
    await asyncio.sleep(0.05)
    assert site.lock.released == 0, "what is in flight is waited for"
    site.sink.flow()
    await until(lambda: site.status.state is State.STANDBY)
    assert (site.lock.released, site.status.role) == (1, "STANDBY")
    assert (await site.stored()).offset == starts[3]
    site.lock.away.clear()
    await until(lambda: site.status.role == "ACTIVE")
    assert site.status.takeovers == 2
    site.stop.set()
    await task


async def nothing_wrong(self: Any) -> list[str]:
    return []


async def test_a_floor_is_that_of_the_store_and_of_the_heartbeat_row(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(store, monkeypatch)

    async def row(self: Any) -> int:
        return 40

    monkeypatch.setattr("headrace.companion.Companion.stored_epoch", row)
    await store.begin_epoch("shop", above=6)
    site.answers = [[]]
    task = site.task()
    await until(lambda: site.status.role == "ACTIVE")
    assert site.lock.floors == [40]
    site.stop.set()
    await task


async def test_a_source_that_does_not_say_its_row_holds_up_no_take_over(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(store, monkeypatch)
    monkeypatch.setattr(module, "_FLOOR_LIMIT", 0.05)

    async def silent(self: Any) -> int:
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr("headrace.companion.Companion.stored_epoch", silent)
    await store.begin_epoch("shop", above=6)
    site.answers = [[]]
    task = site.task()
    await until(lambda: site.status.role == "ACTIVE")
    assert site.lock.floors == [7]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_whoever_was_fenced_stays_away_while_another_shows_signs_of_life(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(store, monkeypatch)
    await site.put()
    site.answers = [Fenced("somebody else")]
    with pytest.raises(Fenced):
        await site.actor.run(site.stop)
    assert site.status.fenced == 1
    busy = asyncio.create_task(keep_moving(site))
    with pytest.raises(SplitBrain, match="another daemon runs shop too"):
        await site.actor.run(site.stop)
    busy.cancel()
    await asyncio.gather(busy, return_exceptions=True)
    site.answers = [[]]
    task = site.task()
    await until(lambda: site.status.role == "ACTIVE")
    site.stop.set()
    await task


async def keep_moving(site: Site) -> None:
    while True:
        await site.put()
        await asyncio.sleep(0.01)


async def test_a_lock_service_that_is_back_ends_a_wait(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(store, monkeypatch)
    waiting = asyncio.create_task(site.actor.changed())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    site.lock.back.set()
    async with asyncio.timeout(1):
        await waiting


async def test_a_standby_shows_nothing_of_the_stream_that_it_ran_before(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _, _ = three()
    site = Site(store, monkeypatch)
    monkeypatch.setattr("headrace.standby.Standby._problems", nothing_wrong)
    await site.put()
    site.answers, site.sink.held = [[bytes(log.packets)], []], True
    task = site.task()
    await until(lambda: site.sink.messages == 6 and site.status.oldest_unconfirmed_at > 0)
    site.status.troubles["heartbeat"] = "none can be written"
    site.status.headroom_warning = "little is left"
    site.lock.away.set()
    await until(lambda: site.status.state is State.STANDBY)  # not all is confirmed within drain_timeout
    status = site.status
    ages = (status.oldest_unconfirmed_at, status.last_event_at, status.last_checkpoint_at, status.beat_seen_at)
    assert ages == (0.0, 0.0, 0.0, 0.0), "what somebody else runs does not grow old here"
    assert site.actor._behind.since == 0.0, "whoever runs it sees to what waits"
    assert (status.lag_seconds, status.queue_bytes, status.troubles, status.headroom_warning) == (0.0, 0, {}, "")
    status.standby_problems, status.holder = ["the sink is away"], "somebody else"
    site.sink.held = False
    site.lock.away.clear()
    await until(lambda: status.role == "ACTIVE")
    assert (status.standby_problems, status.holder, status.lease) == ([], "", site.lock.lease)
    site.stop.set()
    await task
    assert (status.role, status.lease, status.takeovers) == ("STANDBY", None, 2)


async def test_what_is_not_confirmed_is_cut_before_the_last_checkpoint(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take long when the store is away, and nobody looks at the lease meanwhile."""
    log, starts, packets = three()
    site = Site(store, monkeypatch)
    await site.put()
    data = bytes(log.packets)
    site.answers, site.sink.held = [[data[: packets[1]], data[packets[1] :]]], True
    cut, commit = dict[int, bool](), store.commit

    async def noted(name: str, guard: Any, change: Any) -> Any:
        cut[change.position.offset] = site.sink.aborted
        return await commit(name, guard, change)

    monkeypatch.setattr(store, "commit", noted)
    site.actor._daemon = daemon_settings(drain_timeout=0.1, checkpoint_interval=60)
    task = site.task()
    await until(lambda: site.sink.messages == 6)
    site.sink.flow(1)
    site.stop.set()
    await task
    assert site.sink.aborted
    assert cut == {starts[1]: True}


async def test_under_a_lock_that_all_share_whoever_was_fenced_stands_in_line_again_at_once(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(store, monkeypatch)
    site.lock.shared = True
    await site.put()
    site.answers = [Fenced("somebody else"), []]
    with pytest.raises(Fenced):
        await site.actor.run(site.stop)
    task = site.task()
    await until(lambda: site.status.role == "ACTIVE", limit=1.5)  # two heartbeats would be more
    site.stop.set()
    await task


async def test_a_run_that_fails_cuts_its_sink_and_gives_the_lock_back(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(store, monkeypatch)
    await site.put()
    site.answers = [SourceUnreachable("away")]
    with pytest.raises(SourceUnreachable):
        await site.actor.run(site.stop)
    assert site.sink.aborted
    assert (site.lock.taken, site.lock.released, site.status.role) == (1, 1, "STANDBY")
