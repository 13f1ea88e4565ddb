"""The bases of what keeps an archive, headrace's own copy of a source's log, and of what commands do with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.model import Position
from headrace.ports.lock import Lock


@dataclass(frozen=True, slots=True)
class ArchiveProgress:
    """Up to where an archive has everything, durably."""

    file: str
    offset: int
    bytes: int
    """Bytes that the archive takes."""
    oldest_us: int = 0
    """Commit time of its oldest transaction, in microseconds since 1970 UTC; 0 if it has none."""
    newest_us: int = 0
    """The same of its newest one."""
    unacknowledged: str = ""
    """Why the source does not wait until transactions are archived, although it is configured to; "" if it does."""


Report = Callable[[ArchiveProgress | None], None]
"""Receives None while another daemon keeps the archive."""
Needed = Callable[[], Awaitable[Sequence[Position]]]
"""Returns the stored positions of the destinations that share an archive. Raises HeadraceError if one is not known."""


class Archiver(ABC):
    """Keeps one archive. Only the holder of the archive's lock runs it."""

    @abstractmethod
    async def run(self, report: Report, needed: Needed) -> None:
        """Adds to the archive what the source writes, until it is cancelled; what was reported is durable. Deletes what
        is older than configured, unless it is needed. Raises ArchiveError and SourceError."""

    @abstractmethod
    def note_failure(self, why: str) -> None:
        """Records why the archive can't be written, for destinations that must not stream meanwhile. It counts until
        something is written, or for as long as this daemon goes on trying."""


@dataclass(frozen=True, slots=True)
class ArchiveUse:
    """What a daemon needs to keep an archive."""

    lock: Lock
    needed: Needed


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file of the source's log in an archive."""

    server: str
    """The identity of the server that wrote it."""
    line: int
    """Files of one line follow each other without a gap."""
    name: str
    bytes: int
    """Its bytes, as far as it is archived."""
    stored: int
    """Bytes that it takes in the archive."""
    complete: bool
    """Whether all of it is archived."""
    first_us: int
    """Commit time of its first transaction, in microseconds since 1970 UTC; 0 if it has none."""
    last_us: int
    """The highest commit time in it."""


Advance = Callable[[int, int, str], object]
"""Receives bytes done, bytes in all, and what is done now."""


class ArchiveCommands(ABC):
    """What commands do with an archive. Every method raises ArchiveError."""

    @abstractmethod
    async def check(self) -> None:
        """Raises ArchiveError if an object store can't be used; an archive in a folder is not checked."""

    @abstractmethod
    async def files(self) -> list[ArchivedFile]:
        """Returns what is archived, oldest first in each line."""

    @abstractmethod
    async def verify(self, advance: Advance) -> list[str]:
        """Reads all of it. Returns what is wrong, a sentence each."""

    @abstractmethod
    async def export(self, folder: Path, first: str, last: str, advance: Advance) -> list[str]:
        """Writes files into a folder, byte for byte as the server has written them: from the name `first` to `last` of
        the newest line that has them, "" for its first and last. Returns their names. Raises Refusal for names that are
        not archived, and for a file that exists."""

    @abstractmethod
    async def add(self, paths: Sequence[Path], server: str, advance: Advance) -> list[str]:
        """Adds files that were copied from a server, in order and without a gap; `server` is its identity, "" for that
        of the newest line. Returns the names of those that were not archived before. Raises Refusal for files that do
        not follow each other, and NotUnderstood for a file that is none of the source's."""

    @abstractmethod
    async def prune(
        self, keep: float, keep_bytes: int, needed: Sequence[Position], *, dry_run: bool = False
    ) -> list[ArchivedFile]:
        """Deletes files older than `keep` seconds, and the oldest while the archive has more than `keep_bytes`; 0 for
        no limit. Those that one of the positions needs are kept. Returns the deleted ones; with `dry_run` it deletes
        none."""

    @abstractmethod
    async def unused(self, *, delete: bool = False) -> tuple[int, int]:
        """Returns how many objects nothing refers to, and their bytes: what commands have left that were killed more
        than a day ago. With `delete` it deletes them."""
