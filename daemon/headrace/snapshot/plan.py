"""What a snapshot must read, and its progress: functions of what is stored, which wait for nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from headrace import runtime
from headrace.errors import GrantMissing
from headrace.model import DdlKind, TableChange
from headrace.ports.tables import Lacks, TableFacts, in_short
from headrace.rules.patterns import ALL_LIMIT, PatternTooSlow, compile_filter
from headrace.snapshots import Snapshot, TableName, TableProgress

_USUAL = 20e-6
"""Seconds of CPU time that a regex may take on a name, on average: many times the cost of a well-written one."""
Captures = Callable[[str, str], bool]


def first_snapshot() -> Snapshot:
    """Returns the snapshot of a destination that begins, or begins again: all captured tables."""
    return Snapshot(runtime.new_id(), "initial", asked_us=runtime.now_us())


def matching(tables: str, captures: Captures) -> Captures:
    """Returns a function that says whether a filter selects a captured table; "" selects all. Raises ValueError for an
    invalid filter. The function raises PatternTooSlow, also for a regex that takes too long on many names: a signal may
    contain any regex."""
    if not tables:
        return captures
    patterns, left = compile_filter(tables, "tables"), ALL_LIMIT

    def wants(schema: str, table: str) -> bool:
        nonlocal left
        if not captures(schema, table):
            return False
        began, name = runtime.cpu(), f"{schema}.{table}"
        found = any(pattern.fullmatch(name) for pattern in patterns)
        left += len(patterns) * _USUAL - (runtime.cpu() - began)
        if left < 0:
            raise PatternTooSlow(
                f"the regex {tables[:200]!r} of tables takes too long on the names of all tables",
                remedy="name the tables, or write it without repeats that may match the same letters",
            )
        return found

    return wants


def name_of(tables: str) -> TableName | None:
    """Returns the one table that a filter names; None for a filter that may select several, or is not a full name."""
    found = re.fullmatch(r"(\w+)\\?\.(\w+)", tables)
    return (found[1], found[2]) if found else None


def following(snapshot: Snapshot, tables: Iterable[TableFacts]) -> list[TableName]:
    """Returns the tables that are not begun yet, in their order."""
    begun = {one.name for one in snapshot.open}
    return sorted(name for one in tables if (name := (one.schema, one.table)) > snapshot.begun and name not in begun)


def may_not_read(tables: Sequence[TableName], lacks: Lacks) -> GrantMissing:
    """Returns the error for a resync of such tables only."""
    text = f"the account may not read whole rows of {in_short(tables)}"
    return GrantMissing(text, retriable=False, remedy=" ".join(lacks(*name) for name in tables[:5]))


def begin_table(snapshot: Snapshot, name: TableName) -> Snapshot:
    """Begins to read a table; all before it have begun."""
    return replace(snapshot, begun=max(snapshot.begun, name), open=(*snapshot.open, TableProgress(*name)))


def advance(snapshot: Snapshot, progress: TableProgress) -> Snapshot:
    """Sets the progress of an open table."""
    before = progress_of(snapshot, progress.name)
    more = progress.rows - (before.rows if before is not None else 0)
    tables = tuple(progress if one.name == progress.name else one for one in snapshot.open)
    return replace(snapshot, open=tables, rows=snapshot.rows + more)


def end_table(snapshot: Snapshot, name: TableName) -> Snapshot:
    """Ends an open table: all of its rows are passed, or it was dropped."""
    rest = tuple(one for one in snapshot.open if one.name != name)
    return replace(snapshot, open=rest, tables_done=snapshot.tables_done + 1)


def progress_of(snapshot: Snapshot, name: TableName) -> TableProgress | None:
    """Returns the progress of an open table."""
    return next((one for one in snapshot.open if one.name == name), None)


def altered(snapshot: Snapshot, changes: Sequence[TableChange], wants: Captures, captures: Captures) -> Snapshot:
    """Returns the snapshot after statements that dropped or renamed tables: a table that is not done continues, or
    begins, under its new name, which no list of tables may have. A table with the name of a dropped one is a new table.
    A table that a resync is about stays so under any captured name."""
    for change in changes:
        if change.kind is DdlKind.ERASE and progress_of(snapshot, (change.schema, change.table)) is not None:
            snapshot = end_table(snapshot, (change.schema, change.table))
        old, new = change.renamed_from, (change.schema, change.table)
        if old is None or old == new:
            continue
        progress = progress_of(snapshot, old)
        done = progress is None and old <= snapshot.begun and wants(*old)
        if progress is not None:
            snapshot = replace(snapshot, open=tuple(one for one in snapshot.open if one.name != old))
        taken = progress is not None or wants(*old)
        if done or not (wants(*new) or (taken and captures(*new))) or progress_of(snapshot, new) is not None:
            continue
        if progress is not None:
            moved = replace(progress, schema=new[0], table=new[1])
            snapshot = replace(snapshot, open=(*snapshot.open, moved))
        else:
            snapshot = replace(snapshot, open=(*snapshot.open, TableProgress(*new)))
    return snapshot
