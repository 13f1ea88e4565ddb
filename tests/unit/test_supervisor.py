"""The supervisor: restarts one destination without touching the others, drains on a signal, tells systemd."""

import asyncio
import gc
import os
import signal
import socket
import time
import weakref
from itertools import pairwise
from pathlib import Path

import pytest
import structlog

from headrace import runtime
from headrace.destination.requests import RequestRefused
from headrace.destination.status import DestinationStatus
from headrace.errors import (
    LostKind,
    NotUnderstood,
    OutputClosed,
    PositionLost,
    ServerIdTaken,
    SinkError,
    SourceMisconfigured,
    SourceUnreachable,
)
from headrace.model import State
from headrace.settings.destination import DestinationSettings
from headrace.supervisor.supervised import Supervised
from headrace.supervisor.supervisor import RestartPolicy, Supervisor
from headrace_common.systemd import Notifier
from tests.supervision import FAST, FakeActor, FakeReloading, hang, settings, signalled, stream, supervisor, until


async def test_a_failing_destination_restarts_and_leaves_the_other_alone() -> None:
    starts = {"bad": 0, "good": 0}
    seen: list[tuple[State, str, str]] = []

    async def bad(status: DestinationStatus, stop: asyncio.Event) -> None:
        starts["bad"] += 1
        seen.append((status.state, status.reason, status.message))
        status.enter(State.STARTING)
        if starts["bad"] < 5:
            raise SinkError("the broker is away", remedy="start it")
        boss.request_stop()
        await stop.wait()

    async def good(status: DestinationStatus, stop: asyncio.Event) -> None:
        starts["good"] += 1
        await stream(status, stop)

    boss = supervisor(settings("bad", "good"), {"bad": bad, "good": good})
    assert await asyncio.wait_for(signalled(boss), 30) == 0
    assert starts == {"bad": 5, "good": 1}
    text = "the broker is away -> start it -> see docs/troubleshooting.md#sink"
    assert seen[1:] == [(State.STALLED, "sink", text)] * 4
    assert boss.handles["bad"].status.last_error == text
    assert boss.handles["bad"].status.restarts == 4
    assert boss.handles["good"].status.last_error == ""
    assert {handle.status.state for handle in boss.handles.values()} == {State.STOPPED}


async def test_a_destination_whose_reader_is_gone_ends_and_the_last_of_them_ends_the_process() -> None:
    starts = {"one": 0, "two": 0}
    second = asyncio.Event()

    async def one(status: DestinationStatus, stop: asyncio.Event) -> None:
        starts["one"] += 1
        raise OutputClosed("the reader of standard output is gone")

    async def two(status: DestinationStatus, stop: asyncio.Event) -> None:
        starts["two"] += 1
        await second.wait()
        raise OutputClosed("the reader of standard output is gone")

    boss = supervisor(settings("one", "two"), {"one": one, "two": two}, tick=0.01)
    running = asyncio.create_task(signalled(boss))
    await until(lambda: boss.handles["one"].status.state is State.FAILED)
    await asyncio.sleep(0.1)
    assert not running.done(), "the other one goes on"
    second.set()
    assert await asyncio.wait_for(running, 30) == 1
    assert starts == {"one": 1, "two": 1}
    assert (
        boss.handles["one"].status.last_error
        == "the reader of standard output is gone -> see docs/troubleshooting.md#sink"
    )


async def test_an_unexpected_error_is_one_sentence_and_a_traceback_in_the_log() -> None:
    starts = 0

    async def run(status: DestinationStatus, stop: asyncio.Event) -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            raise ZeroDivisionError("secret details")
        if starts == 2:
            raise asyncio.CancelledError  # as when an inner task was cancelled and somebody awaited it
        if starts == 3:
            return
        messages.append(status.message)
        boss.request_stop()

    messages: list[str] = []
    boss = supervisor(settings("shop"), {"shop": run})
    with structlog.testing.capture_logs() as logs:
        assert await asyncio.wait_for(signalled(boss), 30) == 0
    assert messages == ["the destination ended without being asked to -> see docs/troubleshooting.md#error"]
    failures = [entry["error"] for entry in logs if entry["event"] == "destination failed"]
    assert failures[0].startswith("an unexpected error, ZeroDivisionError -> the log has the details; report it -> see")
    assert failures[1] == "an inner task of the destination was cancelled -> see docs/troubleshooting.md#error"
    assert any(entry["event"] == "unexpected error" and entry["exc_info"] for entry in logs)


async def test_a_factory_that_fails_is_a_failure_like_others() -> None:
    calls = 0

    def factory(destination: DestinationSettings, status: DestinationStatus) -> FakeActor:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError
        boss.request_stop()
        return FakeActor(status, stream)

    boss = Supervisor(settings("shop"), factory, policy=FAST)
    assert await asyncio.wait_for(signalled(boss), 30) == 0
    assert calls == 2


async def test_a_wait_for_the_next_attempt_ends_at_the_stop() -> None:
    waiting = asyncio.Event()

    async def run(status: DestinationStatus, stop: asyncio.Event) -> None:
        waiting.set()
        raise NotUnderstood("event type 200 at mysql-bin.000001:4")

    boss = supervisor(settings("shop"), {"shop": run}, RestartPolicy())
    task = asyncio.create_task(signalled(boss))
    await waiting.wait()
    while boss.handles["shop"].status.state is not State.FAILED:  # noqa: ASYNC110
        await asyncio.sleep(0)
    boss.request_stop()
    assert await asyncio.wait_for(task, 30) == 0


async def test_what_operators_ask_of_a_destination_that_is_stopped_is_refused_at_once() -> None:
    boss = supervisor(settings("shop"), {"shop": stream})
    task = asyncio.create_task(signalled(boss))
    while boss.handles["shop"].status.state is not State.STREAMING:  # noqa: ASYNC110
        await asyncio.sleep(0)
    actor = boss.running["shop"]._actor
    assert actor is not None
    asked = asyncio.create_task(actor.requests.ask(asyncio.Event().wait, limit=30))
    await asyncio.sleep(0)
    boss.request_stop()
    assert await asyncio.wait_for(task, 30) == 0
    async with asyncio.timeout(1):
        with pytest.raises(RequestRefused, match="shop is stopped"):
            await asked


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains(number: signal.Signals) -> None:
    drained = []

    async def run(status: DestinationStatus, stop: asyncio.Event) -> None:
        os.kill(os.getpid(), number)
        await stop.wait()
        await asyncio.sleep(0)
        drained.append(status.name)

    boss = supervisor(settings("one"), {"one": run})
    assert await asyncio.wait_for(signalled(boss), 30) == 0
    assert drained == ["one"]


async def test_a_drain_that_takes_too_long_is_aborted_at_the_limit() -> None:
    cancelled = asyncio.Event()

    async def run(status: DestinationStatus, stop: asyncio.Event) -> None:
        boss.request_stop()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    boss = supervisor(settings("shop", drain_timeout=0.01), {"shop": run}, grace=0.0)
    assert await asyncio.wait_for(signalled(boss), 30) == 0
    assert cancelled.is_set()
    assert boss.handles["shop"].status.state is State.STOPPED


async def test_a_second_signal_ends_at_once() -> None:
    async def run(status: DestinationStatus, stop: asyncio.Event) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    boss = supervisor(settings("shop", drain_timeout=3600), {"shop": run})
    assert await asyncio.wait_for(signalled(boss), 30) == 1


async def test_a_failure_during_the_drain_is_noted_and_ends() -> None:
    async def run(status: DestinationStatus, stop: asyncio.Event) -> None:
        boss.request_stop()
        raise SourceMisconfigured("no binlog")

    boss = supervisor(settings("shop"), {"shop": run}, RestartPolicy())
    assert await asyncio.wait_for(signalled(boss), 30) == 0
    assert boss.handles["shop"].status.last_error == "no binlog -> see docs/troubleshooting.md#source"


async def test_systemd_hears_ready_watchdog_and_stopping(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        notifier = Notifier(str(tmp_path / "notify"), watchdog_seconds=0.03)
        boss = supervisor(settings("shop", "down"), {"shop": stream, "down": hang}, notifier=notifier)
        task = asyncio.create_task(signalled(boss))
        loop = asyncio.get_running_loop()
        got = []
        while b"READY=1" not in got:
            got.append(await asyncio.wait_for(loop.sock_recv(receiver, 1000), 30))
        assert got[0] == b"WATCHDOG=1"
        while got[-1] != b"STATUS=1 STARTING, 1 STREAMING":
            got.append(await asyncio.wait_for(loop.sock_recv(receiver, 1000), 30))
        boss.request_stop()
        while b"STOPPING=1" not in got:
            got.append(await asyncio.wait_for(loop.sock_recv(receiver, 1000), 30))
        assert await asyncio.wait_for(task, 30) == 0
        assert got.count(b"READY=1") == 1


async def test_the_start_of_the_service_does_not_wait_for_a_source_that_is_away(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        boss = supervisor(settings("away"), {"away": hang}, notifier=Notifier(str(tmp_path / "notify")))
        task = asyncio.create_task(signalled(boss))
        loop = asyncio.get_running_loop()
        got = []
        async with asyncio.timeout(10):
            while b"READY=1" not in got:
                got.append(await loop.sock_recv(receiver, 1000))
        assert b"STATUS=1 STARTING" in got
        boss.request_stop()
        assert await asyncio.wait_for(task, 30) == 0


def test_failures_are_forgotten_after_a_minute_of_health() -> None:
    boss = supervisor(settings("shop"), {"shop": stream}, RestartPolicy())
    status = boss.handles["shop"].status
    shop = boss.running["shop"]
    shop.failures["sink"] = 7
    boss.observe(100.0)
    status.enter(State.STREAMING)
    boss.observe(101.0)
    boss.observe(160.0)
    status.enter(State.STALLED)
    boss.observe(160.5)
    status.enter(State.STREAMING)
    boss.observe(161.0)
    boss.observe(220.0)
    assert shop.failures["sink"] == 7
    boss.observe(221.0)
    assert not shop.failures


def test_the_waits_grow_with_full_jitter_up_to_a_minute() -> None:
    policy = RestartPolicy()
    error = SinkError("away")
    for failures, longest in ((1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (5000, 60)):
        delays = [policy.delay(failures, error) for _ in range(300)]
        assert 0 <= min(delays) < 0.1 * longest
        assert 0.9 * longest < max(delays) <= longest
    assert policy.delay(1, NotUnderstood("x")) == policy.delay(9, NotUnderstood("x")) == 60


def test_failures_are_counted_by_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long outage of the sink does not make the first wait for the source long, nor the other way round."""
    monkeypatch.setattr(runtime.current().random, "uniform", lambda _, longest: longest)
    one = boss_of_one(RestartPolicy())
    sink, source = SinkError("the broker is away"), SourceUnreachable("MySQL is away")
    assert [one._note(sink) for _ in range(7)] == [1, 2, 4, 8, 16, 32, 60]
    assert [one._note(source) for _ in range(2)] == [1, 2]
    assert one._note(sink) == 60, "a reason that comes and goes is no new one"
    one.status.enter(State.STREAMING)
    one.forget_failures(0.0)
    one.forget_failures(60.0)
    assert [one._note(error) for error in (sink, source)] == [1, 1]


def test_a_server_id_that_was_only_seen_elsewhere_is_checked_every_minute() -> None:
    policy = RestartPolicy()
    assert [policy.delay(n, ServerIdTaken("another has 7")) for n in (1, 5, 40)] == [60.0] * 3


def test_the_waits_after_a_taken_server_id_double_up_to_an_hour() -> None:
    policy, error = RestartPolicy(), ServerIdTaken("another reads with 7", disconnected=True)
    delays = [policy.delay(failures, error) for failures in range(1, 9)]
    assert delays == [60, 120, 240, 480, 960, 1920, 3600, 3600]


async def test_two_that_take_the_server_id_from_each_other_do_so_ever_more_seldom() -> None:
    """A minute of health between two clashes, which forgives other failures, does not make the waits short again."""
    one = boss_of_one(RestartPolicy())
    delays = []
    for start in (0.0, 1000.0, 2000.0):
        delays.append(one._note(ServerIdTaken("another reads with 7", disconnected=True)))
        assert one.status.state is State.SERVER_ID_TAKEN
        one.status.enter(State.STREAMING)
        one.forget_failures(start)
        one.forget_failures(start + 100)
        assert one.failures.keys() == {"server_id"}
        one.status.enter(State.STARTING)
        one.forget_failures(start + 101)
    assert delays == [60, 120, 240]
    one.status.enter(State.STREAMING)
    one.forget_failures(10_000.0)
    one.forget_failures(13_601.0)
    assert one._note(ServerIdTaken("another reads with 7", disconnected=True)) == 60


def boss_of_one(policy: RestartPolicy) -> Supervised:
    return supervisor(settings("shop"), {"shop": stream}, policy).running["shop"]


def test_why_a_position_is_lost_is_said_until_the_destination_is_well_again() -> None:
    one = boss_of_one(RestartPolicy())
    assert one._note(PositionLost("gone", kind=LostKind.POSITION_PURGED)) == 60
    assert (one.status.state, one.status.lost_kind) == (State.POSITION_LOST, "position_purged")
    one._note(SinkError("the broker is away"))
    one.forget_failures(1.0)
    assert one.status.lost_kind == "position_purged"
    one.status.enter(State.STREAMING)
    assert one.status.lost_kind == ""


async def test_a_sighup_while_a_failed_run_still_drains_begins_the_next_at_once() -> None:
    starts, failed = 0, asyncio.Event()
    reloading = FakeReloading()

    async def run(status: DestinationStatus, stop: asyncio.Event) -> None:
        nonlocal starts
        starts += 1
        if starts == 1:
            error = NotUnderstood("mended while we drain")
            status.fail(error)
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: reloading.reads == [True])
            await asyncio.sleep(0.01)
            failed.set()
            raise error
        boss.request_stop()
        await stop.wait()

    policy = RestartPolicy(not_retriable=1000.0)
    boss = supervisor(settings("shop"), {"shop": run}, policy, reloading=reloading)
    assert await asyncio.wait_for(signalled(boss), 30) == 0
    assert (starts, failed.is_set()) == (2, True)


@pytest.mark.parametrize("by", ["an operator's change in the store", "a SIGHUP"])
async def test_a_wait_ends_as_soon_as_somebody_has_fixed_something(by: str) -> None:
    actors: list[FakeActor] = []
    starts: list[State] = []

    async def run(status: DestinationStatus, stop: asyncio.Event) -> None:
        starts.append(status.state)
        if len(starts) == 1:
            raise PositionLost("purged", kind=LostKind.POSITION_PURGED)
        await stream(status, stop)

    def factory(destination: DestinationSettings, status: DestinationStatus) -> FakeActor:
        actors.append(FakeActor(status, run))
        return actors[-1]

    reloading = FakeReloading()
    boss = Supervisor(settings("shop"), factory, reloading=reloading)
    task = asyncio.create_task(signalled(boss))
    await until(lambda: boss.handles["shop"].status.state is State.POSITION_LOST)
    if by == "a SIGHUP":
        os.kill(os.getpid(), signal.SIGHUP)
    else:
        actors[0].outside.set()
    await until(lambda: boss.handles["shop"].status.state is State.STREAMING)
    assert starts == [State.STARTING, State.POSITION_LOST]
    assert "'headrace position set shop WHERE'" in boss.handles["shop"].status.last_error, "the command as it is typed"
    assert reloading.reads == ([True] if by == "a SIGHUP" else [])
    boss.request_stop()
    assert await asyncio.wait_for(task, 30) == 0


async def test_what_ends_each_wait_at_once_makes_no_hot_loop() -> None:
    class Restless(FakeActor):
        async def changed(self) -> str:
            return "the stored position was changed"

    starts = list[float]()

    async def run(status: DestinationStatus, stop: asyncio.Event) -> None:
        starts.append(time.monotonic())
        raise NotUnderstood("event type 200")

    policy = RestartPolicy(floor=0.1)
    boss = Supervisor(settings("shop"), lambda destination, status: Restless(status, run), policy=policy)
    task = asyncio.create_task(signalled(boss))
    await until(lambda: len(starts) > 3)
    assert min(after - before for before, after in pairwise(starts)) >= 0.09
    boss.request_stop()
    assert await asyncio.wait_for(task, 30) == 0


async def test_a_changed_that_fails_leaves_the_wait_as_long_as_it_was() -> None:
    class Deaf(FakeActor):
        async def changed(self) -> str:
            raise ZeroDivisionError

    starts = 0

    async def run(status: DestinationStatus, stop: asyncio.Event) -> None:
        nonlocal starts
        starts += 1
        raise NotUnderstood("event type 200")

    boss = Supervisor(settings("shop"), lambda destination, status: Deaf(status, run), policy=RestartPolicy())
    task = asyncio.create_task(signalled(boss))
    with structlog.testing.capture_logs() as logs:
        await until(lambda: any(entry["event"] == "unexpected error while waiting" for entry in logs))
    await asyncio.sleep(0.05)
    assert starts == 1
    boss.request_stop()
    assert await asyncio.wait_for(task, 30) == 0


async def test_an_observer_that_fails_begins_again_and_never_ends_the_destination() -> None:
    actors: list[FakeActor] = []
    starts = 0

    async def run(status: DestinationStatus, stop: asyncio.Event) -> None:
        nonlocal starts
        starts += 1
        await stream(status, stop)

    def factory(destination: DestinationSettings, status: DestinationStatus) -> FakeActor:
        actors.append(FakeActor(status, run))
        actors[-1].trouble = [ZeroDivisionError(), asyncio.CancelledError(), SourceMisconfigured("no grant")]
        return actors[-1]

    boss = Supervisor(settings("shop"), factory, policy=RestartPolicy(observe_again=0.001))
    task = asyncio.create_task(signalled(boss))
    await until(lambda: bool(actors) and actors[0].observed == 4)
    assert (boss.handles["shop"].status.state, starts, boss.handles["shop"].status.restarts) == (State.STREAMING, 1, 0)
    boss.request_stop()
    assert await asyncio.wait_for(task, 30) == 0
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("observer")]


async def test_what_a_run_that_failed_held_is_let_go_at_once() -> None:
    """An error holds the frames that it came through, and a frame often the error: a destination that fails for long
    would take more memory with each attempt, until Python's collector comes by its oldest objects."""

    class Large:
        pass

    kept: list[weakref.ref[Large]] = []
    left: list[bool] = []

    async def run(status: DestinationStatus, stop: asyncio.Event) -> None:
        left.extend(one() is not None for one in kept)
        if len(kept) == 2:
            boss.request_stop()
            return
        large = Large()
        kept.append(weakref.ref(large))
        try:
            raise OSError("cut off")
        except OSError as error:
            cause = error  # noqa: F841 - which makes a circle
            gc.collect()  # which makes the oldest objects of what there is
            raise SourceUnreachable("the source is away") from error

    boss = supervisor(settings("shop"), {"shop": run})
    assert await asyncio.wait_for(signalled(boss), 30) == 0
    assert left == [False, False, False]


async def test_errors_that_are_each_other_s_causes_hold_nobody_up() -> None:
    starts = 0

    async def run(status: DestinationStatus, stop: asyncio.Event) -> None:
        nonlocal starts
        starts += 1
        if starts == 2:
            boss.request_stop()
            return
        first, second = SourceUnreachable("the source is away"), OSError("cut off")
        second.__cause__ = first
        raise first from second

    boss = supervisor(settings("shop"), {"shop": run})
    assert await asyncio.wait_for(signalled(boss), 30) == 0
    assert starts == 2
