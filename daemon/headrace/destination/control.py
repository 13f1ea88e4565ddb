"""Accepts operators' commands to a running destination, and answers once the effect is stored with the position."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace import runtime
from headrace.destination.checkpointer import Checkpointer
from headrace.destination.dependencies import Context
from headrace.destination.reading import Reading
from headrace.errors import HeadraceError
from headrace.model import Position
from headrace.ports.source import Signal
from headrace.ports.tables import ChunkRequest, TableChanged, TableReader, in_short
from headrace.rules.predicate_parser import parse_condition
from headrace.rules.predicate_sql import columns_of, to_sql
from headrace.snapshot import plan
from headrace.snapshot.commands import SnapshotCommand, SnapshotRefused
from headrace.snapshot.merge import SnapshotMerge
from headrace.snapshot.reading import chosen, why_none
from headrace.snapshots import Snapshot

_STORED_WITHIN = 10.0
_REFUSED = "signal"
_REFUSED_SECONDS = 3600.0
"""Seconds that a refused signal is shown as a trouble."""


class Control:
    """The control of one run."""

    def __init__(
        self,
        context: Context,
        merge: SnapshotMerge,
        reading: Reading,
        new_reader: Callable[[], TableReader],
        checkpointer: Checkpointer,
    ) -> None:
        self.report: Callable[[], None] = lambda: None
        """Publishes the present snapshots in the status."""
        self.resynced: Callable[[Snapshot, plan.Captures], None] = lambda snapshot, wants: None
        """Called with each finished snapshot, and the function that says which tables it was of."""
        self._name, self._status, self._log = context.name, context.status, context.log
        self._settings = context.settings
        self._merge, self._reading, self._new_reader = merge, reading, new_reader
        self._checkpointer, self._rows = checkpointer, context.settings.filter.rows
        self._refused_at = 0.0

    async def command(self, command: SnapshotCommand) -> dict[str, Any]:
        """Executes a command, and returns the snapshots after it, once they are stored. Raises SnapshotRefused or
        SourceError."""
        if command.command == "resync":
            await self._check(command)
        before = {one.id for one in self._merge.snapshots}
        self._put(command)
        wanted = self._merge.snapshots
        new = [one.id for one in wanted if one.id not in before]
        try:
            async with asyncio.timeout(_STORED_WITHIN):
                await self._checkpointer.until(self._is_stored)
        except TimeoutError:
            raise SnapshotRefused(
                f"it was accepted, but not stored within {_STORED_WITHIN:g} s: a restart of the daemon forgets it",
                remedy="check in /health whether the sink and the state store can be reached",
            ) from None
        return {"id": new[0] if new else "", "snapshots": [one.shown() for one in wanted]}

    def signal(self, signal: Signal) -> None:
        """Executes a row of the signal table. A refused one is reported, and changes nothing."""
        if signal.destination != self._name:
            return
        try:
            command = SnapshotCommand.of({**signal.arguments(), "command": signal.command})
            if command.where and not self._settings.source.signal_sql:
                command = replace(command, where=self._without_sql(command))
            self._put(command)
        except (HeadraceError, ValueError) as error:
            self._refuse(f"row {signal.id} of headrace.signal is refused: {error}")
            self._log.error(
                "a signal is refused", id=signal.id, command=signal.command, error=self._status.troubles[_REFUSED]
            )
            return
        self._status.clear(_REFUSED)

    def note_ended(self, snapshot: Snapshot, outcome: str) -> None:
        """See SnapshotMerge.ended. An abandoned resync had been accepted before it could be checked, as a signal is, or
        conditions have changed since."""
        self._status.snapshots.end(snapshot.id, snapshot.kind, outcome)
        if outcome == "done":
            self.resynced(snapshot, plan.matching(snapshot.tables, self._merge.captures))
        elif outcome != "cancelled":
            self._refuse(f"the resync {snapshot.id} of {snapshot.tables or 'all tables'} is {outcome}")

    def _refuse(self, text: str) -> None:
        self._refused_at = runtime.monotonic()
        self._status.trouble(_REFUSED, text, remedy="ask again; see docs/snapshots.md")

    def _without_sql(self, command: SnapshotCommand) -> str:
        """Returns a condition in SQL for one in the language of [[filter.where]]. Raises ValueError, also if the
        condition could reveal hidden values, and PatternTooSlow."""
        try:
            condition = parse_condition(command.where)
        except ValueError as error:
            raise ValueError(
                f"where: {error}; it should be a condition as in [[filter.where]], unless [source] signal_sql is on"
            ) from error
        name = plan.name_of(command.tables) if command.tables.isascii() else None
        table = ".".join(name) if name is not None else ""
        if hidden := sorted(one for one in columns_of(condition) if self._settings.filter.hides(one, table)):
            raise ValueError(f"where: a rule of [filter] hides the column {hidden[0]}")
        return to_sql(condition)

    def check(self) -> None:
        """Clears a refused signal after a while; called each second."""
        if self._refused_at and runtime.monotonic() - self._refused_at > _REFUSED_SECONDS:
            self._refused_at = 0.0
            self._status.clear(_REFUSED)

    def _put(self, command: SnapshotCommand) -> None:
        if command.command == "resync" and not self._rows:
            raise SnapshotRefused("[filter] rows is off, so no row is published")
        self._merge.put(*command.apply(self._merge.snapshots))
        facts = {"tables": command.tables, "where": command.where, "columns": list(command.columns), "id": command.id}
        self._log.info(f"snapshot: {command.command}", **{key: value for key, value in facts.items() if value})
        self.report()  # before the answer, so that /health shows it

    def _is_stored(self, position: Position) -> bool:
        """Returns whether a position contains the present snapshots, even with earlier progress."""
        stored = {(one.id, one.paused) for one in position.snapshots}
        now = {(one.id, one.paused) for one in self._merge.snapshots}
        return stored == now

    async def _check(self, command: SnapshotCommand) -> None:
        """Raises SnapshotRefused for a resync that matches no table, or that a table does not allow."""
        reader = self._new_reader()
        try:
            wants = plan.matching(command.tables, self._merge.captures)
            listed = (await reader.tables()).tables
            found = await chosen(listed, wants)
            if not found:
                why, remedy = await why_none(reader, listed, command.tables, self._merge.captures)
                raise SnapshotRefused(why, remedy=remedy)
            lacks = await reader.lacks()
            unreadable = [name for one in found if lacks(*(name := (one.schema, one.table)))]
            if len(unreadable) == len(found):
                raise SnapshotRefused(
                    f"the account may not read whole rows of {in_short(unreadable)}",
                    remedy=" ".join(lacks(*name) for name in unreadable[:5]),
                )
            for one in found if command.where or command.columns or len(found) == 1 else ():
                if lacks(one.schema, one.table):  # it is left out, which is reported then
                    continue
                table = self._reading.stream.table(one.schema, one.table)
                if table is None or isinstance(table, str):
                    continue
                names = {column.name.lower() for column in table.columns}
                if unknown := sorted(set(command.columns) - names):
                    raise SnapshotRefused(f"the table {table.name} has no column {unknown[0]}")
                position = self._reading.stream.position()
                try:
                    columns = self._merge.columns_of(command.columns, table)
                    await reader.read(ChunkRequest(table, position, rows=0, where=command.where, columns=columns))
                except (TableChanged, HeadraceError) as error:
                    so = " so" if command.where or command.columns else ""
                    raise SnapshotRefused(f"the table {table.name} can't be read{so}: {error}") from error
        finally:
            await reader.close()
