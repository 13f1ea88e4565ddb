"""The reading half of a run: puts changes of the stream, and rows of a snapshot between them, into the queue as
batches."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice

from headrace import runtime
from headrace.destination.checkpointer import Checkpointer
from headrace.destination.dependencies import Context
from headrace.destination.outage import Unconfirmed
from headrace.destination.publisher import Publisher
from headrace.errors import ContinuesElsewhere, HeadraceError, PositionLost, SourceChanged, SourceEnded
from headrace.model import MessageBatch
from headrace.pipeline.message_builder import MessageBuilder
from headrace.ports.source import ChangeStream, OpenSource, Progress, Receiver
from headrace.snapshot.merge import SnapshotMerge

_UNLOGGED = "unlogged_rows"
_NO_CHECKSUMS = "no_checksums"
_UNDECODABLE = "undecodable_text"
_NAMED = 5
"""Maximum number of columns that a trouble names."""
_STEADY = 10.0
"""A dump that lasted this many seconds and then ended is begun again; one that ends sooner is a failure."""
_MOVES = 10
"""How often a stream may go on elsewhere within `_STEADY` seconds. One that does so more often gets nowhere."""
_BLOCKED = 5.0
"""After waiting this many seconds for the sink, an ended dump is expected, however short it was."""
_REST = 0.2
"""When nothing has come from the source for this many seconds, it has no more."""
_LITTLE = 16 * 1024
"""Bytes of one read from the source that are little: a stream with a backlog gives more."""
_LITTLE_EACH, _LITTLE_MOST = 0.005, 4.0
"""After a rest for the sink, that many bytes for each 5 ms of it are little, at most four times as many: one read of an
endless backlog gives more."""
_UNASKED = 4
"""How many times longer reading rests after it read nothing that is published: mostly heartbeats, also of all other
destinations of the server."""
_RESTS = 0.1
"""Maximum seconds that reading rests because the sink confirms nothing yet."""
_TURN = 0.005
"""Seconds that rows of a snapshot may take at a time."""
_SHARE = 0.2
"""The share of the stream's time that a snapshot may take while the stream always has more."""


class Reading:
    """The reading of one run. start() is called first."""

    def __init__(
        self,
        context: Context,
        builder: MessageBuilder,
        merge: SnapshotMerge,
        publisher: Publisher,
        checkpointer: Checkpointer,
        unconfirmed: Unconfirmed,
    ) -> None:
        self._settings, self._status, self._log = context.settings, context.status, context.log
        self._builder, self._merge, self._publisher = builder, merge, publisher
        self._checkpointer, self._unconfirmed = checkpointer, unconfirmed
        self.stream: ChangeStream
        self._blocked_until = 0.0
        self._opened_at = runtime.monotonic()
        self._moved_at = deque[float](maxlen=_MOVES)
        """When the stream last went on elsewhere."""
        self._undecodable_reported = 0
        self._status.clear(_UNDECODABLE)
        self._held_up = False
        """Whether reading waits for the queue."""
        self._transactions = self._status.published.transactions
        """Confirmed transactions of earlier runs."""
        self._credit = 0.0
        """Seconds that rows of a snapshot may take until it is the stream's turn again; below 0 they wait."""
        self._reported = Progress("", 0, 0)
        """The progress of the stream that the status has."""
        self._little, self._pause = False, 0.0
        """Whether the last read got little, and the seconds that reading rests then."""
        self._rested = 0.0
        """Seconds that it has rested for the sink before the present read."""

    def start(self, source: OpenSource, receiver: Receiver) -> None:
        """Takes the stream of a source. `receiver` gets its changes."""
        self.stream, self._undecodable = source.stream(receiver), source.undecodable

    def clear(self) -> None:
        """Drops what nobody has taken."""
        self._builder.clear()

    @property
    def begun(self) -> bool:
        """Returns whether the source has sent anything."""
        return bool(self._reported.events)

    def wants_snapshot(self) -> bool:
        """Returns whether the stream must stop between two transactions; see Receiver.between."""
        return self._merge.busy and self._merge.wants(self.stream, rows=self._credit >= _TURN / 2)

    async def run(self) -> None:
        """Turns changes into batches. A stream that ended and can continue at once, after what was read, is no
        failure."""
        merge = self._merge
        while True:
            began = runtime.cpu() if merge.tables else 0.0
            events = self._reported.events
            try:
                await self.stream.read()
            except SourceEnded as error:
                await self._begin_again(error)
                continue
            await self._take()
            self._rested = 0.0
            if self._little and not merge.busy:
                if self._pause:
                    self.stream.rest()
                    await asyncio.sleep(self._pause)  # what arrives meanwhile is read, published and confirmed together
                more = min(self._publisher.sink.rests_until - runtime.monotonic(), _RESTS)
                if more > 0:
                    self._rested = self._pause + more
                    await asyncio.sleep(more)
            if merge.busy:
                streamed = runtime.cpu() - began if began and self._reported.events != events else None
                await self._give_snapshot(streamed)

    async def _give_snapshot(self, streamed: float | None) -> None:
        """Gives a snapshot its turn, after one of the stream that took this many seconds of CPU; None: the stream is
        idle."""
        self._credit = _TURN if streamed is None else min(_TURN, self._credit + _SHARE * streamed)
        if self.stream.in_transaction():
            return
        began = runtime.current().busy()
        if self._merge.turn(self.stream, max(0.0, self._credit)):
            if self._merge.unfinished:
                await self._publisher.queue.alone()
            while self._merge.unfinished:
                self._merge.go_on(_TURN)
                await asyncio.sleep(0)
            self._credit -= runtime.current().busy() - began
            await self._take(runtime.monotonic())
            self.stream.wake()
        if self._merge.wanted_pos:
            await self._pass_numbers()

    async def _pass_numbers(self) -> None:
        """Reserves numbers for rows of a snapshot that no other snapshot has used, nor the same one in an earlier run.
        The stream's numbers follow from its position, so the position that leaves the numbers free is stored before
        anything after it is read; otherwise a restart would use them."""
        last_pos = self._merge.wanted_pos
        if not self.stream.pass_numbers(last_pos):
            return
        began, self._merge.snapshot_pos = runtime.monotonic(), last_pos
        await self._take()
        await self._checkpointer.until(lambda stored: stored.snapshot_pos >= last_pos)
        self._merge.numbered()
        if runtime.monotonic() - began > _BLOCKED:
            self._blocked_until = runtime.monotonic()
        self.stream.wake()

    async def _take(self, at: float = 0.0) -> None:
        """Moves what the stream gave, or a snapshot gave at a time on the monotonic clock, into the queue. Waits when
        that is full."""
        source, before, status = self.stream, self._reported, self._status
        now = source.progress()
        received = max(now.received, at)
        batches = self._builder.take(self._merge.stamped(source.position()), received)
        last, self._reported = batches[-1], now
        little = _LITTLE * min(max(1.0, self._rested / _LITTLE_EACH), _LITTLE_MOST)
        self._little, self._pause = 0 < now.bytes - before.bytes < little, 0.0
        if self._little:
            linger = self._settings.queue.linger
            self._pause = linger if any(batch.values for batch in batches) else _UNASKED * linger
        last.transactions = now.transactions - before.transactions
        last.schema_entries = source.take_entries()
        status.received.note(before, now)
        status.lag.read(now.commit_time_us)
        self._unconfirmed.read(received, sum(1 for batch in batches if batch.values))
        if self._publisher.passes and not any(batch.values or batch.barrier for batch in batches):
            for batch in batches:  # for an idle destination nearly every batch is such: it costs no turn of three tasks
                self.note_confirmed(batch)
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
        began, self._held_up = runtime.monotonic(), True
        await self._publisher.queue.put(*batches)
        now, self._held_up = runtime.monotonic(), False
        if now - began > _BLOCKED:
            self._blocked_until = now

    async def _begin_again(self, error: SourceEnded) -> None:
        """Begins the dump again. A server ends a dump that is not read for net_write_timeout, and any dump when it
        restarts."""
        now, elsewhere = runtime.monotonic(), isinstance(error, ContinuesElsewhere)
        if not elsewhere and now - self._opened_at < _STEADY and now - self._blocked_until > 2 * _STEADY:
            raise error
        if elsewhere:
            if len(self._moved_at) == _MOVES and now - self._moved_at[0] < _STEADY:
                raise error
            self._moved_at.append(now)
        if self._settings.wants_marks and self.stream.in_transaction():
            raise error  # its begin was given, and a position between two transactions comes only with its end
        try:
            self._status.source.reopen(await self.stream.reopen())
        except PositionLost:
            raise
        except HeadraceError as second:
            if elsewhere and not isinstance(second, SourceChanged):  # that one says what is wrong
                raise
            raise error from second
        self._opened_at = runtime.monotonic()
        self._log.info("the dump is begun again", position=str(self.stream.position()), ended=str(error))

    def update(self) -> None:
        """Updates the status; called each second."""
        self._check_checksums()
        self._check_texts()

    def _check_checksums(self) -> None:
        if self.stream.progress().checksums:
            self._status.clear(_NO_CHECKSUMS)
            return
        text = "the source writes its binlog without checksums: a damaged byte would be published as a value"
        if self._status.trouble(_NO_CHECKSUMS, text, remedy="SET GLOBAL binlog_checksum = 'CRC32'; and in my.cnf"):
            self._log.warning("the binlog has no checksums", remedy=self._status.troubles[_NO_CHECKSUMS])

    def _check_texts(self) -> None:
        counts = self._undecodable
        total = sum(counts.values())
        new, self._undecodable_reported = total - self._undecodable_reported, total
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

    def note_unlogged(self, text: str) -> None:
        """See Receiver.unlogged."""
        remedy = "compare these tables, and bring over by other means what differs"
        self._status.trouble(_UNLOGGED, text, remedy=remedy)
        self._log.error("rows changed without events", what=text, remedy=remedy)

    # -- what is confirmed ----------------------------------------------------------------------------------------

    def reading_waits(self) -> bool:
        """Returns whether nothing has come for a while although we read; for Flow."""
        now, received = runtime.monotonic(), self.stream.progress().received
        return bool(self._reported.events) and not self._held_up and now - received > _REST

    def confirming_waits(self) -> bool:
        """Returns whether all changes are confirmed; for Flow. Rows of a snapshot do not count."""
        confirmed = self._status.published.transactions - self._transactions
        between = not (self.stream.in_transaction() and self._unconfirmed.any)
        return between and confirmed == self._reported.transactions

    def note_confirmed(self, batch: MessageBatch) -> None:
        """Records a confirmed batch; all before it are confirmed."""
        status = self._status
        if batch.position is not None:
            status.lag.confirmed(batch.position.commit_time_us)
        if batch.values:
            self._unconfirmed.confirm()
        self._checkpointer.confirm(batch)
        status.published.confirm(batch)
