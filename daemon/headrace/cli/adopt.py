"""`headrace adopt`: a destination goes on where Canal or Debezium has stopped, after the last change that it
published."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace.canal_wire.cursor import cursor_node, destination_node
from headrace.cli.common import CommandRefused, add_command, coordinated, destination, held, require_answer
from headrace.cli.decode_output import Output
from headrace.cli.decode_read import Window, read_server
from headrace.cli.export_to import add_names, connector_of
from headrace.cli.position_set import move_to
from headrace.cli.shadow import rules_of, topics_of
from headrace.cli.wiring import Wiring, foreign_nodes, new_format, topic_records
from headrace.errors import ConfigError, Refusal
from headrace.model import Origin, Position, RowsChange, SchemaChange
from headrace.moving.adopting import Handover, Resume
from headrace.moving.cursors import meta_cursors, parsed_cursor, stored_offset
from headrace.moving.shadow.changes import Change, TopicReader
from headrace.moving.shadow.comparison import Comparison
from headrace.mysql.position.foreign import ForeignCursor, ForeignStart, start_of
from headrace.mysql.position.move import relocate
from headrace.mysql.schema.states import reached
from headrace.mysql.source import MysqlSource
from headrace.pipeline.message_builder import MessageBuilder
from headrace.pipeline.projection import Projections
from headrace.ports.replay import Published, Replay
from headrace.settings.destination import DestinationSettings, Settings
from headrace.settings.values import Start, StartAt, StartTime
from headrace_common.arguments import duration

DESCRIPTION = (
    "Sets the position of a destination to where Canal or Debezium has stopped. The cursor of the other system may be "
    "older than its last message, so its last messages are looked up in the binlog: what it published is not "
    "published again. Both systems have to be stopped."
)
_EARLIER_MS = 5_000
"""So long before the cursor the comparison begins: changes of a row with equal contents differ by their order."""
_CLOCKS_MS = 60_000
"""The clocks of the source and of the other system may be so far apart."""
_LOOK = 0.5
_QUIET = 2.0
"""Seconds in which neither the cursor nor the topics may move."""
_EVER = 1 << 62
_MOST = 300_000
"""Changes after the cursor that are looked up: they are kept in memory."""
_NOWHERE = Position("", "", 0)
ReadMessage = Callable[[Published], Iterator[Change]]
"""See Reader."""
ReadCursor = Callable[[], Awaitable[ForeignCursor]]
"""Reads the other system's cursor. Raises Refusal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add = partial(add_command, parser.add_subparsers(metavar="SYSTEM", required=True))
    canal = add("canal", "go on where a Canal destination has stopped", _canal)
    add_names(canal, debezium := add("debezium", "go on where a connector has stopped", _debezium))
    where = canal.add_mutually_exclusive_group(required=True)
    where.add_argument("--zookeeper", metavar="HOSTS", help="the ensemble that Canal keeps its cursor in")
    where.add_argument("--meta", type=Path, metavar="FILE", help="its meta.dat")
    debezium.add_argument("--offsets", required=True, metavar="TOPIC", help="Kafka Connect's offset.storage.topic")
    debezium.add_argument("--bootstrap", metavar="HOSTS", help="its brokers (default: those of the destination)")
    for command in (canal, debezium):
        command.add_argument(
            "--wait",
            type=duration,
            default=60.0,
            metavar="DURATION",
            help="how long the other system may take to stop (default: 1m)",
        )
        command.add_argument("--yes", action="store_true", help="do not ask before the position is set")


async def _canal(settings: Settings, given: argparse.Namespace) -> int:
    canals = given.destination or given.name

    async def from_file() -> ForeignCursor:
        problems = list[str]()
        found = meta_cursors(given.meta, {given.name: canals}, problems)
        if problems:
            raise ConfigError(problems)
        if given.name not in found:
            raise Refusal(f"{given.meta} has no cursor of {canals}")
        return found[given.name]

    if given.meta:
        return await _adopt(settings, given, from_file)
    async with foreign_nodes(given.zookeeper) as nodes:

        async def from_node() -> ForeignCursor:
            try:
                async with asyncio.timeout(given.wait):
                    while await nodes.get(f"{destination_node(canals)}/running") is not None:  # noqa: ASYNC110
                        await asyncio.sleep(_LOOK)
            except TimeoutError:
                raise CommandRefused(
                    f"Canal still runs {canals} after {given.wait:g} s", remedy="stop it, and try again"
                ) from None
            node = cursor_node(canals)
            try:
                return parsed_cursor(await nodes.get(node) or b"")
            except ValueError as error:
                raise Refusal(f"{node}: {error}") from error

        return await _adopt(settings, given, from_node)


async def _debezium(settings: Settings, given: argparse.Namespace) -> int:
    chosen = destination(settings, given.name)
    connector, prefix = connector_of(chosen, given)
    bootstrap = given.bootstrap or ",".join(getattr(chosen.sink, "bootstrap_servers", ()))
    if not bootstrap:
        raise ConfigError([f"--bootstrap is needed: a {chosen.sink.type} sink has no brokers"])

    async def from_topic() -> ForeignCursor:
        try:
            return stored_offset(await topic_records(bootstrap, given.offsets), connector, prefix)
        except ValueError as error:
            raise Refusal(f"{given.offsets}: {error}") from error

    return await _adopt(settings, given, from_topic)


async def _adopt(settings: Settings, given: argparse.Namespace, read_cursor: ReadCursor) -> int:
    chosen = destination(settings, given.name)
    if chosen.route.topic_prefix:
        raise ConfigError(
            [f"{chosen.name}: route.topic_prefix: take it out, so that it publishes into the old system's topics"]
        )
    require_answer(given.yes)
    async with coordinated(settings) as shared:
        async with held(shared, chosen):  # before the search, which takes time
            pass
        cursor = await read_cursor()
        start = await start_of(chosen.source, cursor)
        search = _Search(shared, settings, chosen, cursor)
        try:
            resume, notes = await search.run(start)
            await asyncio.sleep(_QUIET)
            if await search.moved() or await read_cursor() != cursor:
                raise CommandRefused(
                    "the other system still publishes, or moves its cursor", remedy="stop it, and try again"
                )
        finally:
            await search.close()
        where: Start = start.start
        if resume is None:
            notes = [*start.notes, *notes]
        else:
            where = StartAt(resume.file, resume.offset)
        notes, done = [f"the cursor of the other system is {cursor}", *notes], resume.events_done if resume else 0
        text = f"adopt {cursor}"
        return 0 if await move_to(shared, chosen, where, text, yes=given.yes, events_done=done, notes=notes) else 1


def _nothing(*_: object) -> None:
    """No rule: there are no messages to compare."""


class _CursorAlone(Exception):
    """The last messages can't be looked up, and the text says why."""


@dataclass(slots=True)
class _LastMessages:
    """What the other system has published since a little before its cursor."""

    read_ours: ReadMessage
    """Reads a message of the destination."""
    comparison: Comparison
    published: list[Change] = field(default_factory=list)


class _Search:
    """Finds the last change that the other system has published."""

    def __init__(self, shared: Wiring, settings: Settings, chosen: DestinationSettings, cursor: ForeignCursor) -> None:
        self._shared, self._settings, self._chosen, self._cursor = shared, settings, chosen, cursor
        self._replays: list[tuple[str, Replay]] = []
        self._read_message: ReadMessage | None = None

    async def run(self, start: ForeignStart) -> tuple[Resume | None, list[str]]:
        """Where to go on, and what an operator should know; None: at `start`, where the cursor is."""
        chosen, cursor = self._chosen, self._cursor
        source = MysqlSource(chosen, self._settings.daemon, Projections(chosen).captures, named=False)
        await source.now_ms()
        at_cursor = (await relocate(source.settings, start.start, None, reason="operator")).position
        begin = StartAt(at_cursor.file, at_cursor.offset)

        def covered(origin: Origin) -> bool:
            of_cursor = (origin.file, origin.transaction) == (begin.file, begin.offset)
            return start.by_file and cursor.inclusive and of_cursor and origin.offset <= cursor.offset

        of = (begin.file, begin.offset), covered
        try:
            last = await self._last_messages(source)
        except _CursorAlone as why:
            handover = Handover((), *of, Comparison(_nothing, _nothing))
            await self._read(begin, _Events(handover))
            return await self._resume(handover), [f"{why}: what was published after the cursor comes again"]
        handover = Handover(last.published, *of, last.comparison)
        await self._read(await self._begin(source, at_cursor), _EventsWithMessages(chosen, handover, last))
        return await self._decided(handover)

    async def _last_messages(self, source: MysqlSource) -> _LastMessages:
        """Raises _CursorAlone where they can't be read back."""
        chosen, cursor = self._chosen, self._cursor
        begin_ms = cursor.time_ms - _EARLIER_MS if cursor.time_ms else 0
        try:
            reader, explain, alone = rules_of(chosen)
            topics, keys_of = await topics_of(chosen, source)
            for topic, _ in topics:
                self._replays.append((topic, self._shared.replay(chosen, topic, max(0, begin_ms - _CLOCKS_MS))))
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
            await read_server(wanted, Path(folder), Window([], None, None), output, follow=False)

    async def _begin(self, source: MysqlSource, at_cursor: Position) -> Start:
        """Where the comparison begins: a little before the cursor, where its time is known."""
        where = StartAt(at_cursor.file, at_cursor.offset)
        if self._cursor.time_ms and self._cursor.inclusive:
            earlier = StartTime(datetime.fromtimestamp((self._cursor.time_ms - _EARLIER_MS) / 1000, UTC))
            found = (await relocate(source.settings, earlier, None, reason="operator")).position
            if reached((where.file, where.offset), (found.file, found.offset)):
                where = StartAt(found.file, found.offset)
        return where

    async def _decided(self, handover: Handover) -> tuple[Resume | None, list[str]]:
        # A message of Debezium names its event. One of Canal does not: sent twice it could be taken for a later one.
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
        """At the first event that was not published, else after the last one that was; None: at the cursor."""
        last = handover.last
        if handover.resume is not None or last is None:
            return handover.resume
        if last.ordinal:
            return Resume(last.file, last.transaction, last.ordinal)
        cursor = ForeignCursor(last.file, last.offset, inclusive=True)
        start = (await start_of(self._chosen.source, cursor)).start
        return Resume(start.file, start.offset) if isinstance(start, StartAt) else Resume(last.file, last.transaction)

    async def _changes(self, read: ReadMessage) -> AsyncIterator[Change]:
        """What the topics have that was not read yet."""
        for topic, replay in self._replays:
            of_topic = TopicReader(read, topic)
            async for block in replay.read():
                for message in block:
                    for change in of_topic(message):
                        yield change

    async def moved(self) -> bool:
        """Whether more was published since run()."""
        if self._read_message is not None:
            async for _ in self._changes(self._read_message):
                return True
        return False

    async def close(self) -> None:
        for _, replay in self._replays:
            await replay.close()


class _Events(Output):
    """Hands over the events of the binlog up to the first one that the cursor does not cover."""

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
    """Hands over the events with the changes in the destination's messages of them, as long as the other system may
    have published them."""

    def __init__(self, settings: DestinationSettings, handover: Handover, last: _LastMessages) -> None:
        super().__init__(handover)
        fmt = new_format(settings)
        self._builder = MessageBuilder(fmt, Projections(settings, fmt), one_log=True)
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
