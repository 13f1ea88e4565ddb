"""Tables and progress: with colours on a terminal, plain in a pipe or file; NO_COLOR is respected."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from headrace import runtime
from headrace.cli.common import aligned
from headrace_common.printable import printable_lines

_SOON = 1.0
"""Seconds after which work shows its progress."""


def table(headers: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    """Returns a table for a terminal."""
    made = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    for header in headers:
        made.add_column(header, overflow="fold")
    for row in rows:
        made.add_row(*(one if isinstance(one, Text) else Text(printable_lines(one)) for one in row))
    return made


def show_table(headers: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """Prints a table to standard output."""
    console = Console()
    if console.is_terminal:
        console.print(table(headers, rows))
        return
    plain = [tuple(str(one) for one in row) for row in rows]
    print(aligned([tuple(headers), *plain], indent=""))


class Work:
    """The progress of work that takes longer than a second; see progress()."""

    def __init__(self, shown: Progress | None, about: str) -> None:
        self._shown, self._about = shown, about
        self._task: TaskID | None = None
        self._began = runtime.monotonic()

    @property
    def shows(self) -> bool:
        """Returns whether anybody sees it."""
        return self._shown is not None

    def at(self, done: int, total: int | None, about: str = "") -> None:
        """Shows `done` of `total`, if that is known. A new `about` replaces the line, with its own rate."""
        about = about or self._about
        if self._shown is None or (self._task is None and runtime.monotonic() - self._began < _SOON):
            return
        if self._task is None:
            self._shown.start()
        elif about != self._about:
            self._shown.remove_task(self._task)
            self._task = None
        if self._task is None:
            self._about, self._task = about, self._shown.add_task(about, total=total)
        self._shown.update(self._task, completed=done, total=total)


class _Rate(ProgressColumn):
    """Shows the rate per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s", style="progress.data.speed")


@contextmanager
def progress(about: str, *, beside_output: bool = False, counts: bool = False) -> Iterator[Work]:
    """Shows share, bytes (or, with `counts`, numbers), rate and remaining time on standard error, if that is a
    terminal. `beside_output`: not if standard output is a terminal too, because it would mix with its lines."""
    if not sys.stderr.isatty() or (beside_output and sys.stdout.isatty()):
        yield Work(None, about)
        return
    shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        *((TextColumn("{task.completed:,.0f}"), _Rate()) if counts else (DownloadColumn(), TransferSpeedColumn())),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    try:
        yield Work(shown, about)
    finally:
        shown.stop()
