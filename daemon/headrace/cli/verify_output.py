"""The output of `headrace verify`: its progress, on a terminal, and its results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.cli.terminal import Work
from headrace.errors import Refusal
from headrace.verify.result import SHOWN, RangeFound, TableFound
from headrace_common.printable import printable_lines

_RANGES_SHOWN = 20


class ComparisonProgress:
    """Shows the progress of the comparison of a table."""

    def __init__(self, work: Work, table: str) -> None:
        self._work, self._table, self._what, self._count = work, table, "", 0

    def report(self, what: str, count: int, total: int | None) -> None:
        """Adds messages, documents or rows that were read, of about this total."""
        if what != self._what:
            self._what, self._count = what, 0
        self._count += count
        known = total if total is not None and total >= self._count else None
        self._work.at(self._count, known, f"{self._table}, {what}")


def print_table(one: TableFound, extra: Path | None) -> None:
    """Prints the results for a table, for people. `extra` is the file that gets the keys of extra rows."""
    print(printable_lines(f"{one.table}: {_sentence(one)}"), flush=True)
    for note in one.notes:
        print(printable_lines(f"  note: {note}"))
    _print_ranges(one)
    if one.extra:
        _print_extra(one, extra)


def _sentence(one: TableFound) -> str:
    if one.unreadable:
        return f"not compared: {one.unreadable}"
    counts = f"{one.source_rows:,} rows on the source, {one.consumer_rows:,} at the consumer"
    if one.equal:
        return f"equal ({counts})"
    if one.keyless_differs:
        return f"differs in its number of rows or in their values ({counts}); it has no key, so nobody can say in which"
    parts = {"missing": one.missing, "different": one.different, "extra": one.extra, "not comparable": one.incomplete}
    return f"{', '.join(f'{count:,} {name}' for name, count in parts.items() if count)} ({counts})"


def _print_ranges(one: TableFound) -> None:
    for found in one.ranges[:_RANGES_SHOWN]:
        keys = f"{found.first} to {found.last}: {_counts(found)} of {found.rows:,}; such as {_some(found.keys)}"
        print(printable_lines(f"  keys {keys}"))
        print(printable_lines(f"    {found.command}"))
    if len(one.ranges) > _RANGES_SHOWN:
        print(f"  and {len(one.ranges) - _RANGES_SHOWN:,} ranges more; --json has all")
    if one.incomplete:
        print(
            "  not comparable: the last change of these rows lacks columns (binlog_row_image), so their rows are not "
            "known whole"
        )


def _print_extra(one: TableFound, file: Path | None) -> None:
    rows = "row" if one.extra == 1 else "rows"
    print(f"  {one.extra:,} {rows} that the source does not have; such as {_some(one.extra_keys)}")
    if file is None and one.extra > SHOWN:
        print("    --extra FILE writes all their keys")
    print(
        "    a resync can't delete them: delete them at the consumers; or insert each on the source and delete it "
        "again, so that its DELETE is published"
    )


def _counts(found: RangeFound) -> str:
    parts = {"missing": found.missing, "different": found.different, "not comparable": found.incomplete}
    return ", ".join(f"{count:,} {name}" for name, count in parts.items() if count)


def _some(keys: Sequence[str]) -> str:
    return printable_lines(", ".join(keys[:SHOWN])) + (" ..." if len(keys) > SHOWN else "")


def write_extra(path: Path, tables: Sequence[TableFound]) -> None:
    """Writes the keys that only the consumer has, a line each: table, tab, key. Raises Refusal."""
    try:
        with path.open("w", encoding="utf-8") as file:
            for one in tables:
                file.writelines(f"{one.table}\t{key}\n" for key in one.extra_keys)
    except OSError as error:
        raise Refusal(f"{path} can't be written: {error.strerror}") from error
