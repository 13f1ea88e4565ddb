"""Runs a destination once, from an open source to an open sink: starts its tasks and ends them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from headrace.destination.acknowledging import acknowledge
from headrace.destination.checkpointer import Checkpointer
from headrace.destination.control import Control
from headrace.destination.dependencies import Context, Dependencies
from headrace.destination.emptied import EmptiedTopics
from headrace.destination.heartbeat_writer import HeartbeatWriter
from headrace.destination.operator import Operator
from headrace.destination.outage import SinkOutage, Unconfirmed
from headrace.destination.publisher import Publisher
from headrace.destination.reading import Reading
from headrace.destination.snapshotting import Snapshotting
from headrace.destination.stall import StallDetector
from headrace.destination.unreadable import UnreadableTables
from headrace.errors import Fenced, HeadraceError, PositionLost, SourceChanged, SourceSilent
from headrace.parking.redelivery import Redelivery
from headrace.ports.source import Acknowledger
from headrace.snapshot.merge import SnapshotMerge
from headrace.tasks import Task, alongside, cancel, ended, result_of

_POLL = 1.0
"""Seconds between two checks."""
_ABOUT_POSITIONS = (PositionLost, SourceChanged)
"""Errors about a position. Their state is shown only once that position is stored."""


@dataclass(frozen=True, slots=True)
class Lasting:
    """Objects of one destination that live longer than a run."""

    context: Context
    dependencies: Dependencies
    checkpointer: Checkpointer
    unconfirmed: Unconfirmed
    outage: SinkOutage
    operator: Operator
    acknowledger: Acknowledger | None = None
    """None if the source does not wait for the sink."""


@dataclass(frozen=True, slots=True)
class RunDependencies:
    """The components of one run. They end with the run."""

    version: str
    """The version that the server reports."""
    reading: Reading
    publisher: Publisher
    heartbeats: HeartbeatWriter
    stalls: StallDetector
    merge: SnapshotMerge
    snapshotting: Snapshotting
    control: Control
    unreadable: UnreadableTables
    emptied: EmptiedTopics
    redelivery: Redelivery | None
    """Sends parked messages again; None if the sink does not park messages."""


class Run:
    """The tasks of a run: *read*, *publish*, *checkpoint*, *watch*, *snapshot*, *unreadable*, *outage*, *redeliver* if
    messages may be parked, *heartbeat*, and *acknowledge* for a semi-synchronous source. If one of the last two fails,
    the others continue. If any other task fails, all tasks end."""

    def __init__(self, lasting: Lasting, dependencies: RunDependencies) -> None:
        context = lasting.context
        self._daemon, self._status, self._log = context.daemon, context.status, context.log
        self._checkpointer, self._unconfirmed = lasting.checkpointer, lasting.unconfirmed
        self._outage, self._operator = lasting.outage, lasting.operator
        self._lasting = lasting
        self._dependencies, self._reading, self._publisher = dependencies, dependencies.reading, dependencies.publisher
        self._failed: HeadraceError | None = None
        """The error that ended reading, while headrace waits until what was read is confirmed."""

    async def run(self, stop: asyncio.Event) -> None:
        """Streams until `stop` is set. Then it reads nothing more, and waits until all messages in flight are
        confirmed, at most for drain_timeout."""
        self._log.info("streaming", position=str(self._reading.stream.position()), server=self._dependencies.version)
        works = {
            "read": self._reading.run(),
            "publish": self._publisher.run(self._reading.note_confirmed),
            "watch": self._watch(),
            "snapshot": self._dependencies.snapshotting.run(),
            "unreadable": self._dependencies.unreadable.run(),
            "outage": self._outage.watch(self._publisher),
        }
        if self._dependencies.redelivery is not None:
            works["redeliver"] = self._dependencies.redelivery.run()
        self._operator.attach(self._dependencies.control)
        self._status.lag.begin(self._reading)
        self._dependencies.snapshotting.report()  # before the state becomes STREAMING
        helping = {"heartbeat": self._dependencies.heartbeats.run()}
        if (acknowledger := self._lasting.acknowledger) is not None:
            helping["acknowledge"] = acknowledge(self._lasting.context, acknowledger, self._checkpointer.confirmed)
        try:
            async with (
                alongside(helping),
                alongside({"checkpoint": self._checkpointer.run()}) as storing,
                self._resting(),
                alongside(works) as tasks,
            ):
                await self._until_end({**tasks, **storing}, stop)
        finally:
            self._operator.attach(None)
            self._status.lag.end()
            await self._end()

    @contextlib.asynccontextmanager
    async def _resting(self) -> AsyncIterator[None]:
        """Ends publishing once every task has ended that could give a message to the sink. A write of the position that
        has begun may take long, and nothing checks the lease meanwhile."""
        redelivery = self._dependencies.redelivery
        try:
            yield
        finally:
            await self._publisher.rest(resent=redelivery is None or redelivery.idle)

    async def _end(self) -> None:
        await self._reading.stream.close()
        # If this fails, changes are sent again after the next start. The error that ended the run is reported instead.
        with contextlib.suppress(HeadraceError):
            await self._checkpointer.checkpoint()
        if isinstance(self._failed, _ABOUT_POSITIONS):  # now /health shows the position that the state is about
            self._status.fail(self._failed)
        self._unconfirmed.end_run()
        for holder in (self._publisher, self._reading):  # a reference cycle may keep this run in memory for long
            holder.clear()

    async def _until_end(self, tasks: dict[str, Task], stop: asyncio.Event) -> None:
        async with alongside({"stop": stop.wait()}) as stopping:
            done = await ended([*tasks.values(), *stopping.values()])
        if stopping["stop"] in done:
            await self._drain(tasks, [name for name in tasks if name != "read"])
        else:
            await self._fail(tasks, {name for name, task in tasks.items() if task in done})

    async def _fail(self, tasks: dict[str, Task], done: set[str]) -> None:
        """Raises the error that ended the run. If only reading failed, it first waits until everything that was read is
        confirmed. So nothing of it is sent twice, and the stored position is exactly the one at which reading
        failed."""
        error = next(iter(_errors(tasks[name] for name in tasks if name in done)), None)
        # the task *watch* may notice a silent source too
        reading = done == {"read"} or (done == {"watch"} and isinstance(error, SourceSilent))
        if reading and isinstance(error, HeadraceError) and not isinstance(error, Fenced):
            self._failed = error
            if not isinstance(error, _ABOUT_POSITIONS):
                self._status.fail(error)
            with contextlib.suppress(HeadraceError):  # the error that ended reading is reported instead
                await self._drain(tasks, [name for name in tasks if name not in {*done, "read"}])
        if error is not None:
            raise error

    async def _drain(self, tasks: dict[str, Task], others: list[str]) -> None:
        """Waits until everything that was read, and every parked message that is being sent again, is confirmed. If one
        of the tasks `others` fails meanwhile, raises its error."""
        await cancel(tasks["read"])
        if self._dependencies.redelivery is not None:
            self._dependencies.redelivery.end()
        self._publisher.sink.hurry()
        watched = [tasks[name] for name in others if name != "redeliver"]
        try:
            async with (
                asyncio.timeout(self._daemon.drain_timeout),
                alongside({"drain": self._empty(tasks)}) as draining,
            ):
                done = await ended([*draining.values(), *watched])
                for task in [draining["drain"]] if draining["drain"] in done else done:
                    result_of(task)
        except TimeoutError:
            self._log.warning("not all in flight was confirmed in time; it is sent again after the next start")

    async def _empty(self, tasks: dict[str, Task]) -> None:
        await self._publisher.queue.empty()
        if "redeliver" in tasks:
            await asyncio.wait([tasks["redeliver"]])
            result_of(tasks["redeliver"])

    async def _watch(self) -> None:
        """Updates the state at least every second. Detects stalls, and detects that another daemon runs the
        destination. Raises SourceSilent or Fenced."""
        while True:
            await asyncio.sleep(min(self._daemon.checkpoint_interval, _POLL))
            if not self._reading.stream.in_transaction() and not self._dependencies.merge.unfinished:
                self._publisher.queue.end_alone()
            self._status.lag.update()
            self._dependencies.heartbeats.check()
            self._dependencies.snapshotting.report()
            self._dependencies.control.check()
            self._reading.update()
            self._dependencies.emptied.check()
            if self._failed is None:
                await self._dependencies.stalls.check(self._reading.stream)
            self._outage.check()  # before judge(), so that the end of an outage causes no further change of state
            oldest = self._unconfirmed.oldest
            self._status.published.wait(self._publisher.queue.used, oldest)
            if self._failed is None and not self._publisher.suspended and self._reading.begun:
                self._dependencies.stalls.judge(oldest, self._unconfirmed.confirmed_at)


def _errors(tasks: Iterable[Task]) -> Iterable[BaseException]:
    """Yields the errors that tasks ended with."""
    for task in tasks:
        try:
            result_of(task)
        except Exception as error:
            yield error
