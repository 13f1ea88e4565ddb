"""Which files of an archive may be deleted."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model import Position
from headrace.mysql.archive.index import BinlogFile, Index, Line


def superfluous(
    index: Index, keep: float, keep_bytes: int, needed: Sequence[Position], now_us: int
) -> list[tuple[Line, list[BinlogFile]]]:
    """Returns the files to delete, by line: the oldest of each, so that no gap arises. `keep` is in seconds; 0 means
    any age, or any number of bytes. Files that a position needs, and the one that grows, are not among them."""
    total = sum(file.stored for line in index.lines for file in line.files)
    found = []
    present = [_line_of(index, position) for position in needed]
    for line in index.lines:
        old = list[BinlogFile]()
        for number, file in enumerate(line.files):
            aged = keep and file.last_us < now_us - keep * 1_000_000
            large = keep_bytes and total > keep_bytes
            grows = line is index.lines[-1] and number == len(line.files) - 1
            wanted = any(_needs(one, line is at, line, number) for one, at in zip(needed, present, strict=True))
            if grows or not (aged or large) or wanted:
                break
            old.append(file)
            total -= file.stored
        if old:
            found.append((line, old))
    return found


def _line_of(index: Index, position: Position) -> Line | None:
    """Returns the newest line that has a position's file: after a reset a server uses the names again."""
    own = [line for line in index.lines if line.server == position.server_uuid]
    return next((line for line in reversed(own) if line.index_of(position.file) is not None), None)


def _needs(position: Position, present: bool, line: Line, number: int) -> bool:
    """Returns whether a destination at this position may have to read a file of a line, given by its index; `present`:
    the line is the one of the position."""
    if line.files[number].last_us > position.commit_time_us:
        return True
    files = [position.file, *(xa.file for xa in position.open_xa)]
    known = [at for name in files if (at := line.index_of(name)) is not None]
    return present and number >= min(known)
