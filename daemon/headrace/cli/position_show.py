"""`headrace position show`: the stored position of each destination, and whether its source can serve it."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from headrace.cli.common import aligned, coordinated, destination, open_store, print_json, time_text
from headrace.model import State
from headrace.ports.inspection import PositionReport, short
from headrace.ports.state import Stored
from headrace.settings.destination import Settings


async def command(settings: Settings, given: argparse.Namespace) -> int:
    """Prints the positions; returns 1 if a source can't be queried or can't serve what is stored."""
    wanted = given.names or list(settings.destinations)
    for name in wanted:
        destination(settings, name)
    stored: dict[str, tuple[Stored, str]] = {}
    async with coordinated(settings) as shared:
        for name in wanted:
            one = settings.destinations[name]
            store = await open_store(shared, one)
            stored[name] = await store.load(name), await shared.lock(one).find_holder()
        inspections = [shared.inspection(settings.destinations[name]) for name in wanted]
    reports = await asyncio.gather(
        *(one.position(stored[name][0].position) for name, one in zip(wanted, inspections, strict=True))
    )
    shown = {
        name: _facts(*stored[name], report, remedy(name, report.state))
        for name, report in zip(wanted, reports, strict=True)
    }
    if given.json:
        print_json(shown)
    else:
        tables = (_table(shown[name], report) for name, report in zip(wanted, reports, strict=True))
        print("\n\n".join(f"{name}\n{table}" for name, table in zip(wanted, tables, strict=True)))
    return 0 if all(report.state == "ok" for report in reports) else 1


def remedy(name: str, state: str) -> str:
    """Returns what an operator does about the state of a PositionReport; "" if there is nothing to do."""
    ways = {State.POSITION_LOST.value: "WHERE", State.SOURCE_CHANGED.value: "WHERE is one way"}
    way = ways.get(state)
    return f"headrace position set {name} {way}; see docs/troubleshooting.md#{state.lower()}" if way else ""


def _facts(stored: Stored, run_by: str, report: PositionReport, to_do: str) -> dict[str, Any]:
    return {
        "stored": stored.position.to_dict() if stored.position is not None else None,
        "last_pos": str(stored.last_pos),
        "epoch": stored.epoch,
        "version": stored.version,
        "run_by": run_by,
        "verdict": {"state": report.state, "text": report.text, "remedy": to_do},
        **report.facts,
    }


def _table(facts: dict[str, Any], report: PositionReport) -> str:
    stored, rows = facts["stored"], list[tuple[str, str]]()
    if stored is None:
        rows += [("position", "none"), ("last _pos", facts["last_pos"])]
    else:
        done = f", {stored['events_done']} events of the transaction done" if stored["events_done"] else ""
        at = f"{stored['file']}:{stored['offset']}" if stored["file"] else "by GTID set"
        rows += [
            ("position", at + done),
            ("GTID set", short(stored["gtid_set"]) or "-"),
            ("of server", stored["server_uuid"]),
            ("open XA", ", ".join(xa[0] for xa in stored["open_xa"]) or "-"),
            ("last _pos", stored["last_pos"]),
            ("committed", time_text(stored["commit_time_us"])),
        ]
        rows += [
            ("snapshot", f"{one['id']} ({one['kind']}{', paused' if one['paused'] else ''}), {one['rows']:,} rows done")
            for one in stored["snapshots"]
        ]
    rows += [("epoch", str(facts["epoch"])), ("run by", facts["run_by"] or "nobody")]
    rows += report.rows
    rows.append(("verdict", facts["verdict"]["text"]))
    if facts["verdict"]["remedy"]:
        rows.append(("to do", facts["verdict"]["remedy"]))
    return aligned(rows)
