"""Completes an import: checks the configuration, finds cursors on their sources, and only then writes files."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.errors import ConfigError, HeadraceError, Refusal
from headrace.moving.draft import Check, Draft, checked, write
from headrace.moving.foreign import ForeignCursor, ForeignStart, start_of
from headrace.settings.destination import DestinationSettings
from headrace.settings.values import start_text


async def finish(
    folder: Path,
    drafts: Sequence[Draft],
    cursors: Mapping[str, ForeignCursor],
    check: Check,
    problems: Sequence[str],
) -> list[str]:
    """Writes the drafts to a folder; `cursors` are those of destinations by name. Returns notes for the operator, a
    sentence each. Raises ConfigError with all `problems` and those of the drafts, or Refusal if a cursor is not on its
    source or a file exists; then nothing is written."""
    settings, found = checked(drafts, check)
    if settings is None or problems:
        # Keys may be missing because of earlier problems: then only those with a line of the files are reported.
        raise ConfigError([*problems, *(one for one in found if not problems or ": line " in one)])
    named = {draft.name: draft for draft in drafts}
    tasks = [_start(settings.destinations[name], cursor) for name, cursor in cursors.items()]
    notes, refused = list[str](), list[str]()
    for name, cursor, start in zip(cursors, cursors.values(), await asyncio.gather(*tasks), strict=True):
        if isinstance(start, HeadraceError):
            refused.append(f"{name}: the cursor {cursor} can't be carried over: {start}")
            continue
        text = start_text(start.start)
        named[name].set("source.start", text, comment=" ".join([f"The cursor was {cursor}.", *start.notes]))
        notes += [f"{name}: the cursor {cursor} is on the source; it begins at {text}", *start.notes]
    if refused:
        raise Refusal("\n".join(refused), remedy="nothing is written; correct it, or import without the cursor")
    return [*notes, *(f"{file} is written" for file in write(folder, drafts))]


async def _start(destination: DestinationSettings, cursor: ForeignCursor) -> ForeignStart | HeadraceError:
    try:
        return await start_of(destination.source, cursor)
    except HeadraceError as error:
        return error
