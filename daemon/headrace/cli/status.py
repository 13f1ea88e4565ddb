"""`headrace status`: the report of the daemon on this machine about its destinations, once or live."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, Any

from headrace import runtime
from headrace.cli import control
from headrace.cli.common import CommandRefused, add_config, print_json
from headrace.times import duration_text

if TYPE_CHECKING:
    from headrace.settings.destination import Settings

DESCRIPTION = (
    "Shows each destination's state, since when, lag, rows a second, position and backlog, as the daemon on this "
    "machine says. Exit status 0: all are well; 1: one is not, or no daemon answers; 2: the configuration is wrong."
)
_EACH = 1.0
_STYLES = {"STREAMING": "green", "STANDBY": "green", "SNAPSHOTTING": "green", "DEGRADED": "yellow", "PAUSED": "yellow"}
_HEADERS = ("DESTINATION", "STATE", "SINCE", "LAG", "ROWS/S", "POSITION", "BACKLOG", "PARKED", "ABOUT")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add_config(parser)
    parser.add_argument("names", nargs="*", metavar="DEST", help="destinations (default: all)")
    parser.add_argument(
        "--watch", action="store_true", help="show it on the terminal, refreshed each second, until Ctrl-C"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(call=run, asks_daemon=True)


async def run(settings: Settings, given: argparse.Namespace) -> int:
    if given.watch:
        if not sys.stdout.isatty():
            raise CommandRefused("--watch is for a terminal", remedy="leave it out, or ask for /api/v1/events")
        return await _watch(settings, given)
    page = await _read_page(settings, given)
    if given.json:
        print_json(page)
    else:
        from headrace.cli.terminal import show_table

        show_table(_HEADERS, _rows(page, {}, 0.0))
    return 0 if page["status"] == "ok" else 1


async def _watch(settings: Settings, given: argparse.Namespace) -> int:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from headrace.cli.terminal import table

    page: dict[str, Any] = {}
    before, at = dict[str, Any](), 0.0
    with Live(screen=True, auto_refresh=False) as live:
        while True:
            now = runtime.monotonic()
            try:
                page = await _read_page(settings, given)
                head = Text(f"headrace {page.get('node', '')} {page.get('version', '')}: {page.get('status', '')}")
                shown = table(_HEADERS, _rows(page, before, now - at))
                before, at = page, now
            except CommandRefused as error:
                head = Text(f"{error}; what is shown is from before", style="red")
                shown = table(_HEADERS, _rows(page, {}, 0.0) if page else [])
            live.update(Group(head, Text(), shown), refresh=True)
            await asyncio.sleep(_EACH)


async def _read_page(settings: Settings, given: argparse.Namespace) -> dict[str, Any]:
    page = await control.health(settings)
    known = page.get("destinations")
    if not isinstance(known, dict):
        raise CommandRefused("what answers there is no headrace", remedy="check [http] listen")
    if unknown := [name for name in given.names if name not in known]:
        raise CommandRefused(f"there is no destination '{unknown[0]}'; there are {', '.join(known) or 'none'}")
    if given.names:
        page = {**page, "destinations": {name: known[name] for name in given.names}}
    return page


def _rows(page: dict[str, Any], before: dict[str, Any], seconds: float) -> list[tuple[Any, ...]]:
    from rich.text import Text

    rows = []
    for name, now in page["destinations"].items():
        last = before.get("destinations", {}).get(name)
        rate = f"{max(0, now['rows'] - last['rows']) / seconds:,.0f}" if last and seconds else "-"
        position, standby = now["position"], now["state"] == "STANDBY"
        about = now["message"] or (f"run by {now['holder']}" if now["holder"] else "")
        if now["state"] == "STARTING" and now["last_error"]:  # between two attempts nothing else shows the cause
            about = f"last error: {now['last_error']}"
        rows.append(
            (
                name,
                Text(now["state"], style=_STYLES.get(now["state"], "red")),
                duration_text(now["state_seconds"] or 0.0),
                "-" if standby else f"{now['lag_seconds']:.1f} s",
                rate,
                f"{position['file']}:{position['offset']}" if position else "-",
                _backlog(now["backlog"]),
                str(now["parked"]["messages"] or "-"),
                about,
            )
        )
    return rows


def _backlog(backlog: dict[str, Any]) -> str:
    if not backlog["bytes"]:
        return "-"
    eta = backlog["eta_seconds"]
    return f"{backlog['bytes'] / 1e6:,.1f} MB" + (f", {duration_text(eta)}" if eta is not None else "")
