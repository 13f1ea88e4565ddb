"""A move that an operator requests: found on the source, and reported with what it skips or repeats; nothing is
written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace.errors import LostKind, NotUnderstood, PositionLost, SourceChanged, SourceUnreachable
from headrace.model import Position
from headrace.mysql.archive.archive import Archive
from headrace.mysql.position.move import Found, Where, on_another_history, relocate
from headrace.mysql.position.server_comparison import compare_server
from headrace.mysql.schema.entries import doubt_entry
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.ports.source import Move, ProgressCallback
from headrace.ports.state import HistoryEntry, Stored
from headrace.settings.destination import SourceSettings


async def move_by_hand(
    addresses: Sequence[SourceSettings],
    where: Where,
    stored: Stored,
    entries: Sequence[dict[str, Any]],
    history: Sequence[HistoryEntry],
    *,
    read_schemas: bool,
    events_done: int = 0,
    found: Found | None = None,
    on_progress: ProgressCallback = lambda *_: None,
    archive: Archive | None = None,
) -> Move:
    """Returns the move on the first address of the source that can be reached. `entries` are those of the schema
    history, `history` is that of the position, newest first. `read_schemas`: what is known of tables is void there.
    `events_done` rows events of the transaction there are already published. `found` is the result of an earlier move
    to `where`. The callback receives the progress of the scan of a file. Raises SourceError and its subclasses."""
    unreachable: list[SourceUnreachable] = []
    for address in addresses:
        try:
            made = await relocate(
                address,
                where,
                stored.position,
                reason="operator",
                history_entries=entries,
                last_pos=stored.last_pos,
                trail=trail(history),
                found=found,
                on_progress=on_progress,
                archive=archive,
            )
        except SourceUnreachable as error:
            unreachable.append(error)
            continue
        changed = await _other_history(address, stored.position)
        if changed and stored.position is not None:
            made = on_another_history(made, stored.position)
        if events_done:
            position = replace(made.position, events_done=events_done)
            made = replace(made, position=position, gap=replace(made.gap, end=str(position)))
        passed = tuple(f"{error}; this is a position on {address.host}:{address.port}" for error in unreachable)
        made = replace(made, notes=passed + changed + made.notes)
        if read_schemas:
            forgotten = doubt_entry(
                made.position.last_pos, str(made.position), "an operator wants it read from the source"
            )
            made = replace(made, entries=(*made.entries, forgotten))
        return made
    raise unreachable[0]


async def _other_history(source: SourceSettings, position: Position | None) -> tuple[str, ...]:
    """Returns a note if the source is not, or no longer, the one that the position was read from: then nothing can be
    counted."""
    if position is None:
        return ()
    connection = await SourceConnection.open(address_of(source))
    try:
        await compare_server(connection, source.model_copy(update={"on_diverged": "fail"}), position)
    except (SourceChanged, PositionLost) as error:
        # A file that is shorter than the position may be another one of the same name.
        if isinstance(error, SourceChanged) or error.kind is LostKind.BEYOND_END:
            return (f"what the move skips can't be counted: {error.args[0]}",)
    except NotUnderstood:
        pass  # that is why it is moved
    finally:
        await connection.close()
    return ()


def trail(history: Sequence[HistoryEntry]) -> list[Position]:
    """Returns the positions, newest first, from which the stream was read on one server without a jump, back to the
    last jump or to the oldest that the store still has."""
    found: list[Position] = []
    for entry in history:  # newest first
        if entry.position is None or (found and entry.position.server_uuid != found[0].server_uuid):
            break
        found.append(entry.position)
        if entry.actor != "checkpoint":
            break
    return found
