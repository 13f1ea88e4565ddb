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
    for line in index.lines:
        old = list[BinlogFile]()
        for number, file in enumerate(line.files):
            aged = keep and file.last_us < now_us - keep * 1_000_000
            large = keep_bytes and total > keep_bytes
            grows = line is index.lines[-1] and number == len(line.files) - 1
            if grows or not (aged or large) or any(_needs(position, line, number) for position in needed):
                break
            old.append(file)
            total -= file.stored
        if old:
            found.append((line, old))
    return found


def _needs(position: Position, line: Line, number: int) -> bool:
    """Returns whether a destination at this position may have to read a file of a line, given by its index."""
    files = [position.file, *(xa.file for xa in position.open_xa)]
    known = [at for name in files if (at := line.index_of(name)) is not None]
    if line.server == position.server_uuid and known:
        return number >= min(known)
    return line.files[number].last_us > position.commit_time_us
