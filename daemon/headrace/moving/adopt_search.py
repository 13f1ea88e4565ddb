"""Finds the last change that another system has published in the binlog, for a destination that continues after it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace.errors import ConfigError
from headrace.model import Origin, Position, RowsChange, SchemaChange
from headrace.moving.adopting import Handover, Resume
from headrace.moving.foreign import ForeignCursor, ForeignStart, start_of
from headrace.moving.shadow.changes import Change, TopicReader
from headrace.moving.shadow.comparison import Comparison
from headrace.moving.shadow.topics import rules_of, topics_of
from headrace.mysql.decode import read_server
from headrace.mysql.position.move import relocate
from headrace.mysql.schema.current import schemas_now
from headrace.mysql.schema.states import reached
from headrace.pipeline.message_builder import MessageBuilder
from headrace.pipeline.projection import Projections
from headrace.ports.format import KeyedFormat, ValueFormat
from headrace.ports.inspection import Output, Window
from headrace.ports.replay import Published, Replay
from headrace.settings.destination import DestinationSettings
from headrace.settings.values import Start, StartAt, StartTime, start_text

_EARLIER_MS = 5_000
"""How long before the cursor the comparison begins: changes of a row with equal contents differ by their order."""
_CLOCKS_MS = 60_000
"""The maximum difference of the clocks of the source and of the other system."""
_EVER = 1 << 62
_MOST = 300_000
"""Maximum number of changes after the cursor that are searched for: they are kept in memory."""
_NOWHERE = Position("", "", 0)
NewFormat = Callable[[DestinationSettings], ValueFormat | KeyedFormat]
NewReplay = Callable[[DestinationSettings, str, int], Replay]
ReadMessage = Callable[[Published], Iterator[Change]]
"""See Reader."""


def _nothing(*_: object) -> None:
    """Reports no rule: there are no messages to compare."""


class _CursorAlone(Exception):
    """The last messages can't be searched for; the text says why."""


@dataclass(slots=True)
class _LastMessages:
    """What the other system has published since a little before its cursor."""

    read_ours: ReadMessage
    """Reads a message of the destination."""
    comparison: Comparison
    published: list[Change] = field(default_factory=list)


class Search:
    """Finds the last change that the other system has published. `replay` reads a topic of the destination's sink from
    a time on; it raises LookupError for a sink whose messages can't be read back."""

    def __init__(
        self, chosen: DestinationSettings, cursor: ForeignCursor, new_format: NewFormat, replay: NewReplay
    ) -> None:
        self._chosen, self._cursor, self._new_format, self._replay = chosen, cursor, new_format, replay
        self._projections = Projections(chosen, new_format(chosen))
        self._replays: list[tuple[str, Replay]] = []
        self._read_message: ReadMessage | None = None

    async def run(self) -> tuple[str, int, list[str]]:
        """Returns where to continue and after how many events, as for Source.move_by_hand(), and notes for the
        operator. Raises SourceError."""
        start = await start_of(self._chosen.source, self._cursor)
        resume, notes = await self._search(start)
        if resume is None:
            return start_text(start.start), 0, [*start.notes, *notes]
        return f"{resume.file}:{resume.offset}", resume.events_done, notes

    async def _search(self, start: ForeignStart) -> tuple[Resume | None, list[str]]:
        """Returns where to continue; None: at `start`, where the cursor is."""
        chosen, cursor = self._chosen, self._cursor
        at_cursor = (await relocate(chosen.source, start.start, None, reason="operator")).position
        begin = StartAt(at_cursor.file, at_cursor.offset)

        def covered(origin: Origin) -> bool:
            of_cursor = (origin.file, origin.transaction) == (begin.file, begin.offset)
            return start.by_file and cursor.inclusive and of_cursor and origin.offset <= cursor.offset

        of = (begin.file, begin.offset), covered
        try:
            last = await self._last_messages()
        except _CursorAlone as why:
            handover = Handover((), *of, Comparison(_nothing, _nothing))
            await self._read(begin, _Events(handover))
            return await self._resume(handover), [f"{why}: what was published after the cursor comes again"]
        handover = Handover(last.published, *of, last.comparison)
        events = _EventsWithMessages(self._projections, self._new_format(chosen), handover, last)
        await self._read(await self._begin(at_cursor), events)
        return await self._decided(handover)

    async def _last_messages(self) -> _LastMessages:
        """Returns the last messages. Raises _CursorAlone if they can't be read back."""
        chosen, cursor = self._chosen, self._cursor
        begin_ms = cursor.time_ms - _EARLIER_MS if cursor.time_ms else 0
        try:
            reader, explain, alone = rules_of(chosen)
            tables = await schemas_now(chosen.source, self._projections.captures)
            topics, keys_of = topics_of(chosen, self._projections, tables.values())
            for topic, _ in topics:
                self._replays.append((topic, self._replay(chosen, topic, max(0, begin_ms - _CLOCKS_MS))))
        except (LookupError, ConfigError):
            raise _CursorAlone("the messages of the other system can't be read back") from None
        found = _LastMessages(lambda message: reader(message, keys_of, True), Comparison(explain, alone))
        self._read_message = lambda message: reader(message, keys_of, False)
        async for one in self._changes(self._read_message):
            if one.committed_ms >= begin_ms:
                found.published.append(one)
            if len(found.published) > _MOST:
                raise _CursorAlone(f"the topics have more than {_MOST:,} changes after the cursor, too many to look up")
        return found

    async def _read(self, begin: Start, output: Output) -> None:
        """Gives the events of the binlog from a position on to an output."""
        source = self._chosen.source.model_copy(update={"start": begin})
        wanted = self._chosen.model_copy(update={"source": source})
        with TemporaryDirectory(prefix="headrace-") as folder:
            captures = self._projections.captures
            await read_server(wanted, captures, Path(folder), Window(), output, follow=False)

    async def _begin(self, at_cursor: Position) -> Start:
        """Returns where the comparison begins: a little before the cursor, if its time is known."""
        where = StartAt(at_cursor.file, at_cursor.offset)
        if self._cursor.time_ms and self._cursor.inclusive:
            earlier = StartTime(datetime.fromtimestamp((self._cursor.time_ms - _EARLIER_MS) / 1000, UTC))
            found = (await relocate(self._chosen.source, earlier, None, reason="operator")).position
            if reached((where.file, where.offset), (found.file, found.offset)):
                where = StartAt(found.file, found.offset)
        return where

    async def _decided(self, handover: Handover) -> tuple[Resume | None, list[str]]:
        # A message of Debezium names its event. One of Canal does not: if it was sent twice it could be taken for a
        # later one.
        exact = self._chosen.message.format == "debezium"
        if not exact and (left := handover.left_over()):
            return None, [
                f"{left:,} of the last messages belong to no change that is looked up, as when they were sent twice: "
                "so all that was published after the cursor comes again"
            ]
        notes = [f"{handover.found:,} changes after it are published already, as the last messages show"]
        if handover.again:
            notes.append(f"{handover.again:,} changes come again: they were published out of the binlog's order")
        return await self._resume(handover), notes

    async def _resume(self, handover: Handover) -> Resume | None:
        """Returns the first event that was not published, else the position after the last one that was; None: the
        cursor."""
        last = handover.last
        if handover.resume is not None or last is None:
            return handover.resume
        if last.ordinal:
            return Resume(last.file, last.transaction, last.ordinal)
        cursor = ForeignCursor(last.file, last.offset, inclusive=True)
        start = (await start_of(self._chosen.source, cursor)).start
        return Resume(start.file, start.offset) if isinstance(start, StartAt) else Resume(last.file, last.transaction)

    async def _changes(self, read: ReadMessage) -> AsyncIterator[Change]:
        """Yields the changes of the topics that were not read yet."""
        for topic, replay in self._replays:
            of_topic = TopicReader(read, topic)
            async for block in replay.read():
                for message in block:
                    for change in of_topic(message):
                        yield change

    async def moved(self) -> bool:
        """Returns whether more was published since run()."""
        if self._read_message is not None:
            async for _ in self._changes(self._read_message):
                return True
        return False

    async def close(self) -> None:
        for _, replay in self._replays:
            await replay.close()


class _Events(Output):
    """Passes on the events of the binlog up to the first one that the cursor does not cover."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover

    def emit(self, change: RowsChange) -> None:
        self._take(change, change.origin.ordinal - 1)

    def emit_schema(self, change: SchemaChange) -> None:
        self._take(change, change.origin.ordinal)

    def _take(self, change: RowsChange | SchemaChange, done: int) -> None:
        self._handover.take(change.origin, None, done)
        self.done = self._handover.resume is not None


class _EventsWithMessages(_Events):
    """Passes on the events with the changes in the destination's messages about them, while the other system may have
    published them."""

    def __init__(
        self, projections: Projections, fmt: ValueFormat | KeyedFormat, handover: Handover, last: _LastMessages
    ) -> None:
        super().__init__(handover)
        self._builder = MessageBuilder(fmt, projections, one_log=True)
        self._builder.tick()
        self._read = last.read_ours
        times = [one.stored_ms for one in last.published]
        self._until_ms = max(times, default=0) + _CLOCKS_MS if all(times) else _EVER

    def emit(self, change: RowsChange) -> None:
        self._builder.emit(change)
        super().emit(change)

    def emit_schema(self, change: SchemaChange) -> None:
        self._builder.emit_schema(change)
        super().emit_schema(change)

    def _take(self, change: RowsChange | SchemaChange, done: int) -> None:
        changes = list[Change]()
        for batch in self._builder.take(_NOWHERE, 0.0):
            keys = batch.keys or [None] * len(batch.values)
            for value, key in zip(batch.values, keys, strict=True):
                for one in self._read(Published(value, key)):
                    one.table = one.table or f"topic {batch.topic}"
                    changes.append(one)
        self._handover.take(change.origin, changes, done)
        self.done = change.commit_time_us // 1000 > self._until_ms
