"""Where a dump by file and offset begins for a stored position."""

from __future__ import annotations

from headrace.model import Position


def dump_place(start: Position, skip_before: int) -> tuple[str, int]:
    """File and offset where a dump by place begins: at the start, at the file's beginning when what lies before has to
    be seen, or at the oldest XA transaction whose rows have to be read again. The dump command has 32 bits for it."""
    if skip_before:
        return start.file, 4
    if start.open_xa and not start.gtid_set:
        start = Position(start.server_uuid, start.open_xa[0].file, start.open_xa[0].offset)
    return start.file, start.offset if start.offset < 1 << 32 else 4


def place_of(text: str) -> tuple[str, int]:
    """File and offset out of `file:offset`; ("", 0) out of ""."""
    file, _, offset = text.rpartition(":")
    return file, int(offset or 0)
