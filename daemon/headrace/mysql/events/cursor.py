"""Where in the binlog a reader is."""

from __future__ import annotations

from headrace.errors import NotUnderstood
from headrace.mysql.sql.dialect import Dialect

WRAP = 1 << 32
"""Event headers hold the low 32 bits of an offset only; a large transaction leads a file beyond them."""


class EventCursor:
    """The present event of one reader. The cutter moves it; handlers look at it.

    `file`:`end` is behind the last event that was handled whole; `start` is the offset of the present event, -1 when it
    stands in no file; `time` (seconds since 1970) and `length` (bytes) are its header's, or those of an event within
    it. `checksums`: events end in a CRC32. `dialect` is that of the server that wrote the file. `skip_positions` are
    positions (`file:offset`) whose events an operator has chosen to pass over when they can't be read; `skipped` counts
    what was passed over so. `source` is what errors call the server.
    """

    __slots__ = (
        "_skip_positions",
        "checksums",
        "dialect",
        "end",
        "file",
        "high",
        "length",
        "skipped",
        "source",
        "start",
        "time",
    )

    def __init__(
        self, file: str, end: int, *, checksums: bool = False, skip_positions: frozenset[str] = frozenset()
    ) -> None:
        self.file, self.end, self.start = file, end, -1
        self.time = self.length = self.skipped = 0
        self.high = end & -WRAP
        """The part of offsets that headers lack."""
        self.checksums, self._skip_positions = checksums, skip_positions
        self.dialect = Dialect(False, 0)
        self.source = "the source"

    @property
    def event_start(self) -> int:
        """Where the present event begins, or would if it stood in the file."""
        return self.start if self.start >= 0 else self.end

    @property
    def position(self) -> str:
        """`file:offset` of the present event."""
        return f"{self.file}:{self.event_start}"

    @property
    def may_skip(self) -> bool:
        """Whether the operator has named this very position."""
        return self.is_named(self.position)

    def is_named(self, position: str) -> bool:
        """Whether the operator has named a position (`file:offset`) to be passed over."""
        return position in self._skip_positions

    def end_of(self, at: int, stop: int) -> int:
        """The offset behind the event whose body is from `at` to `stop`."""
        return self.event_start + 19 + stop - at + (4 if self.checksums else 0)

    def not_understood(self, what: str, remedy: str = "") -> NotUnderstood:
        """The error that names the present event's position."""
        return NotUnderstood(f"at {self.position}: {what}", remedy=remedy)
