"""Who runs a destination, without servers: giving it away and getting it, standing by, being fenced, and failing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from headrace.destination import destination as module
from headrace.destination.requests import RequestRefused
from headrace.errors import Fenced, LockServiceError, SourceUnreachable, SplitBrain
from headrace.model import State
from headrace.parking.parking import Waiting
from tests.destinations import STORED, DestinationSite, FreeLock
from tests.streams import daemon_settings, three, until


async def test_a_destination_that_is_wanted_elsewhere_is_drained_stored_and_given_back(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, starts, _ = three()
    site = DestinationSite(store, monkeypatch)
    monkeypatch.setattr("headrace.destination.standby.Standby._problems", nothing_wrong)
    await site.put()
    site.answers = [[bytes(log.packets)], []]
    site.sink.held = True
    task = site.task()
    await until(lambda: site.sink.messages == 6)
    assert site.status.holding.role == "ACTIVE"
    site.lock.away.set()
    await asyncio.sleep(0.05)
    assert site.lock.released == 0, "what is in flight is waited for"
    site.sink.flow()
    await until(lambda: site.status.state is State.STANDBY)
    assert (site.lock.released, site.status.holding.role) == (1, "STANDBY")
    assert (await site.stored()).offset == starts[3]
    site.lock.away.clear()
    await until(lambda: site.status.holding.role == "ACTIVE")
    assert site.status.holding.takeovers == 2
    site.stop.set()
    await task


async def nothing_wrong(self: Any) -> list[str]:
    return []


async def test_a_standby_that_has_got_the_lock_is_no_standby_while_it_opens_the_source(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DestinationSite(store, monkeypatch)
    monkeypatch.setattr("headrace.destination.standby.Standby._problems", nothing_wrong)
    opening = asyncio.Event()

    async def silent(self: Any, *given: Any) -> None:
        opening.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(module.Destination, "_open", silent)
    await site.put()
    site.lock.away.set()
    task = site.task()
    await until(lambda: site.status.state is State.STANDBY)
    site.lock.away.clear()
    await opening.wait()
    assert (site.status.state, site.status.state.healthy) == (State.STARTING, False)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_known_epoch_is_that_of_the_store_and_of_the_heartbeat_row(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DestinationSite(store, monkeypatch)

    async def row(self: Any) -> int:
        return 40

    monkeypatch.setattr("headrace.destination.heartbeat_writer.HeartbeatWriter.stored_epoch", row)
    await store.begin_epoch("shop", above=6)
    site.answers = [[]]
    task = site.task()
    await until(lambda: site.status.holding.role == "ACTIVE")
    assert site.lock.floors == [40]
    site.stop.set()
    await task


async def test_a_source_that_does_not_say_its_row_holds_up_no_take_over(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DestinationSite(store, monkeypatch)
    monkeypatch.setattr(module, "_FLOOR_LIMIT", 0.05)

    async def silent(self: Any) -> int:
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr("headrace.destination.heartbeat_writer.HeartbeatWriter.stored_epoch", silent)
    await store.begin_epoch("shop", above=6)
    site.answers = [[]]
    task = site.task()
    await until(lambda: site.status.holding.role == "ACTIVE")
    assert site.lock.floors == [7]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_fenced_destination_waits_while_another_daemon_is_alive(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DestinationSite(store, monkeypatch)
    await site.put()
    site.answers = [Fenced("somebody else")]
    with pytest.raises(Fenced):
        await site.actor.run(site.stop)
    assert site.status.holding.fenced == 1
    busy = asyncio.create_task(keep_moving(site))
    with pytest.raises(SplitBrain, match="another daemon runs shop too"):
        await site.actor.run(site.stop)
    busy.cancel()
    await asyncio.gather(busy, return_exceptions=True)
    site.answers = [[]]
    task = site.task()
    await until(lambda: site.status.holding.role == "ACTIVE")
    site.stop.set()
    await task


async def keep_moving(site: DestinationSite) -> None:
    while True:
        await site.put()
        await asyncio.sleep(0.01)


async def test_a_lock_service_that_is_back_ends_a_wait(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site = DestinationSite(store, monkeypatch)
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
    site = DestinationSite(store, monkeypatch)
    monkeypatch.setattr("headrace.destination.standby.Standby._problems", nothing_wrong)
    await site.put()
    site.answers, site.sink.held = [[bytes(log.packets)], []], True
    task = site.task()
    await until(lambda: site.sink.messages == 6 and site.status.published.oldest_at > 0)
    site.status.troubles["heartbeat"] = "none can be written"
    site.status.note_parked(Waiting(3, 300, 3))
    site.lock.away.set()
    await until(lambda: site.status.state is State.STANDBY)  # not all is confirmed within drain_timeout
    status = site.status
    ages = (status.published.oldest_at, status.received.event_at, status.stored.written_at, status.heartbeat.seen_at)
    assert ages == (0.0, 0.0, 0.0, 0.0), "what somebody else runs does not grow old here"
    assert site.actor._unconfirmed.oldest == 0.0, "whoever runs it sees to what waits"
    assert (status.lag.seconds, status.published.queue_bytes, status.troubles) == (0.0, 0, {})
    assert status.parked == Waiting()
    status.holding.problems, status.holding.holder = ["the sink is away"], "somebody else"
    site.sink.held = False
    site.lock.away.clear()
    await until(lambda: status.holding.role == "ACTIVE")
    assert (status.holding.problems, status.holding.holder, status.holding.lease) == ([], "", site.lock.lease)
    site.stop.set()
    await task
    assert (status.holding.role, status.holding.lease, status.holding.takeovers) == ("STANDBY", None, 2)


async def test_unconfirmed_messages_are_aborted_before_the_last_checkpoint(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take long when the store is away, and nobody looks at the lease meanwhile."""
    log, starts, packets = three()
    site = DestinationSite(store, monkeypatch)
    await site.put()
    data = bytes(log.packets)
    site.answers, site.sink.held = [[data[: packets[1]], data[packets[1] :]]], True
    cut, commit = dict[int, bool](), store.commit

    async def noted(name: str, guard: Any, change: Any) -> Any:
        cut[change.position.offset] = site.sink.aborted
        return await commit(name, guard, change)

    monkeypatch.setattr(store, "commit", noted)
    daemon = daemon_settings(drain_timeout=0.1, checkpoint_interval=60)
    site.actor._context = replace(site.actor._context, daemon=daemon)
    site.actor._checkpointer._daemon = daemon
    task = site.task()
    await until(lambda: site.sink.messages == 6)
    site.sink.flow(1)
    site.stop.set()
    await task
    assert site.sink.aborted
    assert cut == {starts[1]: True}


async def test_with_a_shared_lock_a_fenced_destination_waits_for_the_lock_again_at_once(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DestinationSite(store, monkeypatch)
    site.lock.shared = True
    await site.put()
    site.answers = [Fenced("somebody else"), []]
    with pytest.raises(Fenced):
        await site.actor.run(site.stop)
    task = site.task()
    await until(lambda: site.status.holding.role == "ACTIVE", limit=1.5)  # two heartbeats would be more
    site.stop.set()
    await task


async def test_a_paused_destination_whose_lock_is_lost_waits_for_it_again(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DestinationSite(store, monkeypatch)
    site.lock.shared = True
    await site.put(replace(STORED, paused="somebody"))
    task = site.task()
    await until(lambda: site.status.state is State.PAUSED)
    site.lock.lease.lose("the session is over")
    with pytest.raises(Fenced, match="the session is over"):
        async with asyncio.timeout(5):
            await task
    assert (site.lock.released, site.status.holding.role) == (1, "STANDBY")


async def test_a_run_that_fails_aborts_its_sink_and_releases_the_lock(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DestinationSite(store, monkeypatch)
    await site.put()
    site.answers = [SourceUnreachable("away")]
    with pytest.raises(SourceUnreachable):
        await site.actor.run(site.stop)
    assert site.sink.aborted
    assert (site.lock.taken, site.lock.released, site.status.holding.role) == (1, 1, "STANDBY")


class UnusableLock(FreeLock):
    """A lock whose service fails."""

    async def try_acquire(self, known_epoch: Any) -> bool:
        raise LockServiceError("shop.lock can't be written")


async def test_what_is_asked_of_a_destination_that_can_not_begin_is_refused_and_ends_one_wait(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt would end the wait behind it again."""
    site = DestinationSite(store, monkeypatch)
    site.actor._lock = UnusableLock()
    asked = asyncio.create_task(site.actor.operator.restart())
    async with asyncio.timeout(5):
        await site.actor.changed()
        with pytest.raises(LockServiceError):
            await site.actor.run(site.stop)
        with pytest.raises(RequestRefused, match=r"can't be done now: shop\.lock can't be written"):
            await asked
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(site.actor.changed(), 0.2)


async def test_a_position_stored_before_an_attempt_failed_does_not_end_the_wait_after_it(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = DestinationSite(store, monkeypatch)
    await site.put()
    site.answers = [SourceUnreachable("away")]
    with pytest.raises(SourceUnreachable):
        await site.actor.run(site.stop)
    site.actor._absence.begin()  # here its return is not what is waited for
    await site.put()
    async with asyncio.timeout(5):
        await site.actor.changed()
    site.actor._lock = UnusableLock()
    with pytest.raises(LockServiceError):
        await site.actor.run(site.stop)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(site.actor.changed(), 0.2)
    again = asyncio.create_task(site.actor.changed())
    await asyncio.sleep(0.05)
    await site.put()
    async with asyncio.timeout(5):
        assert await again == "the stored position was changed"


@pytest.mark.parametrize("soon", [True, False])
async def test_a_request_waits_for_the_lock_that_another_daemon_has_for_a_moment(
    soon: bool, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each daemon of a cluster tries and fails where the position is lost, and one of them has the lock at any time."""
    site = DestinationSite(store, monkeypatch)
    monkeypatch.setattr("headrace.destination.standby.Standby._problems", nothing_wrong)
    monkeypatch.setattr(module, "_HOLDER_FAILS", 60.0 if soon else 0.05)
    await site.put()
    site.lock.holder, site.answers = "relay-2", [[]]
    site.lock.away.set()
    asked = asyncio.create_task(site.actor.operator.restart())
    await until(lambda: site.actor.requests.waiting)
    task = site.task()
    await until(lambda: site.status.state is State.STANDBY)
    if soon:
        assert not asked.done()
        site.lock.away.clear()
        await asked
    else:
        with pytest.raises(RequestRefused, match="shop is run by relay-2: ask that one"):
            await asked
    site.stop.set()
    await task
