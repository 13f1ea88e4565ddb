"""`headrace import`: a configuration from Canal's or Debezium's, and the cursor from which to continue."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from headrace.canal_wire.cursor import cursor_node
from headrace.cli.wiring import ADAPTERS, foreign_nodes, topic_records
from headrace.errors import Refusal
from headrace.moving.canal import CanalImport
from headrace.moving.cursors import meta_cursors, parsed_cursor
from headrace.moving.debezium import DebeziumImport
from headrace.moving.importing import finish
from headrace.settings.destination import Settings
from headrace.settings.load import Loader
from headrace_common import logs

DESCRIPTION = (
    "Writes headrace.toml, a file for each destination and their secrets, after asking the source whether it has what "
    "the cursor says. No file is replaced, and where anything is wrong none is written. Exit status 0: done; 1: the "
    "cursor can't be carried over, or something failed; 2: the files are wrong, with a line for each fault."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    commands = parser.add_subparsers(metavar="SYSTEM", required=True)
    canal = commands.add_parser("canal", help="out of a Canal server's folder conf", allow_abbrev=False)
    canal.add_argument("folder", type=Path, metavar="CONF_DIR", help="the folder with canal.properties")
    canal.add_argument("--zookeeper", metavar="HOSTS", help="carry over the cursors that Canal keeps in ZooKeeper")
    canal.add_argument(
        "--meta",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="carry over the cursor of a destination out of its meta.dat; may be given again",
    )
    canal.add_argument(
        "--no-cursor",
        action="append",
        default=[],
        metavar="DEST",
        help="a destination that has no cursor there, and begins as its file says; may be given again",
    )
    canal.add_argument(
        "--time-zone",
        default="",
        metavar="ZONE",
        help="the zone of Canal's host, in which it prints TIMESTAMP (default: UTC)",
    )
    canal.set_defaults(run=partial(_run, _canal))
    debezium = commands.add_parser("debezium", help="out of a connector for MySQL or MariaDB", allow_abbrev=False)
    debezium.add_argument("connector", type=Path, metavar="CONNECTOR.json", help="as Kafka Connect is given it")
    debezium.add_argument("--bootstrap", metavar="HOSTS", help="brokers of Kafka, to publish to and to read from")
    debezium.add_argument(
        "--offsets", metavar="TOPIC", help="carry over the offset that Kafka Connect keeps in this topic"
    )
    debezium.set_defaults(run=partial(_run, _debezium))
    for command in (canal, debezium):
        command.add_argument("--out", type=Path, default=Path("."), metavar="DIR", help="where to (default: here)")


def _run(call: Callable[[argparse.Namespace], Coroutine[Any, Any, int]], given: argparse.Namespace) -> int:
    with logs.for_commands():
        return asyncio.run(call(given))


async def _canal(given: argparse.Namespace) -> int:
    problems = list[str]()
    made = CanalImport(given.folder, ADAPTERS.names("sink"), os.environ, problems, given.time_zone)
    drafts = made.drafts()
    kept = [meta_cursors(file, made.names, problems) for file in given.meta]
    cursors = {name: cursor for found in kept for name, cursor in found.items()}
    if given.zookeeper and not problems:
        async with foreign_nodes(given.zookeeper) as nodes:
            for name, canals in made.names.items():
                node = cursor_node(canals)
                if (data := await nodes.get(node)) is None:
                    continue
                try:
                    cursors[name] = parsed_cursor(data)
                except ValueError as error:
                    problems.append(f"{node}: {error}")
    missing = [name for name in made.names if name not in {*cursors, *given.no_cursor}]
    if (given.meta or given.zookeeper) and missing and not problems:
        raise Refusal(
            f"there is no cursor of {', '.join(missing)}: changes that Canal has not sent would be missing",
            remedy="nothing is written; give each meta.dat with --meta, or --no-cursor for what Canal has never run",
        )
    for line in await finish(given.out, drafts, cursors, _check, problems):
        print(line)
    if not given.time_zone:
        print("TIMESTAMP is printed in UTC: if Canal's host has another zone, set [message] time_zone in each file")
    print(f"next: headrace check --config {given.out / 'headrace.toml'}")
    return 0


async def _debezium(given: argparse.Namespace) -> int:
    problems = list[str]()
    made = DebeziumImport(given.connector, given.bootstrap or "", problems)
    drafts = made.drafts(carried=bool(given.offsets))
    asked = given.offsets if not problems else None
    cursors = made.cursors(await topic_records(made.bootstrap, asked), asked) if asked else {}
    for line in await finish(given.out, drafts, cursors, _check, problems):
        print(line)
    print(f"next: headrace check --config {given.out / 'headrace.toml'}")
    return 0


def _check(file: Path, env: dict[str, str]) -> Settings:
    return Loader(ADAPTERS, env).load(file)
