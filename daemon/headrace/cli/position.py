"""`headrace position`: shows the positions of destinations, moves them, and shows who moved them before."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from typing import Any

from headrace.cli import position_set, position_show
from headrace.cli.common import add_command, aligned, coordinated, destination, open_store, print_json, time_text
from headrace.model import Gap
from headrace.ports.inspection import short
from headrace.ports.state import WHOLE_HISTORY, HistoryEntry
from headrace.settings.destination import Settings
from headrace_common.arguments import positive

DESCRIPTION = (
    "Shows and moves the positions that destinations go on from. Exit status 0: done, or all is well; 1: something "
    "failed, is refused, or is not well; 2: the configuration or the command is wrong."
)
_MOVES, _CHECKPOINTS = 20, 5
WHERE = (
    "FILE:OFFSET, a GTID set, a time such as 2026-01-31T12:00:00Z (the first transaction committed then or later), "
    "earliest, latest, or next-file (the start of the binlog after the one that the position is in)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add = partial(add_command, parser.add_subparsers(metavar="COMMAND", required=True))
    show = add(
        "show", "show what is stored, and whether the source can serve it", position_show.command, all_at_once=True
    )
    show.add_argument("--json", action="store_true", help="as JSON, with nothing left out")

    move = add("set", "move the position of a destination, through its daemon when that runs", position_set.move)
    move.add_argument("where", type=_where, metavar="WHERE", help=WHERE)
    move.add_argument(
        "--read-schemas",
        action="store_true",
        help="forget the table schemas that are known there, so that they are read from the source",
    )
    move.add_argument("--yes", action="store_true", help="do not ask")

    reset = add(
        "reset", "take the position of a destination away, so that it begins by [source] start", position_set.reset
    )
    reset.add_argument("--yes", action="store_true", help="do not ask")

    history = add("history", "show the last changes of a position, newest first, and by whom", _history)
    history.add_argument("--json", action="store_true", help="as JSON, with nothing left out")
    history.add_argument(
        "--limit",
        type=positive,
        metavar="N",
        help="the last N changes of any kind (default: the last 20 by an operator or a policy, and 5 checkpoints)",
    )


def _where(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("a place is needed; headrace position reset takes the position away")
    return text.strip()


async def _history(settings: Settings, given: argparse.Namespace) -> int:
    """Prints the last changes of a position, newest first, and who made them."""
    asked = destination(settings, given.name)
    async with coordinated(settings) as shared:
        store = await open_store(shared, asked)
        entries = await store.history(given.name, given.limit or WHOLE_HISTORY)
    if given.limit is None:
        entries = _telling(entries)
    if given.json:
        print_json([_dict(entry) for entry in entries])
    elif not entries:
        print(f"{given.name}: nothing was stored yet")
    else:
        print(_table(entries))
    return 0


def _telling(entries: list[HistoryEntry]) -> list[HistoryEntry]:
    """Returns the last moves by people and policies, and the last of the many checkpoints; newest first."""
    moves = [entry for entry in entries if entry.actor != "checkpoint"][:_MOVES]
    checkpoints = [entry for entry in entries if entry.actor == "checkpoint"][:_CHECKPOINTS]
    return sorted(moves + checkpoints, key=lambda entry: entry.version, reverse=True)


def _dict(entry: HistoryEntry) -> dict[str, Any]:
    return {**asdict(entry), "position": entry.position.to_dict() if entry.position is not None else None}


def _table(entries: list[HistoryEntry]) -> str:
    rows = [("time", "actor", "epoch", "position", "")]
    for entry in entries:
        position = short(str(entry.position), 80) if entry.position is not None else "taken away"
        rows.append((time_text(entry.changed_us), entry.actor, str(entry.epoch), position, _what(entry)))
    return aligned(rows, "")


def _what(entry: HistoryEntry) -> str:
    """Returns why the position changed, and what that skipped or repeated."""
    parts = []
    gap = Gap.from_dict(entry.details["gap"]) if entry.details.get("gap") else None
    if entry.position is None and gap is not None:
        parts.append(f"{gap.start} -> {gap.end}")
    elif gap is not None:
        parts.append(str(gap) if gap.reason == entry.actor else f"{gap.reason}: {gap}")
    if entry.details.get("by"):
        parts.append(f"by {entry.details['by']}")
    return ", ".join(parts)
