"""Reads binlog files, an archive, or a server's dump up to its present end, and gives their changes to an output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.errors import ContinuesElsewhere, NotUnderstood, Refusal, SourceError, StateStoreError
from headrace.model import POS_SHIFT, Position, RowsChange, SchemaChange
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.index import Line
from headrace.mysql.archive.packets import ArchivedPackets, Place
from headrace.mysql.decoder import Decoder
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events import event_types as ev
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.schema.script import apply_script
from headrace.mysql.schema.states import reached
from headrace.mysql.source import MysqlSource
from headrace.mysql.sql.dialect import dialect_of
from headrace.mysql.wire.binlog_file import file_number, packets, rotate_packet
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.ports.inspection import Captures, Output, Window
from headrace.ports.source import LogPosition, ProgressCallback, Receiver
from headrace.settings.archive import ArchiveSettings
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings
from headrace.times import time_text

_NO_SCHEMA = (
    "The binlog does not say its column names (binlog_row_metadata is not FULL). Begin with the file that has its "
    "CREATE TABLE, give its CREATE TABLE with --schema, have columns by position with --positional, leave the table "
    "out with --table, or read from the server with --host"
)

_NOT_STORED = (
    "The archived binlog does not say its column names (binlog_row_metadata is not FULL), and the stored schema "
    "history does not have the table as it was then. Leave the table out with --table"
)


class _Bounds:
    """See Window. Raises Refusal for a window that can hold nothing."""

    def __init__(self, window: Window) -> None:
        self._files, self._first, self.last = window.files, window.first, window.last
        if self._ends_first(self._first, self.last):
            raise Refusal("--to is not after --from, so there is nothing between them", remedy="exchange them")

    def _ends_first(self, first: tuple[str, int] | int | None, last: tuple[str, int] | int | None) -> bool:
        if isinstance(first, int) and isinstance(last, int):
            return last <= first
        return isinstance(first, tuple) and isinstance(last, tuple) and self._order(last) <= self._order(first)

    def _order(self, bound: tuple[str, int]) -> tuple[int, int]:
        file, offset = bound
        if not self._files:
            return file_number(file), offset
        return (self._files.index(file) if file in self._files else -1), offset

    def _is_before(self, at: tuple[str, int], commit_time_us: int, bound: tuple[str, int] | int) -> bool:
        if isinstance(bound, int):
            return commit_time_us < bound
        return self._order(at) < self._order(bound)

    def holds(self, change: RowsChange | SchemaChange) -> bool:
        """Returns whether the transaction of a change is wanted."""
        at = change.origin.file, change.origin.transaction
        if self._first is not None and self._is_before(at, change.commit_time_us, self._first):
            return False
        return self.last is None or self._is_before(at, change.commit_time_us, self.last)

    def over(self, position: Position) -> bool:
        """Returns whether nothing wanted can follow. Commit times may go back, so a time does not decide this."""
        at = position.file, position.offset
        return isinstance(self.last, tuple) and self._order(at) >= self._order(self.last)

    def receiver(self, output: Output) -> Receiver:
        """Returns a receiver that passes on what is within the window."""

        def rows(change: RowsChange) -> None:
            if self.holds(change):
                output.emit(change)

        def statement(change: SchemaChange) -> None:
            if self.holds(change):
                output.emit_schema(change)

        return Receiver(rows=rows, statement=statement, full=output.full)


# -- files --------------------------------------------------------------------------------------------------------


def read_files(
    paths: Sequence[Path],
    settings: DestinationSettings,
    captures: Captures,
    spool: Path,
    window: Window,
    output: Output,
    on_progress: Callable[[int], object] = lambda _: None,
    *,
    script: Path | None = None,
    positional: bool = False,
) -> None:
    """See SourceAdapter."""
    bounds = _Bounds(window)
    done = 0
    for bound in (window.first, window.last):
        if isinstance(bound, tuple) and bound[0] not in window.files:
            raise NotUnderstood(f"{bound[0]} is none of the files given")
    decoder: Decoder | None = None
    history: SchemaHistory | None = None
    for path in paths:
        _refuse_encrypted(path)
        begun = False
        for chunk in packets(path):
            if decoder is None or history is None:
                history = _history(path, chunk, captures, script)
                decoder = Decoder(
                    DumpStart(Position("", path.name, 4), checksums=False),
                    bounds.receiver(output),
                    captures=captures,
                    history=history,
                    options=replace(DecoderOptions.of(settings, DaemonSettings(spool=spool)), positional=positional),
                )
            elif not begun:
                chunk = rotate_packet(path.name, 4, decoder.cursor.checksums) + chunk
            begun = True
            _feed(decoder, history, chunk, output)
            done += len(chunk)
            on_progress(done)
            if bounds.over(decoder.position()):
                return
    if decoder is not None:
        _require_whole(output, decoder)


def _require_whole(output: Output, decoder: Decoder) -> None:
    """Raises NotUnderstood if the output needs whole transactions, and the last one is not complete."""
    end = decoder.position()
    if output.exact and (end.events_done or end.rows_done):
        raise NotUnderstood(
            f"the binlog ends within the transaction at {end.file}:{end.offset}",
            remedy="choose the transactions before it with --to",
        )


def _refuse_encrypted(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(4) == b"\xfdbin":
            raise NotUnderstood(
                f"{path} is encrypted (binlog_encryption)",
                remedy="read it from the server, with --host, --from and --to",
            )


def _feed(decoder: Decoder, history: SchemaHistory, data: bytes, output: Output, remedy: str = _NO_SCHEMA) -> None:
    at, more = 0, True
    while more:
        try:
            at, more = decoder.feed(data, at, output.full)
        finally:
            # What came before something unreadable is valid.
            output.write(decoder.transactions.count, decoder.splitter.events)
        if decoder.described.wanted is not None:
            decoder.described.learned(f"{history.unknown_because(*decoder.described.wanted)}. {remedy}")
            more = True


def _history(path: Path, chunk: bytes, captures: Captures, script: Path | None) -> SchemaHistory:
    """Returns a history for the server whose version the file's first event names, with the tables of a script."""
    if len(chunk) < 76 or chunk[9] != ev.FORMAT_DESCRIPTION:
        raise NotUnderstood(f"{path} does not begin with an event that describes its format")
    version = chunk[26:76].rstrip(b"\0").decode("ascii", "replace")
    mariadb = "mariadb" in version.lower()
    history = SchemaHistory(captures, mariadb=mariadb, version=version, lower_case_table_names=0)
    if script is not None:
        apply_script(script, history, dialect_of(version, mariadb=mariadb))
    return history


# -- an archive ---------------------------------------------------------------------------------------------------


async def read_archive(
    settings: DestinationSettings,
    archived: ArchiveSettings,
    entries: Sequence[dict[str, Any]],
    captures: Captures,
    spool: Path,
    window: Window,
    output: Output,
    on_progress: Callable[[int, int | None], object] = lambda *_: None,
) -> str:
    """See SourceAdapter."""
    archive, bounds = Archive.of(archived), _Bounds(window)
    await archive.refresh()
    line, number = _begin(archive, window.first)
    output.begin(line.server)
    files = line.files[number:]
    history = SchemaHistory(
        captures,
        mariadb=line.mariadb,
        version=line.version,
        lower_case_table_names=line.lower_case_table_names,
    )
    try:
        history.restore(entries, ((files[0].first_us or files[0].begun * 1_000_000) << POS_SHIFT) - 1)
    except (ValueError, LookupError, TypeError) as error:
        raise StateStoreError(f"the stored schema history can't be read ({error!r})") from error
    decoder = Decoder(
        DumpStart(Position("", files[0].name, 4), checksums=True),
        bounds.receiver(output),
        captures=captures,
        history=history,
        options=DecoderOptions.of(settings, DaemonSettings(spool=spool)),
    )
    packets, total = ArchivedPackets(archive, Place(line.number, files[0].name, 4), checksums=True), 0
    size = sum(file.size for file in files)
    try:
        while not output.done and not bounds.over(decoder.position()):
            if isinstance(bounds.last, int) and _begins_after(archive, line.number, packets.at[0], bounds.last):
                return ""
            data = await packets.read(b"", 1, 0.0)
            _feed(decoder, history, data, output, _NOT_STORED)
            await output.settle()
            total += len(data)
            on_progress(total, size)
    except ContinuesElsewhere:
        _require_whole(output, decoder)
        return _after(archive, line, bounds.last)
    finally:
        await packets.close()
    return ""


def _after(archive: Archive, line: Line, last: tuple[str, int] | int | None) -> str:
    """Returns what is in another line after this one, and before `last`, as a sentence; "" if nothing is."""
    numbers = [one.number for one in archive.lines]
    at = numbers.index(line.number) + 1 if line.number in numbers else len(numbers)
    after = next((one for one in archive.lines[at:] if one.files), None)
    if after is None or isinstance(last, tuple):
        return ""
    first = next((file.first_us for file in after.files if file.first_us), 0)
    if not first or (last is not None and first >= last):
        return ""
    return (
        f"the archive goes on after a gap, or with another history, in line {after.number}, which is not read: it "
        f"begins with {after.files[0].name} of server {after.server}, and its first transaction was committed at "
        f"{time_text(first)}"
    )


def _begin(archive: Archive, first: tuple[str, int] | int | None) -> tuple[Line, int]:
    """Returns the line and the index of the file in which the first wanted transaction may be: of the newest line that
    has its file, or that begins before its time; without one the oldest."""
    lines = [line for line in archive.lines if line.files]
    if not lines:
        raise Refusal(f"the archive at {archive.store.place} is empty")
    for line in reversed(lines):
        if first is None:
            break
        if isinstance(first, tuple):
            if (at := line.index_of(first[0])) is not None:
                return line, at
        elif line.files[0].begun * 1_000_000 <= first:
            later = [at for at, file in enumerate(line.files) if file.last_us >= first]
            return line, later[0] if later else len(line.files) - 1
    if isinstance(first, tuple):
        raise Refusal(f"the archive has no {first[0]}", remedy="'headrace archive list' shows what it has")
    return lines[0], 0


_LATE = 3_600_000_000
"""Microseconds by which commit times in a binlog may go back."""


def _begins_after(archive: Archive, line: int, file: str, last: int) -> bool:
    """Returns whether a file begins so late that nothing in it was committed before `last`."""
    return archive.file_and_next(line, file)[0].first_us > last + _LATE


# -- a server -----------------------------------------------------------------------------------------------------


async def read_server(
    settings: DestinationSettings,
    captures: Captures,
    spool: Path,
    window: Window,
    output: Output,
    *,
    follow: bool,
    on_progress: Callable[[int, int | None], object] = lambda *_: None,
    searching: ProgressCallback = lambda *_: None,
) -> None:
    """See SourceAdapter."""
    bounds = _Bounds(window)
    files = await _binlogs(settings)
    end = None if follow else LogPosition(*files[-1])
    source = MysqlSource(settings, DaemonSettings(spool=spool), captures, named=False, on_progress=searching)
    opened = await source.open(None)
    if end is not None and opened.start.file and reached((opened.start.file, opened.start.offset), end):
        await opened.close()  # nothing that the server has is as late as requested
        return
    stream = opened.stream(bounds.receiver(output))
    to = None if follow else _bytes_to(files, window.last if isinstance(window.last, tuple) else files[-1])
    begin = _bytes_to(files, (opened.start.file, opened.start.offset))
    try:
        while not output.done and not bounds.over(stream.position()):
            if end is not None and stream.has_reached(end) and not stream.in_transaction():
                break  # within one, its last event was reached, and rows of it may wait
            try:
                await stream.read()
            finally:
                progress = stream.progress()
                output.write(progress.transactions, progress.events)
                at = _bytes_to(files, (progress.file, progress.offset))
                if at is None or begin is None:  # it begins by GTIDs: the first event has the offset
                    begin = at
                else:
                    on_progress(at - begin, None if to is None else to - begin)
    finally:
        await stream.close()


async def _binlogs(settings: DestinationSettings) -> list[tuple[str, int]]:
    """Returns the server's present files, and their sizes."""
    connection = await SourceConnection.open(address_of(settings.source))
    try:
        files = await connection.query("SHOW BINARY LOGS")
    finally:
        await connection.close()
    if not files:
        raise SourceError("the source lists no binlog")
    return [(str(file["Log_name"]), int(file["File_size"])) for file in files]


def _bytes_to(files: Sequence[tuple[str, int]], position: tuple[str, int]) -> int | None:
    """Returns the bytes before a position; None if its file is not known yet. What was written since then is after them
    all."""
    file, offset = position
    before = 0
    for name, size in files:
        if name == file:
            return before + offset
        before += size
    return before + offset if file else None
