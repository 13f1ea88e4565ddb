"""When binlog files were begun and what was executed before them: read once a file, by a short dump."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from headrace.mysql.archive.packets import OlderFiles
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.position.scan import BinlogScan, Probe
from headrace.settings.destination import SourceSettings

_KEPT = 1024
"""Number of cached heads; a binary search needs few of them, however many files there are."""


@dataclass(frozen=True, slots=True)
class FileHead:
    """The beginning of a binlog file. `begins` is in seconds since 1970 on the server's clock; `gtids` is what was
    executed before the file, None if it does not say (MariaDB, and MySQL without GTID events)."""

    begins: int
    gtids: GtidSet | None


class _Head(BinlogScan):
    """Reads up to the first event that is not the file's own."""

    def on_group(self, start: int) -> None:
        self.done = True

    def on_event(self, start: int) -> None:
        if start > 4:
            self.done = True


class FileHeads:
    """A cache of the heads of one source's files: they never change, so repeated callers keep this object."""

    def __init__(self, source: SourceSettings, older: OlderFiles | None = None) -> None:
        self._source, self._older = source, older
        self._known: OrderedDict[tuple[str, str], tuple[int, FileHead]] = OrderedDict()
        self._probe = Probe(source)

    async def get(self, server_uuid: str, file: str, size: int) -> FileHead:
        """Returns the head of a file that has `size` bytes now. A file that became smaller is another one under the
        same name (RESET). Raises SourceError and its subclasses: PositionLost for a file that can't be opened."""
        if self._older is not None and (archived := self._older.file(file)) is not None:
            has_gtids = archived.gtids and ":" in archived.gtids
            return FileHead(archived.begun, GtidSet(archived.gtids) if has_gtids else None)
        key = server_uuid, file
        known = self._known.pop(key, None)
        if known is None or known[0] > size:
            head = _Head(file)
            await self._probe.run(head)
            known = size, FileHead(head.begun, head.gtids)
        self._known[key] = size, known[1]
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return known[1]
