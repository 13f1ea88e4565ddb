"""The binlog's files: bytes in memory, the index, rotation and purge (MySQL manual, "The Binary Log")."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sim.mysql import events
from sim.mysql.gtids import Gtids

MAGIC = 4
"""Bytes before the first event."""


@dataclass(eq=False)
class BinlogFile:
    """One file: its events, and the offset of each."""

    name: str
    previous: Gtids
    """What was executed before it."""
    created_us: int
    events: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    size: int = MAGIC
    """Bytes of whole events, with those before them."""
    torn: bytes = b""
    """The begin of an event that follows them and is not whole."""

    def append(self, event: bytes) -> None:
        self.events.append(event)
        self.offsets.append(self.size)
        self.size += len(event)

    def index_of(self, offset: int) -> int | None:
        """Returns the number of the event that begins at an offset; None if none does. The end counts."""
        if offset == self.size:
            return len(self.events)
        at = bisect_left(self.offsets, offset)
        return at if at < len(self.offsets) and self.offsets[at] == offset else None

    def truncate(self, count: int) -> None:
        """Removes all events but the first ones."""
        if count < len(self.events):
            self.size = self.offsets[count]
            del self.events[count:], self.offsets[count:]

    def tear(self, count: int) -> None:
        """Keeps the first events and the begin of the next, as when the disk was full."""
        self.torn = self.events[count][: len(self.events[count]) // 2]
        self.truncate(count)

    def copy(self) -> BinlogFile:
        """Returns an independent file; events are shared."""
        made = BinlogFile(self.name, self.previous.copy(), self.created_us, list(self.events), list(self.offsets))
        made.size, made.torn = self.size, self.torn
        return made

    def as_bytes(self) -> bytes:
        """Returns the file as it would be on a disk."""
        return b"\xfebin" + b"".join(self.events) + self.torn


class Binlog:
    """The files of one server, oldest first. `now` is the wall clock in microseconds, `changed` is called after each
    write."""

    def __init__(self, prefix: str, version: str, now: Callable[[], int]) -> None:
        self.prefix, self.version, self.now = prefix, version, now
        self.files: list[BinlogFile] = []
        self.changed: Callable[[], None] = lambda: None
        self.sequence = 1
        """The logical time of the next transaction of the present file."""

    @property
    def last(self) -> BinlogFile:
        return self.files[-1]

    @property
    def names(self) -> list[str]:
        return [file.name for file in self.files]

    def find(self, name: str) -> int | None:
        """Returns the number of a file in the index."""
        return next((at for at, file in enumerate(self.files) if file.name == name), None)

    def open_file(self, executed: Gtids, server_id: int, *, started: bool = False, first: int = 1) -> None:
        """Begins the next file. `started`: the server does. `first` is the number of the first file of all."""
        last = int(self.files[-1].name.rpartition(".")[2]) if self.files else first - 1
        now = self.now()
        file = BinlogFile(f"{self.prefix}.{last + 1:06d}", executed.copy(), now)
        when = now // 1_000_000
        self.files.append(file)
        self.sequence = 1
        description = events.format_description(self.version, when if started else 0)
        self._add(events.FORMAT, description, when, server_id, events.IN_USE)
        self._add(events.PREVIOUS_GTIDS, executed.encode(), when, server_id, events.IGNORABLE)

    def _add(self, kind: int, body: bytes, when: int, server_id: int, flags: int = 0) -> None:
        file = self.last
        end = file.size + events.HEADER_BYTES + len(body) + events.CRC_BYTES
        file.append(events.event(kind, body, when, server_id, end, flags))

    def write(self, parts: Sequence[events.Part], when: int, server_id: int) -> None:
        """Writes events."""
        file, fixed = self.last, events.HEADER_BYTES + events.CRC_BYTES
        end = file.size
        for kind, body, flags in parts:
            end += fixed + len(body)
            file.append(events.event(kind, body, when, server_id, end, flags))
        self.sequence += 1
        self.changed()

    def rotate(self, executed: Gtids, server_id: int) -> None:
        """Ends the present file with ROTATE and begins the next."""
        number = int(self.last.name.rpartition(".")[2]) + 1
        self._add(events.ROTATE, events.rotate(f"{self.prefix}.{number:06d}"), self.now() // 1_000_000, server_id)
        self.last.events[0] = events.changed(self.last.events[0], flags=0)
        self.open_file(executed, server_id)
        self.changed()

    def stop(self, server_id: int) -> None:
        """Ends the present file with STOP, as a server does that shuts down."""
        self._add(events.STOP, b"", self.now() // 1_000_000, server_id)
        self.last.events[0] = events.changed(self.last.events[0], flags=0)

    def copy_files(self) -> list[BinlogFile]:
        return [file.copy() for file in self.files]
