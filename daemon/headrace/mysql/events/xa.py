"""XA transactions: their names in events, and the rows of groups that wait for their end, kept on disk: a rollback may
follow hours later."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import SpooledTemporaryFile

from headrace.errors import NotUnderstood
from headrace.model import OpenXa
from headrace.mysql.events.inner import InnerEvents

_HEADER = struct.Struct("<IBIIIH").pack
_FORM = (1 << 32) - 1
"""The format number of a name has 32 bits; it is signed in events, unsigned in statements."""
_PIECE = 1 << 20
_IN_MEMORY = 32 << 10
"""Bytes up to which a transaction needs no file."""
_STATEMENT = re.compile(
    rb"\s*XA\s+(COMMIT|ROLLBACK)\s+X'([0-9a-fA-F]*)'\s*,\s*X'([0-9a-fA-F]*)'\s*,\s*(-?\d+)\s*(ONE\s+PHASE)?\s*", re.I
)


def xid_of_prepare(data: bytes, at: int, stop: int) -> tuple[bool, str]:
    """Returns whether it commits in one phase, and the xid as `format:gtrid:bqual`, of an XA_PREPARE event (MySQL's
    XA_prepare_event): one byte, then three numbers of 4 bytes and the identifier."""
    one_phase, form, gtrid, bqual = struct.unpack_from("<BiII", data, at)
    raw = data[at + 13 : at + 13 + gtrid + bqual]
    if len(raw) != gtrid + bqual or at + 13 + len(raw) > stop:
        raise ValueError("an XA identifier ends beyond its event")
    return bool(one_phase), f"{form & _FORM}:{raw[:gtrid].hex()}:{raw[gtrid:].hex()}"


def xid_of_statement(text: bytes) -> tuple[bool, str]:
    """Returns (is it COMMIT, the xid) of the XA COMMIT or XA ROLLBACK that a server writes. Raises ValueError for
    another."""
    match = _STATEMENT.fullmatch(text)
    if not match:
        raise ValueError(f"'{text[:80].decode('utf-8', 'replace')}' is not understood")
    gtrid, bqual = match[2].decode().lower(), match[3].decode().lower()
    return match[1].upper() == b"COMMIT", f"{int(match[4]) & _FORM}:{gtrid}:{bqual}"


@dataclass(slots=True)
class _Held:
    """One transaction's events. `file` is None until it is needed."""

    where: OpenXa
    file: SpooledTemporaryFile[bytes] | None = None
    size: int = 0
    savepoints: list[tuple[str, int]] = field(default_factory=list)
    """Names, and how many bytes are before each; oldest first."""


class GroupSpool:
    """The events of groups whose rows wait for their end: undecided XA transactions, and what follows a SAVEPOINT.
    `limit` is the maximum of their total bytes."""

    def __init__(self, folder: Path | None, limit: int) -> None:
        self._folder, self._limit, self._used = folder, limit, 0
        self._current: _Held | None = None
        self._prepared: dict[str, _Held] = {}
        self.open: tuple[OpenXa, ...] = ()
        """The prepared ones, oldest first, in the form of positions."""

    def begin(self, file: str, offset: int, gtid: str) -> None:
        """Begins a group at `file`:`offset` whose events wait."""
        self.drop(None)
        self._current = _Held(OpenXa("", file, offset, gtid))

    def add(self, when: int, kind: int, body: bytes) -> None:
        """Keeps an event of the group. Raises NotUnderstood if there is too much."""
        for _ in self.add_large(when, kind, body, 0, len(body)):
            pass

    def add_large(self, when: int, kind: int, data: bytes, at: int, stop: int) -> Iterator[None]:
        """Does the same, a piece at each next(). The body is from `at` to `stop`."""
        held = self._current
        if held is None:
            raise ValueError("an event that is to wait is outside of a group")
        size = 19 + stop - at
        if self._used + size > self._limit:
            raise NotUnderstood(
                f"the rows of XA transactions that are not decided, and of those after a SAVEPOINT, take more than "
                f"{self._limit} bytes",
                remedy="decide the former (XA RECOVER; XA COMMIT or XA ROLLBACK), or raise [source] max_spool",
            )
        if held.file is None:
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
            held.file = SpooledTemporaryFile(  # noqa: SIM115  (closed when the transaction is decided)
                _IN_MEMORY, dir=str(self._folder) if self._folder else None
            )
        held.file.write(_HEADER(when, kind, 0, size, 0, 0))
        for piece in range(at, stop, _PIECE):
            held.file.write(data[piece : min(stop, piece + _PIECE)])
            yield
        held.size += size
        self._used += size

    def mark(self, savepoint: str) -> None:
        """Sets a savepoint; replaces one of the same name."""
        if (held := self._current) is not None:
            held.savepoints = [known for known in held.savepoints if known[0] != savepoint]
            held.savepoints.append((savepoint, held.size))

    def back_to(self, savepoint: str) -> bool:
        """Drops what follows a savepoint, later savepoints included; returns whether it exists."""
        held = self._current
        names = [name for name, _ in held.savepoints] if held is not None else []
        if held is None or savepoint not in names:
            return False
        del held.savepoints[names.index(savepoint) + 1 :]
        size = held.savepoints[-1][1]
        self._used -= held.size - size
        held.size = size
        if held.file is not None:
            held.file.seek(size)
            held.file.truncate()
        return True

    def prepare(self, xid: str) -> None:
        """Ends the group with XA PREPARE."""
        held, self._current = self._current, None
        if held is None:
            raise ValueError("XA PREPARE is outside of an XA transaction")
        if xid in self._prepared:
            self._release(self._prepared[xid])
        held.where = OpenXa(xid, held.where.file, held.where.offset, held.where.gtid)
        self._prepared[xid] = held
        self._list()

    def knows(self, xid: str) -> bool:
        """Returns whether the transaction is prepared here."""
        return xid in self._prepared

    def events(self, xid: str | None) -> InnerEvents | None:
        """Returns a transaction's events from its beginning; None if it changed nothing that is captured. `xid` None:
        the present group, which commits in one phase."""
        held = self._current if xid is None else self._prepared[xid]
        if held is None or held.file is None:
            return None
        held.file.seek(0)
        return InnerEvents(held.file.read, held.size, lambda: None)

    def drop(self, xid: str | None) -> None:
        """Removes a decided transaction: its rows are given out or not wanted. `xid` None: the present group."""
        if xid is None:
            held, self._current = self._current, None
        else:
            held = self._prepared.pop(xid, None)
        if held is not None:
            self._release(held)
            self._list()

    def close(self) -> None:
        """Closes all files; their content is read again from the binlog."""
        for xid in (None, *self._prepared):
            self.drop(xid)

    def _release(self, held: _Held) -> None:
        self._used -= held.size
        if held.file is not None:
            held.file.close()

    def _list(self) -> None:
        self.open = tuple(held.where for held in self._prepared.values())
