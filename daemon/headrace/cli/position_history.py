"""`headrace position history`: the last changes of a position, newest first, and who made them."""

from __future__ import annotations

from typing import Any

from headrace.cli.common import (
    aligned,
    coordinated,
    destination,
    gap_of,
    open_store,
    print_json,
    short,
    time_text,
)
from headrace.mysql.position.move import position_text
from headrace.ports.state import HistoryEntry
from headrace.settings.destination import Settings

_ALL = 1_000_000
_MOVES, _CHECKPOINTS = 20, 5


async def command(settings: Settings, name: str, *, limit: int | None, as_json: bool) -> int:
    """Prints the changes; the exit status."""
    asked = destination(settings, name)
    async with coordinated(settings) as shared:
        store = await open_store(shared, asked)
        entries = await store.history(name, limit or _ALL)
    if limit is None:
        entries = _telling(entries)
    if as_json:
        print_json([_dict(entry) for entry in entries])
    elif not entries:
        print(f"{name}: nothing was stored yet")
    else:
        print(_table(entries))
    return 0


def _telling(entries: list[HistoryEntry]) -> list[HistoryEntry]:
    """The last moves by people and policies, and the last checkpoints, of which there are many; newest first."""
    moves = [entry for entry in entries if entry.actor != "checkpoint"][:_MOVES]
    checkpoints = [entry for entry in entries if entry.actor == "checkpoint"][:_CHECKPOINTS]
    return sorted(moves + checkpoints, key=lambda entry: entry.version, reverse=True)


def _dict(entry: HistoryEntry) -> dict[str, Any]:
    return {
        "changed_us": entry.changed_us,
        "actor": entry.actor,
        "epoch": entry.epoch,
        "version": entry.version,
        "position": entry.position.to_dict() if entry.position is not None else None,
        "details": entry.details,
    }


def _table(entries: list[HistoryEntry]) -> str:
    rows = [("time", "actor", "epoch", "position", "")]
    for entry in entries:
        position = short(position_text(entry.position), 80) if entry.position is not None else "taken away"
        rows.append((time_text(entry.changed_us), entry.actor, str(entry.epoch), position, _what(entry)))
    return aligned(rows, "")


def _what(entry: HistoryEntry) -> str:
    """Why the position changed, and what that cost."""
    parts = []
    gap = gap_of(entry.details)
    if entry.position is None and gap is not None:
        parts.append(f"{gap.start} -> {gap.end}")
    elif gap is not None:
        parts.append(str(gap) if gap.reason == entry.actor else f"{gap.reason}: {gap}")
    if entry.details.get("by"):
        parts.append(f"by {entry.details['by']}")
    return ", ".join(parts)
