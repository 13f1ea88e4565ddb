"""What runs in a worker process: its share of the destinations, what it tells the daemon, and what that asks of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import structlog

from headrace.destination.loop_delay import LoopDelay
from headrace.destination.requests import RequestRefused
from headrace.errors import HeadraceError
from headrace.ports.cluster import ClusterCounts
from headrace.supervisor.service import Wanted
from headrace.supervisor.supervisor import Supervisor
from headrace.tasks import cancel, first
from headrace.workers.channel import Channel, ChannelEnded, ChannelError
from headrace.workers.messages import Answer, Call, Failure, Farewell, Snapshot
from headrace.workers.mirror import facts_of

EACH = 1.0
"""Seconds between two snapshots, when no destination changes its state."""
_LOOK = 0.1
"""Seconds between two looks for such changes."""
_LAST_WORDS = 2.0
"""Seconds that the last snapshot may take."""
_PAGE = os.sysconf("SC_PAGE_SIZE")

log = structlog.get_logger(__name__)


class Worker:
    """`counts` reads what this process has come to with its cluster service, None without one."""

    def __init__(self, channel: Channel, supervisor: Supervisor, counts: Callable[[], ClusterCounts | None]) -> None:
        self._channel, self._supervisor, self._counts = channel, supervisor, counts
        self._delay = LoopDelay()
        self._opened = asyncio.Event()
        """Set once the destinations run."""
        self._stopping = asyncio.Event()
        self._changing = asyncio.Lock()
        self._calls: dict[int, asyncio.Task[None]] = {}
        """Those under way, by number."""
        self._rows: dict[str, int] = {}
        """The rows of each destination when its tables were told last."""

    async def run(self, opening: Callable[[], Awaitable[None]]) -> int:
        """Opens what the destinations need and runs them until the daemon asks for a stop, or is gone; the exit status
        of the process. Raises HeadraceError of `opening`, of which the daemon knows."""
        beside = [
            asyncio.create_task(self._listen(), name="messages of the daemon"),
            asyncio.create_task(self._tell(), name="snapshots"),
            asyncio.create_task(self._delay.run(self._supervisor.statuses.values()), name="loop delay"),
        ]
        try:
            try:
                await opening()
            except HeadraceError as error:
                await self._send(Farewell(Failure.of(error)))
                raise
            running = asyncio.create_task(self._supervisor.run(), name="destinations")
            self._opened.set()
            try:
                return await running
            finally:
                await cancel(running)
        finally:
            await cancel(*beside, *self._calls.values())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS):  # a daemon that is frozen must not keep this process
                    await self._send(self._snapshot())
            await self._channel.finish(_LAST_WORDS)

    def stop(self) -> None:
        """Asks for a stop in order; more than once is no second signal."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._supervisor.request_stop()

    async def _send(self, message: object) -> None:
        try:
            await self._channel.send(message)
        except ChannelError as error:
            log.debug("the daemon is not told", error=str(error))  # it is gone, and that ends this process anyway

    async def _listen(self) -> None:
        """Takes the daemon's calls. Its end is the end of this process too: nobody would watch it."""
        try:
            while True:
                call: Call = await self._channel.receive()
                task = asyncio.create_task(self._answer(call), name=f"call {call.method}")
                self._calls[call.number] = task
                task.add_done_callback(partial(self._forget, call.number))
        except ChannelError as error:
            if not self._stopping.is_set():
                log.warning("the daemon is gone, so this worker drains and stops", error=str(error))
        except Exception:
            log.exception("unexpected error while listening to the daemon")
        finally:
            self.stop()

    def _forget(self, number: int, _: asyncio.Task[None]) -> None:
        del self._calls[number]

    async def _tell(self) -> None:
        told, states = 0.0, None
        while True:
            now = [(name, one.state, one.reason) for name, one in self._supervisor.statuses.items()]
            if now != states or time.monotonic() - told >= EACH:
                told, states = time.monotonic(), now
                try:
                    await self._channel.send(self._snapshot())
                except ChannelEnded:
                    return  # _listen() sees it too
                except Exception:
                    # The daemon takes a worker that says nothing for one that hangs.
                    log.exception("unexpected error while telling the daemon")
            await asyncio.sleep(_LOOK)

    def _snapshot(self) -> Snapshot:
        statuses: dict[str, dict[str, Any]] = {}
        for name, status in self._supervisor.statuses.items():
            facts = statuses[name] = facts_of(status)
            if self._rows.get(name) == status.rows:
                del facts["tables"]  # they may be thousands, and are as they were
            self._rows[name] = status.rows
        for name in self._rows.keys() - statuses.keys():
            del self._rows[name]
        used = resource.getrusage(resource.RUSAGE_SELF)
        return Snapshot(statuses, used.ru_utime + used.ru_stime, resident_bytes(), self._delay.largest, self._counts())

    async def _answer(self, call: Call) -> None:
        try:
            answer = Answer(call.number, await self._do(call))
        except Exception as error:
            if not isinstance(error, HeadraceError):
                log.exception("unexpected error", call=call.method)
            answer = Answer(call.number, failure=Failure.of(error))
        await self._send(self._snapshot())  # whoever has the answer must not see a status from before it
        await self._send(answer)

    async def _do(self, call: Call) -> Any:
        supervisor = self._supervisor
        match call.method:
            case "stop":
                self.stop()
            case "stop now":
                self.stop()
                supervisor.request_stop()
            case "try now":
                supervisor.try_now()
            case "cancel":  # whoever asked is gone
                if (task := self._calls.get(*call.given)) is not None:
                    task.cancel()
            case "end" | "apply":
                await self._change(call.method, *call.given)
            case "command" | "operate":
                name, *given = call.given
                status = supervisor.statuses.get(name)
                do: Callable[..., Awaitable[Any]] | None = getattr(status, call.method, None)
                if status is None or do is None:
                    state = f"it is {status.state.value}" if status is not None else "it is not run here"
                    raise RequestRefused(f"{name} can't do that now: {state}")
                return await do(*given, **call.more)
            case other:
                raise AssertionError(other)
        return None

    async def _change(self, method: str, what: Any) -> None:
        """Not done once this worker is to stop: nothing is started any more, and that all has ended is told by the end
        of the process alone."""
        await self._opened.wait()
        async with self._changing:
            if not self._stopping.is_set():
                work = self._supervisor.end(what) if method == "end" else self._apply(what)
                if "change" in await first({"change": work, "stop": self._stopping.wait()}):
                    return
            await asyncio.Event().wait()

    async def _apply(self, wanted: Wanted) -> None:
        await self._supervisor.apply(wanted)
        self._rows.clear()  # a destination of an old name may be a new one


def resident_bytes() -> int:
    """Memory of this process that is in use; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0
