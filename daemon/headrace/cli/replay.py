"""`headrace replay`: publishes archived changes again, into another topic or a file."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError

from headrace import runtime
from headrace.cli.common import add_config, archive_of, coordinated, destination, open_store
from headrace.cli.decode import told, window_bound
from headrace.cli.terminal import progress
from headrace.cli.wiring import ADAPTERS, new_format, sink_routing
from headrace.errors import ConfigError, Refusal
from headrace.lease import Lease
from headrace.model import Position, RowsChange, SchemaChange
from headrace.pipeline.message_builder import MessageBuilder, make_builder
from headrace.pipeline.projection import Projections
from headrace.ports.inspection import Output, Window
from headrace.ports.sink import Sink, SinkUse
from headrace.rules.patterns import compile_filter
from headrace.rules.topics import ANY_NAME, TopicRules
from headrace.settings.adapters import Exclusive
from headrace.settings.destination import DestinationSettings, Settings
from headrace.settings.route import RouteSettings

_NOWHERE = Position("", "", 0)
"""The progress is not stored."""
_WAITING = 64 << 20
"""Bytes of messages that wait for their confirmation."""
_SAFE = {"delivery": "at_least_once", "on_oversize": "halt", "on_failure": "halt"}
"""Settings of a sink without a stored position and without parked messages."""
DESCRIPTION = (
    "Publishes again what the archive has, as the destination would, into another topic or a file. The destinations' "
    "own topics and files are refused, and positions stay as they are. Exit status 0: all is published; 1: something "
    "failed; 2: the configuration or the command is wrong."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add_config(parser)
    parser.add_argument("name", metavar="DEST", help="the destination whose archive, rules and format are used")
    parser.add_argument("--table", metavar="REGEX", help="only tables whose schema.table matches; several with commas")
    parser.add_argument("--from", dest="first", metavar="POSITION", help="file:offset, or a time with its zone")
    parser.add_argument("--to", dest="last", metavar="POSITION", help="only transactions that begin before")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--to-topic", metavar="TOPIC", help="a topic of the destination's sink")
    target.add_argument("--to-file", metavar="FILE", type=Path, help="a file of JSON lines, to which is added")
    parser.add_argument("--rate", metavar="ROWS", type=_rate, default=0, help="rows a second at most (default: any)")
    parser.set_defaults(call=command)


def _rate(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError("should be a number of rows a second, at least 1")
    return int(text)


async def command(settings: Settings, given: argparse.Namespace) -> int:
    """Publishes; returns the exit status. Raises HeadraceError."""
    found = destination(settings, given.name)
    archived, target, adapter = archive_of(found), _target(found, given), ADAPTERS.source_adapter()
    try:
        window = Window((), window_bound(given.first, [], "--from"), window_bound(given.last, [], "--to"))
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    async with coordinated(settings) as shared:
        entries = await (await open_store(shared, found)).schema_entries(found.name)
    _require_unused(settings, target, {(one["schema"], one["table"]) for one in entries if one["kind"] == "table"})
    with TemporaryDirectory(prefix="headrace-") as folder, progress("replaying") as work:
        use = SinkUse(target.name, Lease(), sink_routing(target), spool=Path(folder))
        sink = ADAPTERS.sink_adapter(target.sink.type).sink(target.sink, use)
        await sink.start()
        output = _Published(target, sink, given.rate)
        try:
            captures, on_progress = Projections(target).captures, partial(work.at, about="replaying")
            left = await adapter.read_archive(
                target, archived, entries, captures, Path(folder), window, output, on_progress
            )
            await output.settle(whole=True)
        except BaseException:
            await sink.abort()
            raise
        await sink.close()
    out = sys.stderr if str(given.to_file) == "-" else sys.stdout
    print(f"{output.rows:,} rows published to {given.to_topic or given.to_file}", file=out)
    return told(left)


def _target(found: DestinationSettings, given: argparse.Namespace) -> DestinationSettings:
    """Returns the destination with another sink or topic. Raises Refusal and ConfigError."""
    if given.to_file is not None:
        sink: Any = ADAPTERS.sink_adapter("jsonl").section.model_validate({"type": "jsonl", "path": str(given.to_file)})
        topic = found.route.topic
    elif found.sink.type in ("canal", "jsonl", "null"):
        raise Refusal(f"the sink {found.sink.type} has no topics", remedy="use --to-file")
    else:
        known = type(found.sink).model_fields
        sink = found.sink.model_copy(update={key: value for key, value in _SAFE.items() if key in known})
        topic = given.to_topic
        try:
            RouteSettings(topic=topic)
        except ValidationError as error:
            raise ConfigError([f"--to-topic: {error.errors()[0]['msg']}"]) from None
    changed: dict[str, Any] = {
        "sink": sink,
        "route": found.route.model_copy(update={"topic": topic, "topic_prefix": "", "dynamic_topic": ""}),
        "filter": _filter(found, given.table),
    }
    return found.model_copy(update=changed)


def _require_unused(settings: Settings, target: DestinationSettings, tables: Iterable[tuple[str, str]]) -> None:
    """Raises Refusal if a destination publishes to the target; `tables` are the known ones."""
    can, topic = target.sink.capabilities, target.route.topic
    for one in settings.destinations.values():
        if can.has_topics:
            used = topic if one.sink.type == target.sink.type and topic in _topics(one, tables) else ""
        else:
            used = (
                can.exclusive.value if can.exclusive and _same(can.exclusive, one.sink.capabilities.exclusive) else ""
            )
        if used:
            raise Refusal(
                f"the destination {one.name} publishes to {used}: its consumers would take old rows for new ones",
                remedy="name another one, or move the position: headrace position set",
            )


def _same(one: Exclusive, other: Exclusive | None) -> bool:
    return other is not None and one.identity == other.identity


def _topics(destination: DestinationSettings, tables: Iterable[tuple[str, str]]) -> set[str]:
    route = destination.route
    rules = TopicRules.parse(route.dynamic_topic, names=ANY_NAME, prefix=route.topic_prefix)
    chosen = [rules.choose(*table) for table in tables]
    return {route.topic, *sink_routing(destination).topics, *(one[0] for one in chosen if one is not None)}


def _filter(found: DestinationSettings, table: str | None) -> Any:
    changed: Mapping[str, Any] = {"transactions": False}
    if table is not None:
        try:
            compile_filter(table)
        except ValueError as error:
            raise ConfigError([f"--table: {error}"]) from None
        changed = {**changed, "include": table}
    return found.filter.model_copy(update=changed)


class _Published(Output):
    """Publishes what is read. `rate` is the maximum number of rows a second, 0 for any."""

    def __init__(self, target: DestinationSettings, sink: Sink, rate: int) -> None:
        self._target, self._sink, self._rate = target, sink, rate
        self._builder: MessageBuilder
        self._changes: list[RowsChange | SchemaChange] = []
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._bytes = self.rows = 0
        self._began = runtime.monotonic()

    def begin(self, server: str) -> None:
        self._builder = make_builder(self._target, new_format(self._target), server, 0)
        self._builder.tick()

    def emit(self, change: RowsChange) -> None:
        self._changes.append(change)

    def emit_schema(self, change: SchemaChange) -> None:
        self._changes.append(change)

    async def settle(self, *, whole: bool = False) -> None:
        changes, self._changes = self._changes, []
        for change in changes:
            if isinstance(change, SchemaChange):
                self._builder.emit_schema(change)
                continue
            preparation = self._builder.preparation
            if preparation is not None and (prepare := preparation.unprepared(change.schema)) is not None:
                await prepare()
            self._builder.emit(change)
            if self._builder.full():
                await self._publish()
        await self._publish()
        while self._waiting and (whole or self._bytes > _WAITING):
            await self._confirmed()

    async def _publish(self) -> None:
        for batch in self._builder.take(_NOWHERE, 0.0):
            if not batch.values:
                continue
            self._waiting.append((await self._sink.publish(batch), batch.size))
            self._bytes, self.rows = self._bytes + batch.size, self.rows + batch.rows
        self._builder.tick()
        if self._rate:
            await asyncio.sleep(max(0.0, self._began + self.rows / self._rate - runtime.monotonic()))

    async def _confirmed(self) -> None:
        future, size = self._waiting.popleft()
        await future
        self._bytes -= size
