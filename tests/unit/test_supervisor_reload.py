"""The supervisor takes over new settings while running: only what differs is stopped and started."""

import asyncio
import os
import signal
import socket
from pathlib import Path

from headrace.destination.status import DestinationStatus
from headrace.model import State
from headrace.settings.destination import DestinationSettings, Settings
from headrace.supervisor.supervisor import RestartPolicy, Supervisor
from headrace_common.systemd import Notifier
from tests.configured import destination_of
from tests.supervision import FAST, FakeActor, FakeReloading, settings, signalled, stream, supervisor, until


async def test_only_destinations_that_differ_are_stopped_and_started() -> None:
    starts: list[tuple[str, str]] = []
    ends: list[str] = []

    def factory(destination: DestinationSettings, status: DestinationStatus) -> FakeActor:
        async def run(status: DestinationStatus, stop: asyncio.Event) -> None:
            starts.append((destination.name, destination.source.host))
            await stream(status, stop)
            ends.append(destination.name)

        return FakeActor(status, run)

    first = settings("same", "other", "gone").destinations
    reloading = FakeReloading()
    boss = Supervisor(Settings(destinations=first), factory, reloading=reloading)
    handles = boss.handles
    task = asyncio.create_task(signalled(boss))
    await until(lambda: len(starts) == 3)
    other = boss.handles["other"].status
    other.received.note_undecodable(5)
    source = first["other"].source.model_copy(update={"host": "elsewhere"})
    second = {
        "same": first["same"],
        "other": first["other"].model_copy(update={"source": source}),
        **settings("new").destinations,
    }
    reloading.next.put_nowait(second)
    await until(lambda: len(starts) == 5)
    assert starts[3:] == [("other", "elsewhere"), ("new", "h")]
    assert sorted(ends) == ["gone", "other"]
    assert boss.handles is handles
    assert (handles.keys(), handles["other"].status, other.received.undecodable_texts) == (
        {"same", "other", "new"},
        other,
        5,
    )
    reloading.next.put_nowait({})
    await until(lambda: not handles)
    reloading.next.put_nowait(settings("late").destinations)
    await until(lambda: starts[-1][0] == "late")
    boss.request_stop()
    assert await asyncio.wait_for(task, 30) == 0
    assert sorted(ends) == ["gone", "late", "new", "other", "other", "same"]


async def test_a_secret_that_changes_is_a_change() -> None:
    one = settings("shop").destinations["shop"]
    raw = {"source": {"host": "h", "user": "u", "password": "new"}, "sink": {"type": "null"}}
    assert one != destination_of({"name": "shop", **raw})
    assert one == settings("shop").destinations["shop"]


async def test_a_drain_at_a_reload_is_aborted_at_the_limit() -> None:
    stuck = asyncio.Event()

    async def run(status: DestinationStatus, stop: asyncio.Event) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stuck.set()

    boss = supervisor(settings("shop", drain_timeout=0.01), {"shop": run}, grace=0.0)
    task = asyncio.create_task(signalled(boss))
    await until(lambda: boss.running["shop"].task is not None)
    await asyncio.wait_for(boss.apply({}), 30)
    assert stuck.is_set()
    assert not boss.running
    boss.request_stop()
    assert await asyncio.wait_for(task, 30) == 0


async def test_a_stop_in_the_middle_of_a_reload_drains_everything_and_starts_nothing() -> None:
    drain, stopping = asyncio.Event(), asyncio.Event()
    started: list[str] = []

    async def run(status: DestinationStatus, stop: asyncio.Event) -> None:
        started.append(status.name)
        await stop.wait()
        stopping.set()
        await drain.wait()

    reloading = FakeReloading()
    boss = Supervisor(
        settings("one"), lambda destination, status: FakeActor(status, run), reloading=reloading, policy=FAST
    )
    task = asyncio.create_task(signalled(boss))
    await until(lambda: started == ["one"])
    reloading.next.put_nowait(settings("two").destinations)
    await stopping.wait()
    boss.request_stop()
    await asyncio.sleep(0)
    drain.set()
    assert await asyncio.wait_for(task, 30) == 0
    assert started == ["one"]


async def test_an_error_of_the_reload_leaves_all_as_it_is() -> None:
    reloading = FakeReloading()
    boss = supervisor(
        settings("one"), {"one": stream, "two": stream}, RestartPolicy(observe_again=0.001), reloading=reloading
    )
    task = asyncio.create_task(signalled(boss))
    await until(lambda: boss.handles["one"].status.state is State.STREAMING)
    reloading.next.put_nowait(ZeroDivisionError())
    reloading.next.put_nowait(settings("one", "two").destinations)
    await until(lambda: len(boss.handles) == 2)
    assert boss.handles["one"].status.restarts == 0
    boss.request_stop()
    assert await asyncio.wait_for(task, 30) == 0


async def test_systemd_hears_of_a_reload_only_after_the_start(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        go = asyncio.Event()

        async def run(status: DestinationStatus, stop: asyncio.Event) -> None:
            await go.wait()
            await stream(status, stop)

        reloading = FakeReloading()
        notifier = Notifier(str(tmp_path / "notify"))
        boss = supervisor(settings("shop"), {"shop": run}, notifier=notifier, reloading=reloading, tick=0.001)
        task = asyncio.create_task(signalled(boss))
        loop = asyncio.get_running_loop()

        async def hear(wanted: bytes) -> list[bytes]:
            heard = [b""]
            while not heard[-1].startswith(wanted):
                heard.append(await asyncio.wait_for(loop.sock_recv(receiver, 1000), 30))
            return heard

        await hear(b"STATUS")
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: reloading.reads == [True])
        go.set()
        assert not any(text.startswith(b"RELOADING") for text in await hear(b"READY=1"))
        os.kill(os.getpid(), signal.SIGHUP)
        assert b"\nMONOTONIC_USEC=" in (await hear(b"RELOADING=1"))[-1]
        await hear(b"READY=1")
        boss.request_stop()
        assert await asyncio.wait_for(task, 30) == 0
