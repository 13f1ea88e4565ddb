"""The position of a reader in the binlog."""

from __future__ import annotations

from headrace.errors import NotUnderstood
from headrace.mysql.sql.dialect import Dialect

WRAP = 1 << 32
"""Event headers have only the low 32 bits of an offset; a large transaction makes a file exceed them."""


class EventCursor:
    """The present event of one reader. The event splitter moves it; handlers read it.

    `file`:`end` is the end of the last event that was completely handled; `start` is the offset of the present event,
    -1 if it is in no file; `time` (seconds since 1970) and `length` (bytes) are its header's, or those of an event
    within it. `checksums`: events end in a CRC32. `dialect` is that of the server that wrote the file. `skip_positions`
    are positions (`file:offset`) of events that an operator has chosen to skip if they can't be read; `skipped` counts
    what was skipped this way. `source` is the server's name in errors."""

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
        """Returns where the present event begins, or would if it were in the file."""
        return self.start if self.start >= 0 else self.end

    @property
    def position(self) -> str:
        """Returns `file:offset` of the present event."""
        return f"{self.file}:{self.event_start}"

    @property
    def may_skip(self) -> bool:
        """Returns whether the operator has named exactly this position."""
        return self.is_named(self.position)

    def is_named(self, position: str) -> bool:
        """Returns whether the operator has named a position (`file:offset`) to be skipped."""
        return position in self._skip_positions

    def end_of(self, at: int, stop: int) -> int:
        """Returns the offset after the event whose body is from `at` to `stop`."""
        return self.event_start + 19 + stop - at + (4 if self.checksums else 0)

    def not_understood(self, what: str, remedy: str = "") -> NotUnderstood:
        """Returns the error that names the present event's position."""
        return NotUnderstood(f"at {self.position}: {what}", remedy=remedy)
