"""Where a dump begins for a position."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model import Position


@dataclass(frozen=True, slots=True)
class DumpStart:
    """What a decoder needs to know of the dump that it reads. `checksums`: events before the first FORMAT_DESCRIPTION
    end in a CRC32. Transactions of the position's file that begin before the offset `skip_before` are only counted."""

    position: Position
    checksums: bool
    skip_before: int = 0

    @property
    def file_position(self) -> tuple[str, int]:
        """Returns file and offset of the first event."""
        start = self.position
        return (start.file, start.offset) if start.gtid_set else dump_position(start, self.skip_before)


def dump_position(start: Position, skip_before: int) -> tuple[str, int]:
    """Returns file and offset where a dump by position begins: at the start, at the file's beginning if what comes
    before must be read, or at the oldest XA transaction whose rows must be read again. The dump command has 32 bits for
    it."""
    if skip_before:
        return start.file, 4
    if start.open_xa and not start.gtid_set:
        start = Position(start.server_uuid, start.open_xa[0].file, start.open_xa[0].offset)
    return start.file, start.offset if start.offset < 1 << 32 else 4
