"""`headrace position`: shows where destinations are, moves them, and says who moved them before."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.cli import position_history, position_set, position_show
from headrace.cli.common import add_config
from headrace.mysql.position.move import Where, parse_where
from headrace.settings.destination import Settings

DESCRIPTION = (
    "Shows and moves the positions that destinations go on from. Exit status 0: done, or all is well; 1: something "
    "failed, is refused, or is not well; 2: the configuration or the command is wrong."
)
WHERE = (
    "FILE:OFFSET, a GTID set, a time such as 2026-01-31T12:00:00Z (the first transaction committed then or later), "
    "earliest, latest, or next-file (the start of the binlog behind the one that the position is in)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The commands below `headrace position`."""
    parser.description = DESCRIPTION
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, text: str, call: Call) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
        add_config(command)
        command.set_defaults(call=call)
        return command

    show = add("show", "show what is stored, and whether the source can serve it", _show)
    show.add_argument("names", nargs="*", metavar="DEST", help="destinations (default: all)")
    show.add_argument("--json", action="store_true", help="as JSON, with nothing left out")

    move = add("set", "move the position of a destination that is not running", _set)
    move.add_argument("name", metavar="DEST", help="the destination")
    move.add_argument("where", type=_where, metavar="WHERE", help=WHERE)
    move.add_argument("--yes", action="store_true", help="do not ask")

    reset = add("reset", "take the position of a destination away, so that it begins by [source] start", _reset)
    reset.add_argument("name", metavar="DEST", help="the destination")
    reset.add_argument("--yes", action="store_true", help="do not ask")

    history = add("history", "show the last changes of a position, newest first, and by whom", _history)
    history.add_argument("name", metavar="DEST", help="the destination")
    history.add_argument("--json", action="store_true", help="as JSON, with nothing left out")
    history.add_argument(
        "--limit",
        type=_count,
        metavar="N",
        help="the last N changes of any kind (default: the last 20 by an operator or a policy, and 5 checkpoints)",
    )


Call = Callable[[Settings, argparse.Namespace], Coroutine[Any, Any, int]]


async def _show(settings: Settings, arguments: argparse.Namespace) -> int:
    return await position_show.command(settings, arguments.names, as_json=arguments.json)


async def _set(settings: Settings, arguments: argparse.Namespace) -> int:
    text, where = arguments.where
    return await position_set.move(settings, arguments.name, text, where, yes=arguments.yes)


async def _reset(settings: Settings, arguments: argparse.Namespace) -> int:
    return await position_set.reset(settings, arguments.name, yes=arguments.yes)


async def _history(settings: Settings, arguments: argparse.Namespace) -> int:
    return await position_history.command(settings, arguments.name, limit=arguments.limit, as_json=arguments.json)


def _where(text: str) -> tuple[str, Where]:
    try:
        return text, parse_where(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' {error}") from None


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"'{text}' should be a whole number of 1 or more")
    return int(text)
