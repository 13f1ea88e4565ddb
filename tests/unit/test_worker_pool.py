"""The daemon's side of its workers, over real processes that misbehave: they are ended, reaped and started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.cli.run import WORKER
from headrace.destination.status import DestinationStatus
from headrace.model import State
from headrace.settings.destination import Settings
from headrace.workers.handle import Patience, WorkerGone
from headrace.workers.pool import Pool
from headrace_common.systemd import Notifier
from tests.configured import destination_of
from tests.supervision import FakeReloading

PATIENCE = Patience(drain=10.0, silence=20.0, stale=15.0, start=30.0, answer=10.0, first_wait=0.05, longest_wait=0.05)
"""Long where a test does not wait for it: the machine may be busy."""
COMMAND = (sys.executable, str(Path(__file__).parents[1] / "toys" / "worker.py"))
LIMIT = 60


class Made:
    """A pool, and what its workers were told."""

    def __init__(self, folder: Path, names: tuple[str, ...], patience: Patience, processes: int, **more: Any) -> None:
        self.diary = folder / "diary"
        self.diary.touch()
        daemon = {"processes": processes, "spool": str(folder)}
        self.settings = Settings.model_validate({"daemon": daemon, "destinations": destinations(*names)})
        self.pool = Pool(self.settings, COMMAND, patience=patience, tick=0.05, **more)
        self.task = asyncio.create_task(self.pool.run())

    def told(self) -> list[str]:
        return self.diary.read_text().splitlines()

    def pid(self, worker: int = 1) -> int:
        return next((one.pid for one in self.pool.workers() if one.worker == worker), 0)

    def status(self, name: str) -> DestinationStatus:
        return self.pool.statuses[name]

    async def streaming(self, *names: str) -> None:
        await until(lambda: all(self.status(name).state is State.STREAMING for name in names))

    async def stopped(self) -> int:
        self.pool.request_stop()
        return await asyncio.wait_for(self.task, LIMIT)


def destinations(*names: str, host: str = "h") -> dict[str, Any]:
    raw = {"source": {"host": host, "user": "u", "password": "p"}, "sink": {"type": "null"}}
    return {name: destination_of({"name": name, **raw}) for name in names}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110  (what is waited for has no event)
            await asyncio.sleep(0.005)


Make = Callable[..., Awaitable[Made]]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Made] = []

    async def go(*names: str, patience: Patience = PATIENCE, processes: int = 2, **more: Any) -> Made:
        made.append(Made(tmp_path, names, patience, processes, **more))
        return made[-1]

    yield go
    for one in made:
        one.task.cancel()
        await asyncio.wait([one.task])
        assert not [worker for worker in one.pool.workers() if worker.pid], "each has ended, and was waited for"


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_workers_run_their_share_and_drain_at_a_stop(make: Make) -> None:
    made = await make("a", "b", "c", processes=5)
    await made.streaming("a", "b", "c")
    assert sorted(made.told()) == ["1 begin a", "2 begin b", "3 begin c"], "the others have nothing to run"
    pids = [one.pid for one in made.pool.workers()]
    assert [os.getpgid(pid) for pid in pids] == pids, "what a terminal sends to the daemon's group does not reach them"
    assert await made.stopped() == 0
    assert sorted(line for line in made.told() if "stop" in line) == ["1 stop", "2 stop", "3 stop"]
    assert not any(map(exists, pids))


async def test_what_is_asked_of_a_worker_that_dies_fails_at_once_and_it_is_started_again(make: Make) -> None:
    made = await make("dies", "other")
    await made.streaming("dies", "other")
    before, pid = made.pid(), made.pid(2)
    began = time.monotonic()
    operate = made.status("dies").operate
    assert operate is not None
    with pytest.raises(WorkerGone, match="has ended meanwhile") as caught:
        await operate("pause", "me")
    assert caught.value.retriable
    assert time.monotonic() - began < PATIENCE.answer
    assert (made.status("dies").state, made.status("dies").reason) == (State.FAILED, "worker")
    with pytest.raises(WorkerGone, match="does not run"):
        await operate("pause", "me")
    await made.streaming("dies")
    assert made.pid() != before
    assert not exists(before)
    assert [one.restarts for one in made.pool.workers()] == [1, 0]
    assert made.pid(2) == pid
    assert made.status("other").state is State.STREAMING


async def test_a_worker_that_does_not_answer_is_not_waited_for_for_ever(make: Make) -> None:
    made = await make("silent", patience=replace(PATIENCE, answer=0.1))
    await made.streaming("silent")
    operate = made.status("silent").operate
    assert operate is not None
    with pytest.raises(WorkerGone, match=r"did not answer within 0\.1 s"):
        await operate("pause", "me")


async def test_a_search_that_comes_further_is_waited_for_until_it_does_not(make: Make) -> None:
    made = await make("searches", patience=replace(PATIENCE, answer=1.5))
    await made.streaming("searches")
    status = made.status("searches")
    assert status.operate is not None
    with pytest.raises(WorkerGone, match="did not answer"):
        await status.operate("position", "me")
    assert status.search == {"file": "bin.000001", "done": 20, "total": 20}, "which took longer than the limit"


async def test_what_is_asked_by_one_who_is_gone_is_cancelled_in_the_worker(make: Make) -> None:
    made = await make("silent")
    await made.streaming("silent")
    operate = made.status("silent").operate
    assert operate is not None
    asked = asyncio.ensure_future(operate("position", "me"))
    await until(lambda: "1 operate" in made.told())
    asked.cancel()
    await until(lambda: "1 cancel" in made.told())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ends", "it ended with status 3"),
        ("unopened", "the store is away -> look"),
        ("garbage", "it said what can't be read, so it was killed"),
    ],
)
async def test_a_worker_that_can_t_go_on_is_tried_again_and_says_why(name: str, says: str, make: Make) -> None:
    made = await make(name)
    await until(lambda: len(made.told()) > 2)
    await until(lambda: says in made.status(name).message)
    assert not made.status(name).state.healthy
    assert await made.stopped() == 0


async def test_a_command_that_can_t_be_started_is_told_and_tried_again(tmp_path: Path) -> None:
    settings = Settings.model_validate({"daemon": {"processes": 2}, "destinations": destinations("a")})
    pool = Pool(settings, (str(tmp_path / "nothing"),), patience=PATIENCE)
    task = asyncio.create_task(pool.run())
    await until(lambda: pool.workers()[0].restarts > 1 if pool.workers() else False)
    assert "can't be started: No such file" in pool.statuses["a"].message
    pool.request_stop()
    assert await asyncio.wait_for(task, LIMIT) == 0


async def test_what_ends_has_ended_in_every_worker_before_anything_begins(make: Make) -> None:
    made = await make("slow", "b", "c")
    await made.streaming("slow", "b", "c")
    assert made.pool.settings_now.keys() == {"slow", "b", "c"}
    wanted = {**destinations("b"), **destinations("c", host="elsewhere"), **destinations("new")}
    pids = made.pid(1), made.pid(2)
    await made.pool.apply(wanted)
    told = [line for line in made.told() if "begin" not in line]
    assert {line for line in told if " end " in line} == {"1 end slow", "2 end c"}
    ends = [at for at, line in enumerate(told) if "has ended them" in line]
    begins = [at for at, line in enumerate(told) if " apply " in line]
    assert len(ends) == 2
    assert max(ends) < min(begins)
    assert sorted(told[at] for at in begins) == ["1 apply b,new", "2 apply c"]
    assert made.pool.statuses.keys() == {"b", "c", "new"}
    await made.streaming("b", "c", "new")
    assert (made.pid(1), made.pid(2)) == pids
    await made.pool.apply(wanted)
    assert len([line for line in made.told() if " apply " in line]) == 2, "nothing differs, so nothing is told"
    await made.pool.apply({})
    assert not made.pool.statuses
    await made.pool.apply(destinations("late"))
    await made.streaming("late")


async def test_a_worker_that_does_not_take_new_settings_is_killed_and_the_next_has_them(make: Make) -> None:
    made = await make("obstinate", patience=replace(PATIENCE, drain=0.5))
    await made.streaming("obstinate")
    before = made.pid()
    await made.pool.apply(destinations("obstinate", "more", "third"))
    await made.streaming("obstinate", "more", "third")
    assert made.pid() != before
    assert not exists(before)
    assert "1 begin obstinate,third" in made.told()


async def test_a_worker_that_says_nothing_looks_ill_and_is_killed_in_the_end(make: Make) -> None:
    made = await make("silent", patience=replace(PATIENCE, stale=0.4, silence=1.5, tick=0.05))
    seen: set[State] = set()

    def killed() -> bool:
        seen.add(made.status("silent").state)
        return made.pool.workers()[0].restarts > 0 if made.pool.workers() else False

    await until(killed)
    assert {State.STREAMING, State.STALLED} <= seen
    assert "said nothing for" in made.status("silent").message


async def test_one_that_does_not_drain_is_killed_at_the_limit_and_the_stop_is_in_order(make: Make) -> None:
    made = await make("stubborn", patience=replace(PATIENCE, drain=0.3))
    await made.streaming("stubborn")
    pid = made.pid()
    assert await made.stopped() == 0
    assert not exists(pid)


async def test_a_second_request_ends_all_at_once(make: Make) -> None:
    made = await make("stubborn", "b")
    await made.streaming("stubborn", "b")
    made.pool.request_stop()
    await until(lambda: "2 stop" in made.told())
    assert await made.stopped() == 1


async def test_a_stop_before_the_first_word_of_a_worker_is_a_stop(make: Make) -> None:
    made = await make("a", "b")
    await until(lambda: bool(made.pool.workers()))
    assert await made.stopped() == 0


async def test_systemd_hears_of_all_workers_from_the_daemon_alone(make: Make, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        made = await make("a", "b", notifier=Notifier(str(tmp_path / "notify"), 30.0))
        heard: list[str] = []

        def hears(text: str) -> bool:
            with contextlib.suppress(BlockingIOError):
                while True:
                    heard.append(systemd.recv(4096).decode())
            return text in heard

        await until(lambda: hears("STATUS=2 STREAMING"))
        assert heard.count("READY=1") == 1
        assert "WATCHDOG=1" in heard
        assert heard.index("STATUS=2 STARTING") < heard.index("READY=1")
        assert await made.stopped() == 0
        assert hears("STOPPING=1")


async def test_new_settings_are_read_at_a_hangup_and_workers_try_at_once(make: Make) -> None:
    reloading = FakeReloading()
    made = await make("a", reloading=reloading)
    await made.streaming("a")
    with made.pool.handling_signals():
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: "1 try now" in made.told())
    assert reloading.reads == [True]
    reloading.next.put_nowait(destinations("a", "b"))
    await until(lambda: "b" in made.pool.statuses)
    await made.streaming("a", "b")


def test_a_worker_of_another_version_than_its_daemon_says_so_and_ends() -> None:
    command = [*WORKER[:-1], "0.0.7", "99"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 1
    assert "while a daemon of version 0.0.7 runs: restart the daemon" in done.stderr
    assert WORKER[-1] == headrace.__version__


def test_a_worker_whose_daemon_is_gone_before_it_has_begun_ends() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        command = [*WORKER, str(theirs.fileno())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, pass_fds=[theirs.fileno()])
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
