"""`headrace resync` and `headrace snapshot`: publish rows again, and manage running snapshots."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace import runtime
from headrace.cli import control
from headrace.cli.common import CommandRefused, add_command, add_config, aligned, print_json
from headrace.cli.terminal import progress
from headrace.times import duration_text

if TYPE_CHECKING:
    from headrace.settings.destination import Settings

_POLL = 0.5
"""Seconds between two checks of a snapshot that is waited for."""
RESYNC = (
    "Has all rows of a table, or some of them, read and published again, in order with the changes that go on. The "
    "daemon that runs the destination does it; the command returns once that is stored. See docs/snapshots.md."
)
SNAPSHOT = (
    "Shows, awaits, pauses, resumes or cancels the reading of tables. Exit status 0: done; 1: the daemon refuses, or "
    "does not answer; 2: the configuration or the command is wrong."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    (_add_snapshot if parser.prog.endswith(" snapshot") else _add_resync)(parser)


def _add_resync(parser: argparse.ArgumentParser) -> None:
    parser.description = RESYNC
    add_config(parser)
    parser.add_argument("name", metavar="DEST", help="the destination")
    tables = parser.add_argument("tables", metavar="TABLE", help="schema.table, or regexes as in [filter] include")
    # Not nargs="?": argparse would take it for absent if an option is between it and DEST.
    tables.required = False
    parser.add_argument("--all", action="store_true", help="all captured tables")
    parser.add_argument("--where", metavar="SQL", type=_not_empty, help="only rows that meet this condition")
    parser.add_argument("--columns", metavar="A,B", type=_names, help="only these columns, and those that are needed")
    parser.add_argument("--wait", action="store_true", help="return once all is published, or it was given up")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(call=_resync)


def _add_snapshot(parser: argparse.ArgumentParser) -> None:
    parser.description = SNAPSHOT
    add = partial(add_command, parser.add_subparsers(metavar="COMMAND", required=True))
    add("status", "show what is read and what waits", _status).add_argument(
        "--json", action="store_true", help="as JSON"
    )
    wait = add("wait", "return once nothing is left to be read", _wait)
    wait.add_argument("--id", default="", metavar="ID", help="the snapshot meant (default: all that there are)")
    for name, text in (
        ("pause", "stop the reading of tables; changes flow on"),
        ("resume", "go on with it"),
        ("cancel", "give it up: what was not read is not published"),
    ):
        command = add(name, text, partial(_command, name))
        command.add_argument("--id", default="", metavar="ID", help="the snapshot meant (default: the one under way)")
        command.add_argument("--json", action="store_true", help="as JSON")


def _not_empty(text: str) -> str:
    """Refuses an empty text, for example from an unset variable, which would mean all."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: leave the option out where all are meant")
    return text


def _names(text: str) -> list[str]:
    names = [name.strip() for name in _not_empty(text).split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError("should be names with commas between")
    return names


async def _resync(settings: Settings, given: argparse.Namespace) -> int:
    if bool(given.tables) == given.all:
        raise CommandRefused("say which table, or --all for all captured tables")
    body: dict[str, Any] = {"command": "resync", "tables": given.tables or ""}
    body |= {key: value for key in ("where", "columns") if (value := getattr(given, key)) is not None}
    answer = await control.command(settings, given.name, "snapshot", body)
    if given.json:
        if given.wait:
            answer["outcome"] = (await _ends(settings, given.name, {answer["id"]}, lambda *_: None))[answer["id"]]
        print_json(answer)
        return int(given.wait and answer["outcome"] != "done")
    print(f"{given.name}: resync {answer['id']} is under way, or waits for those before it")
    if given.wait:
        return await _until_ended(settings, given.name, {answer["id"]})
    print(f"see: headrace snapshot status {given.name}")
    return 0


async def _wait(settings: Settings, given: argparse.Namespace) -> int:
    if given.id:
        return await _until_ended(settings, given.name, {given.id})
    if not (there := _there(await control.health_of(settings, given.name))):
        print(f"{given.name}: no table is read")
    return await _until_ended(settings, given.name, there)


def _there(page: dict[str, Any]) -> set[str]:
    """Returns the snapshots that are read, or wait, or whose end is not stored yet."""
    shown, position = page["snapshot"] or {"queue": []}, page["position"] or {"snapshots": []}
    return {one["id"] for one in (*shown["queue"], *position["snapshots"])}


async def _until_ended(settings: Settings, name: str, waited: set[str]) -> int:
    """Reports how each of these snapshots ends; returns 0 if all of them are done. Raises as _ends()."""
    ends = await _ends(settings, name, waited, lambda id, outcome: print(f"{name}: {id}: {outcome}"))
    return int(any(outcome != "done" for outcome in ends.values()))


async def _ends(
    settings: Settings, name: str, waited: set[str], reported: Callable[[str, str], None]
) -> dict[str, str]:
    """Returns how these snapshots have ended, once all have; the callback receives each at once. Raises CommandRefused
    if it is unknown how one has ended."""
    ends, heard = dict[str, str](), runtime.monotonic()
    with progress("reading tables", counts=True) as work:
        while waited:
            try:
                page = await control.health_of(settings, name)
            except CommandRefused:  # a restarted daemon still knows them
                if runtime.monotonic() - heard > control.ANSWER:
                    raise
                await asyncio.sleep(_POLL)
                continue
            heard, there = runtime.monotonic(), _there(page)
            outcomes = {one["id"]: one["outcome"] for one in page["snapshots_ended"]}
            for id in sorted(waited - there):
                if id in outcomes:
                    ends[id] = outcomes[id]
                    reported(id, ends[id])
                elif page["state"] not in ("STARTING", "STALLED"):
                    raise CommandRefused(
                        f"{name} has no snapshot {id}, and this daemon has not seen its end",
                        remedy=f"check the log of the daemon that had {name} before",
                    )
                else:
                    continue
                waited.remove(id)
            facts = page["snapshot"]
            if facts is not None and facts["id"] in waited and facts["rows_left"] is not None:
                work.at(facts["rows"], facts["rows"] + facts["rows_left"])
            if waited:
                await asyncio.sleep(_POLL)
    return ends


async def _command(command: str, settings: Settings, given: argparse.Namespace) -> int:
    answer = await control.command(settings, given.name, "snapshot", {"command": command, "id": given.id})
    if given.json:
        print_json(answer)
    else:
        print(f"{given.name}: {command} is done and stored")
    return 0


async def _status(settings: Settings, given: argparse.Namespace) -> int:
    page = await control.health_of(settings, given.name)
    facts = page["snapshot"]
    if given.json:
        print_json(facts)
        return 0
    if facts is None:
        print(f"{given.name}: no table is read ({page['state']})")
        return 0
    number = "{:,}".format
    rows = [
        ("snapshot", f"{facts['id']} ({facts['kind']})"),
        ("state", facts["state"] + (f": {facts['reason']}" if facts["reason"] else "")),
        ("tables", f"{facts['tables_done']} done, {_or(facts['tables_left'], number)} not begun"),
        ("now", ", ".join(facts["tables"]) or "-"),
        ("rows", f"{number(facts['rows'])} done, about {_or(facts['rows_left'], number)} left"),
        ("done", _or(facts["percent"], lambda share: f"{share} %")),
        ("rows a second", number(round(facts["rows_per_second"]))),
        ("time left", _or(facts["eta_seconds"], duration_text)),
        ("waiting", str(facts["waiting"])),
        *((f"  {one['id']}", _about(one)) for one in facts["queue"][1:]),
    ]
    print(f"{given.name}:\n{aligned(rows)}")
    return 0


def _about(waiting: dict[str, Any]) -> str:
    """Returns the text about a snapshot that waits."""
    parts = [waiting["kind"], waiting["only"] or "all captured tables"]
    parts += [f"where {waiting['where']}"] if waiting["where"] else []
    return ", ".join([*parts, *(["paused"] if waiting["paused"] else [])])


def _or(value: Any, text: Any) -> str:
    return "?" if value is None else str(text(value))
