"""Operators' commands about snapshots: resync, pause, resume and cancel, as validated data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from headrace import runtime
from headrace.errors import Refusal
from headrace.rules.patterns import compile_filter
from headrace.snapshots import Snapshot

COMMANDS = ("resync", "pause", "resume", "cancel")
_WAITING = 50
"""Maximum number of waiting snapshots, the present one included."""
_LONGEST = 4_000
"""Maximum characters of a filter or a condition."""
_READ_LIMIT = 0.1
"""Maximum seconds of CPU time to compile the regexes of a command, within a turn of the event loop."""
_STORED_BYTES = 300_000
"""Maximum bytes of all snapshots as they are stored with each position: a node of ZooKeeper has at most 1 MB."""


class SnapshotRefused(Refusal):
    """A command about snapshots can't be executed; the text says why."""


@dataclass(frozen=True, slots=True)
class SnapshotCommand:
    """One command. `tables` is a filter like [filter] include, "" for all captured tables; `id` names the snapshot, ""
    the running one, and for cancel also that."""

    command: str
    tables: str = ""
    where: str = ""
    columns: tuple[str, ...] = ()
    id: str = ""

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> SnapshotCommand:
        """Reads a command from JSON. Raises SnapshotRefused."""
        known = {"command", "tables", "where", "columns", "id"}
        if unknown := sorted(set(raw) - known):
            raise SnapshotRefused(f"a command has no key {unknown[0]!r}; it has {', '.join(sorted(known))}")
        command, columns = raw.get("command"), raw.get("columns", [])
        if command not in COMMANDS:
            raise SnapshotRefused(f"there is no command {command!r}; there are {', '.join(COMMANDS)}")
        texts = {key: raw.get(key, "") for key in ("tables", "where", "id")}
        for key, text in texts.items():
            if not isinstance(text, str) or len(text) > _LONGEST or "\0" in text:
                raise SnapshotRefused(f"{key} should be a text of at most {_LONGEST:,} characters")
        for key in ("where", "columns"):
            if key in raw and not (raw[key].strip() if isinstance(raw[key], str) else raw[key]):
                raise SnapshotRefused(
                    f"{key} is empty: leave it out where all {'rows' if key == 'where' else key} are meant"
                )
        if not isinstance(columns, list) or not all(isinstance(one, str) and one for one in columns):
            raise SnapshotRefused("columns should be a list of names")
        try:
            compile_filter(texts["tables"], "tables", _READ_LIMIT)
        except ValueError as error:
            raise SnapshotRefused(f"tables: {error}") from error
        if command != "resync" and (texts["tables"] or texts["where"] or columns):
            raise SnapshotRefused(f"{command} takes no tables, where or columns")
        if texts["where"] and not texts["tables"]:
            raise SnapshotRefused("where needs tables: it is a condition on their columns")
        return cls(str(command), columns=tuple(one.lower() for one in columns), **texts)

    def apply(self, snapshots: Sequence[Snapshot]) -> tuple[Snapshot, ...]:
        """Returns the snapshots after the command. Raises SnapshotRefused."""
        if self.command == "resync":
            if any(one.id == self.id for one in snapshots):
                raise SnapshotRefused(f"there is a snapshot {self.id} already")
            if len(snapshots) >= _WAITING:
                raise SnapshotRefused(f"{len(snapshots)} snapshots wait already")
            made = Snapshot(
                self.id or runtime.new_id(),
                "resync",
                tables=self.tables,
                where=self.where,
                columns=self.columns,
                asked_us=runtime.now_us(),
            )
            if (size := sum(len(orjson.dumps(one.to_dict())) for one in (*snapshots, made))) > _STORED_BYTES:
                raise SnapshotRefused(f"what waits would take {size:,} bytes, of {_STORED_BYTES:,} that may be stored")
            return (*snapshots, made)
        if not snapshots:
            raise SnapshotRefused("no snapshot is under way")
        wanted = self.id or snapshots[0].id
        if all(one.id != wanted for one in snapshots):
            raise SnapshotRefused(f"there is no snapshot {wanted}; there are {', '.join(one.id for one in snapshots)}")
        if self.command == "cancel":
            return tuple(one for one in snapshots if one.id != wanted)
        paused = self.command == "pause"
        return tuple(replace(one, paused=paused) if one.id == wanted else one for one in snapshots)
