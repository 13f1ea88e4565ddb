"""One worker process as the daemon has it: started, watched, asked, ended, and started again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from headrace.destination.status import DestinationStatus
from headrace.errors import HeadraceError
from headrace.http.facts import WorkerFacts
from headrace.ports.cluster import ClusterCounts
from headrace.settings.destination import DestinationSettings
from headrace.supervisor.supervised import END_LIMIT
from headrace.tasks import finish, first, set_within, settle
from headrace.workers.channel import Channel, ChannelEnded, ChannelError
from headrace.workers.messages import Answer, Begin, Call, Farewell, Snapshot
from headrace.workers.mirror import lose, refresh

log = structlog.get_logger(__name__)

_REMEDY = "the log says why, and the daemon starts it again; headrace_worker_restarts_total counts how often"

_LAST_WORDS = 1.0
"""Seconds after its end in which what a process said before it has come."""


class WorkerGone(HeadraceError):
    """The worker process that runs the destination has ended, or does not answer."""

    reason = "worker"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a worker may take; all in seconds."""

    drain: float
    """To drain and end."""
    silence: float = 10.0
    """Without a snapshot; then it hangs, and is killed."""
    stale: float = 4.0
    """Without a snapshot until what it said last no longer counts."""
    start: float = 60.0
    """From its start to its first snapshot."""
    answer: float = 120.0
    """To do what an operator asks, unless it is seen to come further."""
    first_wait: float = 1.0
    """Until it is started again, doubled with each end."""
    longest_wait: float = 60.0
    well_after: float = 60.0
    """After so long its ends are forgotten."""
    tick: float = 0.5


class Handle:
    """`command` starts the process; a descriptor's number is added to it. `statuses` are the daemon's mirrors, of which
    it writes those of `wanted`."""

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        env: Mapping[str, str],
        begin: Callable[[int, Mapping[str, DestinationSettings]], Begin],
        statuses: Mapping[str, DestinationStatus],
        patience: Patience,
    ) -> None:
        self.number, self._command, self._env, self._begin = number, command, env, begin
        self._statuses, self._patience = statuses, patience
        self.wanted: dict[str, DestinationSettings] = {}
        """What it is to run; a process that starts gets all of it."""
        self.task: asyncio.Task[None] | None = None
        self.restarts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._down = asyncio.Event()
        """Set while no process has been told what to run."""
        self._down.set()
        self._ending: set[str] = set()
        """What it was told to end, whose statuses it still has."""
        self._stop, self._wake = asyncio.Event(), asyncio.Event()
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._last: Snapshot | None = None
        self._past: ClusterCounts | None = None
        """Of processes that have ended."""
        self._heard_at, self._stale = 0.0, False
        self._problem = ""
        """Why the process has ended, as far as it said so itself."""
        self._log = log.bind(worker=number)

    def start(self) -> None:
        """Begins to keep a process running. The task ends after stop()."""
        self.task = asyncio.create_task(self._keep(), name=f"worker {self.number}")

    def stop(self) -> None:
        """Has the process drain and end; it is not started again."""
        self._stop.set()
        self._wake.set()
        self._tell("stop")

    def stop_now(self) -> None:
        """Has it end without draining."""
        self._tell("stop now")

    def try_now(self) -> None:
        """Ends waits: of the process for its start, and of its destinations for their next attempts."""
        self._wake.set()
        self._tell("try now")

    def facts(self) -> WorkerFacts:
        """What health and metrics show."""
        last = self._last
        return WorkerFacts(
            self.number,
            self._process.pid if self._process is not None else 0,
            tuple(sorted(self.wanted)),
            self.restarts,
            last.cpu_seconds if last is not None else 0.0,
            last.resident_bytes if last is not None else 0,
            last.loop_delay if last is not None else 0.0,
        )

    @property
    def counts(self) -> list[ClusterCounts]:
        """What it has come to with the cluster service, in all its processes."""
        now = self._last.counts if self._last is not None else None
        return [one for one in (self._past, now) if one is not None]

    async def end(self, names: Collection[str]) -> None:
        """Returns once the worker runs none of these destinations any more, whatever that takes."""
        if not names:
            return
        self._ending, channel = set(names), self._channel
        try:
            await self.call("end", sorted(names), limit=self._patience.drain)
        except Exception as error:
            self._kill_if(channel, "did not end destinations", error)
            await self._down.wait()

    async def apply(self) -> None:
        """Has the process run what is wanted; one that is not there gets that when it starts."""
        self._ending, channel = set(), self._channel
        try:
            await self.call("apply", dict(self.wanted), limit=self._patience.drain)
        except Exception as error:
            self._kill_if(channel, "did not take over new settings", error)

    def _kill_if(self, channel: Channel | None, what: str, error: Exception) -> None:
        """Kills the process that was asked, if it still runs: the one that follows does as it is told."""
        if channel is not None and channel is self._channel and self._process is not None:
            self._problem = f"it {what}, so it was killed"
            self._log.error("a worker is killed", why=self._problem, error=str(error))
            self._process.kill()

    async def ask(self, destination: str, what: str, *given: Any, **more: Any) -> dict[str, Any]:
        """What an operator asks of a destination. A search for a position may take as long as it comes further. Raises
        what the worker's own raises, and WorkerGone."""

        def search() -> object:
            status = self._statuses.get(destination)
            return status.search if status is not None else None

        call = Call(next(self._numbers), what, (destination, *given), more)
        answer: dict[str, Any] = await self._answer(call, self._patience.answer, search)
        return answer

    async def call(self, method: str, *given: Any, limit: float) -> Any:
        """Raises what the worker raises, and WorkerGone when it is not there, ends meanwhile, or does not answer within
        `limit` seconds."""
        return await self._answer(Call(next(self._numbers), method, given), limit, lambda: None)

    async def _answer(self, call: Call, limit: float, sign: Callable[[], object]) -> Any:
        """As call(), and longer while `sign` changes within the limit. Cancelled, it has the worker cancel it too."""
        channel, number = self._channel, call.number
        if channel is None:
            raise WorkerGone(f"worker process {self.number} does not run at present", remedy=_REMEDY)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            channel.write(call)
            seen = sign()
            while not (await asyncio.wait([answer], timeout=limit))[0]:
                if (now := sign()) == seen:
                    text = f"worker process {self.number} did not answer within {limit:g} s"
                    raise WorkerGone(text, remedy="look at the state")
                seen = now
            return answer.result()
        finally:
            self._asked.pop(number, None)
            if not answer.done():
                self._tell("cancel", number)

    def _tell(self, method: str, *given: Any) -> None:
        """A call whose answer nobody waits for."""
        if self._channel is not None:
            self._channel.write(Call(next(self._numbers), method, given))

    async def _keep(self) -> None:
        ends = 0
        while not self._stop.is_set():
            began, self._problem = time.monotonic(), ""
            try:
                status = await self._run_once()
            except OSError as error:
                status, self._problem = None, f"it can't be started: {os.strerror(error.errno or 0)}"
            except Exception as error:
                self._log.exception("unexpected error")
                status, self._problem = None, f"an unexpected error, {type(error).__name__}"
            if self._stop.is_set():
                break
            ends = 1 if time.monotonic() - began >= self._patience.well_after else ends + 1
            wait = min(self._patience.longest_wait, self._patience.first_wait * 2.0 ** min(ends - 1, 30))
            told = self._problem or _ended(status)
            self.restarts += 1
            self._log.error("a worker has ended and is started again", why=told, status=status, retry_seconds=wait)
            self._lose(f"worker process {self.number} does not run: {told}", ended=True)
            self._wake.clear()  # what was to end a wait before this one does not end it
            await set_within(self._wake, wait)

    async def _run_once(self) -> int:
        """A process from its start to its end; its exit status, negative for a signal. Raises OSError when it can't be
        started. However this ends, the process has ended with it, and was waited for."""
        process, ours = self._started()
        self._process, ended = process, _end_of(process)
        try:
            await self._talk(ours, ended)
            if not ended.done():  # it has closed its end, and closes the rest
                await asyncio.wait([ended], timeout=self._patience.drain)
        finally:
            if not ended.done():
                self._log.warning("a worker is killed", pid=process.pid)
                process.kill()
                # One that even the kernel can't end, because its disk hangs, is left behind.
                asyncio.get_running_loop().call_later(END_LIMIT, settle, ended)
            try:
                await finish(ended)
            finally:
                self._end_counts()
                process.poll()
                self._process = None
                self._down.set()
        return process.returncode if process.returncode is not None else 0

    def _started(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """A new process, and our end of what connects it. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = subprocess.Popen(
                    [*self._command, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=self._env,
                    process_group=0,  # what a terminal sends to its group is for the daemon
                )
            except BaseException:
                ours.close()
                raise
        return process, ours

    async def _talk(self, sock: socket.socket, ended: asyncio.Future[None]) -> None:
        """Until the process closes its end, has ended or hangs, which it says in the log."""
        channel = await Channel.open(sock)
        self._heard_at, self._stale = time.monotonic(), False
        try:
            begin = self._begin(self.number, self.wanted)
            channel.write(begin)
            self._down.clear()
            self._channel = channel  # not before: what is told it comes behind the first message
            if self._stop.is_set():
                self._tell("stop")
            self._log.info("a worker starts", pid=self._pid, destinations=[*begin.settings.destinations])
            hears = {"messages": self._hear(channel), "silence": self._watch(), "end": _wait(ended)}
            if (await first(hears)).get("silence"):
                assert self._process is not None
                self._process.kill()
        finally:
            self._channel = None
            channel.close()
            gone = WorkerGone(f"worker process {self.number} has ended meanwhile", remedy=_REMEDY)
            for asked in self._asked.values():
                if not asked.done():
                    asked.set_exception(gone)
                    asked.exception()  # whoever asked may be gone
            if not self._stop.is_set():
                self._lose(f"worker process {self.number} has ended", ended=True)

    @property
    def _pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def _hear(self, channel: Channel) -> None:
        try:
            while True:
                message = await channel.receive()
                match message:
                    case Snapshot():
                        self._take(message)
                    case Answer():
                        self._take_answer(message)
                    case Farewell():
                        self._problem = str(message.failure.error())
        except ChannelEnded:
            return
        except ChannelError as error:
            self._problem = "it said what can't be read, so it was killed"
            self._log.error("a worker is killed", why=self._problem, error=str(error))
            assert self._process is not None
            self._process.kill()

    def _take(self, snapshot: Snapshot) -> None:
        self._last, self._heard_at, self._stale = snapshot, time.monotonic(), False
        for name, facts in snapshot.statuses.items():
            if (status := self._statuses.get(name)) is not None and (name in self.wanted or name in self._ending):
                refresh(status, facts, self.ask)

    def _take_answer(self, answer: Answer) -> None:
        asked = self._asked.get(answer.number)
        if asked is None or asked.done():
            return
        if answer.failure is None:
            asked.set_result(answer.value)
        else:
            asked.set_exception(answer.failure.error())

    async def _watch(self) -> bool:
        """Returns True once nothing was heard for too long. Time in which this process itself was stopped does not
        count."""
        tick, process = self._patience.tick, self._pid
        while True:
            before = time.monotonic()
            await asyncio.sleep(tick)
            now = time.monotonic()
            if (late := now - before - tick) > tick:
                self._heard_at += late
            silent = now - self._heard_at
            heard = self._last is not None
            if silent > (self._patience.silence if heard else self._patience.start):
                self._problem = f"it said nothing for {silent:.0f} s, so it was killed"
                self._log.error("a worker hangs, and is killed", pid=process, silent_seconds=round(silent, 1))
                return True
            if heard and silent > self._patience.stale and not self._stale:
                self._stale = True
                self._log.warning("a worker says nothing", pid=process, silent_seconds=round(silent, 1))
                self._lose(f"worker process {self.number} has said nothing for {silent:.0f} s", ended=False)

    def _lose(self, why: str, *, ended: bool) -> None:
        for name in (*self.wanted, *self._ending):
            if (status := self._statuses.get(name)) is not None:
                lose(status, WorkerGone(why, remedy=_REMEDY), self.ask, ended=ended)

    def _end_counts(self) -> None:
        if self._last is not None and self._last.counts is not None:
            self._past = total(self._last.counts.service, self.counts)
        self._last = None


def total(service: str, counts: Sequence[ClusterCounts]) -> ClusterCounts:
    """The sum of some about the same service."""
    made = ClusterCounts(service)
    for one in counts:
        made.sessions += one.sessions
        made.suspensions += one.suspensions
        made.attempts += one.attempts
        for name, number in one.fenced_writes.items():
            made.fenced_writes[name] = made.fenced_writes.get(name, 0) + number
    return made


def _ended(status: int | None) -> str:
    if status is not None and status < 0:
        with contextlib.suppress(ValueError):
            return f"it was ended by {signal.Signals(-status).name}"
    return f"it ended with status {status}"


def _end_of(process: subprocess.Popen[bytes]) -> asyncio.Future[None]:
    """Ends with the process, which is left to be waited for by whoever sees that: so its number is not another's while
    this process could still send it a signal."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def wait() -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(None))

    threading.Thread(target=wait, name=f"end of process {process.pid}", daemon=True).start()
    return ended


async def _wait(ended: asyncio.Future[None]) -> None:
    """Returns a little after the end, so that the last words of a process are heard before."""
    await asyncio.wait([ended])
    await asyncio.sleep(_LAST_WORDS)
