"""`headrace adopt`: a destination continues where Canal or Debezium has stopped, after the last change that it
published."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from headrace import runtime
from headrace.canal_wire.cursor import cursor_node, destination_node
from headrace.cli.common import CommandRefused, add_command, coordinated, destination, held, require_answer
from headrace.cli.export_to import add_names, connector_of
from headrace.cli.position_set import move_to
from headrace.cli.wiring import foreign_nodes, new_format, topic_records
from headrace.errors import ConfigError, Refusal
from headrace.moving.adopt_search import Search
from headrace.moving.cursors import meta_cursors, parsed_cursor, stored_offset
from headrace.moving.foreign import ForeignCursor
from headrace.settings.destination import Settings
from headrace_common.arguments import duration

DESCRIPTION = (
    "Sets the position of a destination to where Canal or Debezium has stopped. The cursor of the other system may be "
    "older than its last message, so its last messages are looked up in the binlog: what it published is not "
    "published again. Both systems have to be stopped."
)
_POLL = 0.5
_QUIET = 2.0
"""Seconds in which neither the cursor nor the topics may move."""
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
            deadline = runtime.monotonic() + given.wait
            while await nodes.get(f"{destination_node(canals)}/running") is not None:
                if runtime.monotonic() > deadline:  # a late answer alone does not mean that Canal runs
                    raise CommandRefused(
                        f"Canal still runs {canals} after {given.wait:g} s", remedy="stop it, and try again"
                    )
                await asyncio.sleep(min(_POLL, given.wait))
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
        search = Search(chosen, cursor, new_format, shared.replay)
        try:
            to, done, notes = await search.run()
            await asyncio.sleep(_QUIET)
            if await search.moved() or await read_cursor() != cursor:
                raise CommandRefused(
                    "the other system still publishes, or moves its cursor", remedy="stop it, and try again"
                )
        finally:
            await search.close()
        notes = [f"the cursor of the other system is {cursor}", *notes]
        return await move_to(
            shared,
            chosen,
            to,
            yes=given.yes,
            events_done=done,
            notes=notes,
            why=f"adopt {cursor}",
            publisher="the other system",
        )
