"""`headrace resync` and `headrace snapshot`: have rows published again, and see to what is under way."""

from __future__ import annotations

import argparse
import asyncio
import http.client
from functools import partial
from typing import Any

import orjson

from headrace.cli.common import CommandRefused, add_command, add_config, aligned, destination, duration_text, print_json
from headrace.settings.destination import Settings

RESYNC = (
    "Has all rows of a table, or some of them, read and published again, in order with the changes that go on. The "
    "daemon that runs the destination does it; the command returns once that is stored. See docs/snapshots.md."
)
SNAPSHOT = (
    "Shows, pauses, resumes or cancels the reading of tables. Exit status 0: done; 1: the daemon refuses, or does not "
    "answer; 2: the configuration or the command is wrong."
)
_ANSWER = 30.0
"""Seconds that the daemon may take."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    (_add_snapshot if parser.prog.endswith(" snapshot") else _add_resync)(parser)


def _add_resync(parser: argparse.ArgumentParser) -> None:
    parser.description = RESYNC
    add_config(parser)
    parser.add_argument("name", metavar="DEST", help="the destination")
    parser.add_argument("tables", metavar="TABLE", nargs="?", help="schema.table, or regexes as in [filter] include")
    parser.add_argument("--all", action="store_true", help="all captured tables")
    parser.add_argument("--where", metavar="SQL", default="", help="only rows that meet this condition")
    parser.add_argument("--columns", metavar="A,B", default="", help="only these columns, and those of the key")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(call=_resync)


def _add_snapshot(parser: argparse.ArgumentParser) -> None:
    parser.description = SNAPSHOT
    add = partial(add_command, parser.add_subparsers(metavar="COMMAND", required=True))
    add("status", "show what is read and what waits", _status).add_argument(
        "--json", action="store_true", help="as JSON"
    )
    for name, text in (
        ("pause", "stop the reading of tables; changes flow on"),
        ("resume", "go on with it"),
        ("cancel", "give it up: what was not read is not published"),
    ):
        command = add(name, text, partial(_command, name))
        command.add_argument("--id", default="", metavar="ID", help="the snapshot meant (default: the one under way)")
        command.add_argument("--json", action="store_true", help="as JSON")


async def _resync(settings: Settings, given: argparse.Namespace) -> int:
    if bool(given.tables) == given.all:
        raise CommandRefused("say which table, or --all for all captured tables")
    columns = [name.strip() for name in given.columns.split(",") if name.strip()]
    body = {"command": "resync", "tables": given.tables or "", "where": given.where, "columns": columns}
    answer = await _ask(settings, given.name, body)
    if given.json:
        print_json(answer)
    else:
        print(f"{given.name}: resync {answer['id']} is under way, or waits for those before it")
        print(f"see: headrace snapshot status {given.name}")
    return 0


async def _command(command: str, settings: Settings, given: argparse.Namespace) -> int:
    answer = await _ask(settings, given.name, {"command": command, "id": given.id})
    if given.json:
        print_json(answer)
    else:
        print(f"{given.name}: {command} is done and stored")
    return 0


async def _status(settings: Settings, given: argparse.Namespace) -> int:
    page = await _ask(settings, given.name, None)
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
    ]
    print(f"{given.name}:\n{aligned(rows)}")
    return 0


def _or(value: Any, text: Any) -> str:
    return "?" if value is None else str(text(value))


async def _ask(settings: Settings, name: str, command: dict[str, Any] | None) -> dict[str, Any]:
    """What the daemon on this machine answers to a command; without one, what it says of the destination. Raises
    CommandRefused."""
    destination(settings, name)
    address = settings.http.address
    if address is None:
        raise CommandRefused(
            "[http] listen is off, and the daemon takes commands there",
            remedy="turn it on, or write the command into headrace.signal on the source: docs/snapshots.md",
        )
    code, answer = await asyncio.to_thread(_exchange, address, name, command)
    if command is None and "state" in answer:  # the page is there, whatever the state
        return answer
    if code != 200:
        raise CommandRefused(str(answer.get("error", f"the daemon answers with {code}")))
    return answer


def _exchange(address: tuple[str, int], name: str, command: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
    host, port = address
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    connection = http.client.HTTPConnection(host, port, timeout=_ANSWER)
    try:
        if command is None:
            connection.request("GET", f"/health/{name}")
        else:
            headers = {"content-type": "application/json", "host": f"localhost:{port}"}
            path = f"/api/v1/destinations/{name}/snapshot"
            connection.request("POST", path, orjson.dumps(command), headers)
        response = connection.getresponse()
        answer = orjson.loads(response.read())
        return response.status, answer if isinstance(answer, dict) else {}
    except TimeoutError as error:
        raise CommandRefused(
            f"the daemon at {host}:{port} has not answered within {_ANSWER:g} s: it may still do what it was asked",
            remedy=f"look at 'headrace snapshot status {name}'",
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise CommandRefused(
            f"no daemon answers at {host}:{port} ({error})",
            remedy="the command is for the daemon that runs on this machine with this configuration: start it",
        ) from error
    finally:
        connection.close()
