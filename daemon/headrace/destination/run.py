"""One run of a destination from an open source to an open sink: the tasks between them, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from itertools import islice

from headrace.destination.checkpointer import Checkpointer
from headrace.destination.control import Control
from headrace.destination.emptied import EmptiedTopics
from headrace.destination.heartbeat_writer import HeartbeatWriter
from headrace.destination.operator import Operator
from headrace.destination.outage import SinkOutage
from headrace.destination.parts import Context
from headrace.destination.publisher import Publisher
from headrace.destination.snapshotting import Snapshotting
from headrace.destination.stall import StallDetector
from headrace.destination.unconfirmed import Unconfirmed
from headrace.destination.unreadable import UnreadableTables
from headrace.errors import Fenced, HeadraceError, PositionLost, SourceChanged, SourceEnded, SourceSilent
from headrace.model import MessageBatch
from headrace.parking.compensation import Compensation
from headrace.pipeline.message_builder import MessageBuilder
from headrace.ports.sink import TopicEnds
from headrace.ports.source import OpenSource, Progress, Receiver
from headrace.snapshot.merge import SnapshotMerge
from headrace.tasks import Task, beside, cancel, result_of

_UNLOGGED = "unlogged_rows"
_NO_CHECKSUMS = "no_checksums"
_UNDECODABLE = "undecodable_text"
_NAMED = 5
"""Columns that a trouble names."""
_STEADY = 10.0
"""A dump that lasted so long, in seconds, and then ended is begun again in place; one that ends sooner is a failure."""
_BLOCKED = 5.0
"""After waiting so long for the sink, in seconds, an ended dump is what was to be expected, however short it was."""
_LOOK = 1.0
"""Seconds between two looks at the clock."""
_REST = 0.2
"""When nothing has come from the source for so long, in seconds, it has no more."""
_LITTLE = 16 * 1024
"""Bytes of one reading from the source that are little: not of a stream that has more than it can read at once."""
_UNASKED = 4
"""How many times as long reading rests after nothing that is published came: mostly heartbeats, those of every other
destination of the server among them."""
_ABOUT_POSITIONS = (PositionLost, SourceChanged)
"""Errors whose state is shown once the position that it is about is stored."""
_TURN = 0.005
"""Seconds that rows of a snapshot may take at a time."""
_SHARE = 0.2
"""Of the time that the stream takes, what a snapshot may take beside it while the stream always has more."""


class Run:
    """Tasks: *read*, *publish*, *checkpoint*, *watch*, *snapshot*, *unreadable*, *outage*, *compensate* where messages
    may be parked, and *heartbeat*. The last never ends the others; when any other fails, all end."""

    def __init__(
        self,
        context: Context,
        source: OpenSource,
        builder: MessageBuilder,
        publisher: Publisher,
        checkpointer: Checkpointer,
        heartbeats: HeartbeatWriter,
        stalls: StallDetector,
        unconfirmed: Unconfirmed,
        outage: SinkOutage,
        operator: Operator,
        merge: SnapshotMerge,
        ends: TopicEnds,
        note_hang: Callable[[str], str] = lambda place: place,
        hung: str = "",
    ) -> None:
        """`note_hang`: see watchdog.Cover.note; it gets `file:offset` of the event that is being read, "" without one.
        `hung`: see Receiver."""
        self._settings, self._daemon = context.settings, context.daemon
        self._status, self._log = context.status, context.log
        self._builder, self._publisher, self._checkpointer = builder, publisher, checkpointer
        self._heartbeats, self._stalls, self._unconfirmed, self._outage = heartbeats, stalls, unconfirmed, outage
        self._compensation = None
        if publisher.parking is not None:
            self._compensation = Compensation(
                self._settings.parking,
                publisher.parking,
                lambda: publisher.resending,
                lambda: checkpointer.guard,
                self._log,
            )
        self._operator = operator
        self._failed: HeadraceError | None = None
        """Why nothing more can be read, while what was read is still confirmed."""
        self._blocked_until = 0.0
        self._opened_at = time.monotonic()
        self._version = source.version
        if builder.native is not None:
            builder.native.accepts = lambda: not merge.tables  # which see the rows of the stream
        self._unreadable = UnreadableTables(context, source.reader)
        self._undecodable, self._undecodable_told = source.undecodable, 0
        self._status.clear(_UNDECODABLE)
        unprepared = builder.preparation.unprepared if builder.preparation is not None else None
        self._source = source.stream(
            Receiver(
                rows=merge.rows,
                large=merge.large,
                alone=publisher.queue.alone,
                hung=hung,
                table=self._unreadable.seen if self._unreadable.wanted else None,
                statement=builder.emit_schema,
                unprepared=unprepared,
                mark=builder.emit_mark if context.settings.wants_marks else None,
                heartbeat=heartbeats.seen,
                unlogged=self._note_unlogged,
                altered=merge.altered,
                signal=lambda signal: self._control.signal(signal),
                begin=builder.tick,
                full=builder.full,
                between=lambda: merge.busy and merge.wants(self._source, rows=self._credit >= _TURN / 2),
                native=builder.native,
            )
        )
        self._merge, merge.wake = merge, self._source.wake
        left_out = self._unreadable.left_out
        self._snapshotting = Snapshotting(context, merge, self._source, source.reader, left_out, unprepared)
        self._emptied = EmptiedTopics(context, ends, builder.projections.topic_of)
        self._control = Control(
            context, merge, self._source, source.reader, checkpointer, self._snapshotting.tell, self._emptied.resynced
        )
        self._held_up = False
        """Whether reading waits for the queue."""
        self._transactions = self._status.published.transactions
        """Those that earlier runs have had confirmed."""
        self._credit = 0.0
        """Seconds that rows of a snapshot may take until the stream has its turn again; below 0 they wait."""
        self._told = Progress("", 0, 0)
        """What the status knows of the stream."""
        self._pause = 0.0
        """Seconds that reading rests, because it got little."""
        publisher.hangs = lambda: note_hang(self._source.reading)
        checkpointer.begin_run(publisher)

    async def run(self, stop: asyncio.Event) -> None:
        """Streams; after `stop` it reads nothing more and waits for what is in flight, within drain_timeout."""
        self._log.info("streaming", position=str(self._source.position()), server=self._version)
        works = {
            "read": self._read(),
            "publish": self._publisher.run(self._note_confirmed),
            "checkpoint": self._checkpointer.run(),
            "watch": self._watch(),
            "snapshot": self._snapshotting.run(),
            "unreadable": self._unreadable.run(),
            "outage": self._outage.watch(self._publisher),
        }
        if self._compensation is not None:
            works["compensate"] = self._compensation.run()
        self._operator.attach(self._control)
        self._status.lag.begin(self)
        self._snapshotting.tell()  # before the state says that changes flow
        try:
            async with beside({"heartbeat": self._heartbeats.run()}), beside(works) as tasks:
                await self._until_end(tasks, stop)
        finally:
            self._operator.attach(None)
            self._status.lag.end()
            await self._end()

    async def _end(self) -> None:
        # Whoever could hand something over is gone by now.
        await self._publisher.rest(resent=self._compensation is None or self._compensation.idle)
        await self._source.close()
        # What is not saved is sent again; the first error is the one to tell.
        with contextlib.suppress(HeadraceError):
            await self._checkpointer.checkpoint()
        if isinstance(
            self._failed, _ABOUT_POSITIONS
        ):  # now the position that people see is the one that the state is about
            self._status.fail(self._failed)
        self._unconfirmed.end_run()
        for holder in (self._publisher, self._builder):  # this run may be kept by a cycle for long
            holder.clear()

    async def _until_end(self, tasks: dict[str, Task], stop: asyncio.Event) -> None:
        async with beside({"stop": stop.wait()}) as stopping:
            done, _ = await asyncio.wait([*tasks.values(), *stopping.values()], return_when=asyncio.FIRST_COMPLETED)
        if stopping["stop"] in done:
            await self._drain(tasks, {name for name in tasks if name != "read"})
        else:
            await self._fail(tasks, {name for name, task in tasks.items() if task in done})

    async def _fail(self, tasks: dict[str, Task], done: set[str]) -> None:
        """Raises what ended the run. When only reading failed, what was read before is confirmed first: nothing of it
        is sent twice, and the stored position is the very place of the failure."""
        error = next(iter(_errors(tasks[name] for name in tasks if name in done)), None)
        # That the source is silent is noticed by the clock's task too.
        reading = done == {"read"} or (done == {"watch"} and isinstance(error, SourceSilent))
        if reading and isinstance(error, HeadraceError) and not isinstance(error, Fenced):
            self._failed = error
            if not isinstance(error, _ABOUT_POSITIONS):
                self._status.fail(error)
            with contextlib.suppress(HeadraceError):  # the first error is the one to tell
                await self._drain(tasks, set(tasks) - done - {"read"})
        if error is not None:
            raise error

    async def _drain(self, tasks: dict[str, Task], others: set[str]) -> None:
        """Waits for what was read, and for what is being sent again; raises the error of the first of `others` that
        fails meanwhile."""
        await cancel(tasks["read"])
        if self._compensation is not None:
            self._compensation.end()
        self._publisher.sink.hurry()
        watched = [tasks[name] for name in others if name != "compensate"]
        try:
            async with asyncio.timeout(self._daemon.drain_timeout), beside({"drain": self._empty(tasks)}) as draining:
                done, _ = await asyncio.wait([*draining.values(), *watched], return_when=asyncio.FIRST_COMPLETED)
                for task in [draining["drain"]] if draining["drain"] in done else done:
                    result_of(task)
        except TimeoutError:
            self._log.warning("not all in flight was confirmed in time; it is sent again after the next start")

    async def _empty(self, tasks: dict[str, Task]) -> None:
        await self._publisher.queue.empty()
        if "compensate" in tasks:
            await asyncio.wait([tasks["compensate"]])
            result_of(tasks["compensate"])

    # -- reading --------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Changes to batches. A stream that ended and can go on at once, behind what was read, is no failure."""
        merge = self._merge
        while True:
            began = time.thread_time() if merge.tables else 0.0
            events = self._told.events
            try:
                await self._source.read()
            except SourceEnded as error:
                await self._begin_again(error)
                continue
            await self._take()
            if self._pause and not merge.busy:
                self._source.rest()
                await asyncio.sleep(self._pause)  # what comes meanwhile is read, published and confirmed together
            if merge.busy:
                streamed = time.thread_time() - began if began and self._told.events != events else None
                await self._give_snapshot(streamed)

    async def _give_snapshot(self, streamed: float | None) -> None:
        """The turn of a snapshot, behind one of the stream that took so many seconds of CPU; None: the stream is
        idle."""
        self._credit = _TURN if streamed is None else min(_TURN, self._credit + _SHARE * streamed)
        if self._source.in_transaction():
            return
        began = time.perf_counter()
        if self._merge.turn(self._source, max(0.0, self._credit)):
            if self._merge.unfinished:
                await self._publisher.queue.alone()
            while self._merge.unfinished:
                self._merge.go_on(_TURN)
                await asyncio.sleep(0)
            self._credit -= time.perf_counter() - began
            await self._take(asyncio.get_running_loop().time())
            self._source.wake()
        if self._merge.wanted_pos:
            await self._pass_numbers()

    async def _pass_numbers(self) -> None:
        """Rows of a snapshot need numbers that no other snapshot has used, nor the same one in an earlier run. The
        stream's own follow from its position, so the one that leaves room is stored before anything behind it is read,
        or a restart would use the room."""
        last_pos = self._merge.wanted_pos
        if not self._source.pass_numbers(last_pos):
            return
        began, self._merge.snapshot_pos = time.monotonic(), last_pos
        await self._take()
        await self._checkpointer.until(lambda stored: stored.snapshot_pos >= last_pos)
        self._merge.numbered()
        if time.monotonic() - began > _BLOCKED:
            self._blocked_until = time.monotonic()
        self._source.wake()

    async def _take(self, at: float = 0.0) -> None:
        """What the stream gave, or a snapshot at a time on the loop's clock, into the queue; waits when that is
        full."""
        source, before, status = self._source, self._told, self._status
        now = source.progress()
        received = max(now.received, at)
        batches = self._builder.take(self._merge.stamped(source.position()), received)
        last, self._told = batches[-1], now
        self._pause = 0.0
        if 0 < now.bytes - before.bytes < _LITTLE:
            linger = self._settings.queue.linger
            self._pause = linger if any(batch.values for batch in batches) else _UNASKED * linger
        last.transactions = now.transactions - before.transactions
        last.schema_entries = source.take_entries()
        status.received.note(before, now)
        status.lag.read(now.commit_time_us)
        self._unconfirmed.read(received, sum(1 for batch in batches if batch.values))
        if self._publisher.passes and not any(batch.values or batch.barrier for batch in batches):
            for batch in batches:  # of an idle destination nearly every one is such: it costs no turn of three tasks
                self._note_confirmed(batch)
            return
        if self._publisher.sink.keeps_position:  # none of them is confirmed before the last, which has the position
            await self._put(*batches)
            return
        for batch in batches:
            await self._put(batch)

    async def _put(self, *batches: MessageBatch) -> None:
        if self._publisher.queue.fits(batches[0]):
            await self._publisher.queue.put(*batches)
            return
        began, self._held_up = time.monotonic(), True
        await self._publisher.queue.put(*batches)
        now, self._held_up = time.monotonic(), False
        if now - began > _BLOCKED:
            self._blocked_until = now

    async def _begin_again(self, error: SourceEnded) -> None:
        """The server gives up a dump that is not read for net_write_timeout, and any dump when it restarts."""
        now = time.monotonic()
        if now - self._opened_at < _STEADY and now - self._blocked_until > 2 * _STEADY:
            raise error
        if self._settings.wants_marks and self._source.in_transaction():
            raise error  # its begin was told, and a position between two transactions comes only with its end
        try:
            self._status.source.reopen(await self._source.reopen())
        except HeadraceError as second:
            raise error from second
        self._opened_at = time.monotonic()
        self._log.info("the dump is begun again", position=str(self._source.position()), ended=str(error))

    def _note_unlogged(self, text: str) -> None:
        remedy = "compare these tables, and bring over by other means what differs"
        self._status.trouble(_UNLOGGED, text, remedy=remedy)
        self._log.error("rows changed without events", what=text, remedy=remedy)

    def _look_at_checksums(self) -> None:
        if self._source.progress().checksums:
            self._status.clear(_NO_CHECKSUMS)
            return
        text = "the source writes its binlog without checksums: a damaged byte would be published as a value"
        if self._status.trouble(_NO_CHECKSUMS, text, remedy="SET GLOBAL binlog_checksum = 'CRC32'; and in my.cnf"):
            self._log.warning("the binlog has no checksums", remedy=self._status.troubles[_NO_CHECKSUMS])

    def _look_at_texts(self) -> None:
        counts = self._undecodable
        total = sum(counts.values())
        new, self._undecodable_told = total - self._undecodable_told, total
        if not new:
            return
        self._status.received.note_undecodable(new)
        named = [f"{count} in {'.'.join(name)}" for name, count in islice(counts.items(), _NAMED)]
        more = f" and {len(counts) - _NAMED} other columns" if len(counts) > _NAMED else ""
        text = "? was published for codes that have no Unicode character, as SELECT prints them; texts with such codes:"
        remedy = 'correct them at the source; or [source] undecodable_text = "stop"'
        first = _UNDECODABLE not in self._status.troubles
        self._status.trouble(_UNDECODABLE, f"{text} {', '.join(named)}{more}", remedy=remedy)
        if first:
            self._log.warning("texts have codes that have no Unicode character", columns=named, remedy=remedy)

    # -- the clock's ----------------------------------------------------------------------------------------------

    def reading_waits(self) -> bool:
        """For Flow: nothing has come for a while although we read."""
        now, received = asyncio.get_running_loop().time(), self._source.progress().received
        return bool(self._told.events) and not self._held_up and now - received > _REST

    def confirming_waits(self) -> bool:
        """For Flow. The rows of a snapshot are no changes that wait."""
        confirmed = self._status.published.transactions - self._transactions
        between = not (self._source.in_transaction() and self._unconfirmed.any)
        return between and confirmed == self._told.transactions

    def _note_confirmed(self, batch: MessageBatch) -> None:
        status = self._status
        if batch.position is not None:
            status.lag.confirmed(batch.position.commit_time_us)
        if batch.values:
            self._unconfirmed.confirm()
        self._checkpointer.confirm(batch)
        status.published.confirm(batch)

    async def _watch(self) -> None:
        """Tells a stall from lag, and that somebody else runs the destination. Raises SourceSilent or Fenced."""
        while True:
            await asyncio.sleep(min(self._daemon.checkpoint_interval, _LOOK))
            if not self._source.in_transaction() and not self._merge.unfinished:
                self._publisher.queue.end_alone()
            self._status.lag.look()
            self._heartbeats.check()
            self._snapshotting.tell()
            self._control.look()
            self._look_at_checksums()
            self._look_at_texts()
            self._emptied.look()
            if self._failed is None:
                await self._stalls.look(self._source)
            self._outage.look()  # so that its end is no state of its own
            oldest = self._unconfirmed.oldest
            self._status.published.wait(self._publisher.queue.used, oldest)
            if self._failed is None and not self._publisher.suspended and self._told.events:
                self._stalls.judge(oldest, self._unconfirmed.confirmed_at)


def _errors(tasks: Iterable[Task]) -> Iterable[BaseException]:
    """Why tasks ended that ended with an error."""
    for task in tasks:
        try:
            result_of(task)
        except Exception as error:
            yield error
