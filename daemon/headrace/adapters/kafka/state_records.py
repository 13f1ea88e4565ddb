"""A destination's state in the compacted topic: the records of a change, and their meaning when read back.

Keys, the newest record of each counts:
    D/position        the head: epoch, version, position, and which pieces of schema history are valid
    D/schema/N        pieces of the schema history, numbered without end; a list of entries may span several pieces.
                      Void pieces get a record without a value, in the transaction that makes them void
    D/history/SLOT    position changes: the very first of each actor, and a ring of its last ones"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace import runtime
from headrace.ports.state import HistoryEntry, StateChange
from headrace.ports.state_records import BrokenRecord, Head, join, read_entry, split

Record = tuple[bytes, bytes | None]

HISTORY_LENGTH = 500
"""Position changes that are kept for each actor besides its very first; checkpoints come at most once a minute."""
PIECE_BYTES = 700_000
"""Bytes of one piece of a longer list of schema entries; a piece stays below the usual max.message.bytes."""


def head_record(destination: str, head: Head) -> Record:
    """Returns the record of the head alone, as when an epoch begins."""
    return f"{destination}/position".encode(), head.encode()


def change_records(destination: str, head: Head, change: StateChange) -> tuple[Head, list[Record]]:
    """Returns the head after a change, and the records to write for it in one transaction."""
    void, entries = change.in_force()
    pieces = split(entries, PIECE_BYTES)
    records: list[Record] = [(_piece(destination, number), piece) for number, piece in enumerate(pieces, head.pieces)]
    if void:
        records += [(_piece(destination, number), None) for number in range(head.first_piece, head.pieces)]
    head = head.moved(change, len(pieces), _now_us(), void=void)
    if head.history_due():
        head, slot = head.noted(HISTORY_LENGTH)
        records.append((f"{destination}/history/{slot}".encode(), head.encode_entry()))
    return head, [*records, head_record(destination, head)]


@dataclass(slots=True)
class Content:
    """All records of one destination, as they are read one after the other. They are parsed when needed, and raise
    BrokenRecord if they are invalid."""

    destination: str
    end: int = 0
    """The offset that was read to."""
    records: int = 0
    """How many were the destination's own."""
    _newest: dict[str, bytes] = field(default_factory=dict)
    """By key, without the destination's name."""

    def take(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Takes one more record; skips those of other destinations."""
        if key is None:
            return
        name, _, rest = key.decode(errors="replace").partition("/")
        if name == self.destination:
            self.records += 1
            if value is None:
                self._newest.pop(rest, None)
            else:
                self._newest[rest] = value

    @property
    def head(self) -> Head:
        """Returns the head that the next change builds on."""
        newest = self._newest.get("position")
        return Head() if newest is None else Head.decode(newest, f"{self.destination}/position")

    def schema_entries(self) -> list[dict[str, Any]]:
        """Returns the schema history in the order it was written."""
        head = self.head
        names = [f"schema/{number}" for number in range(head.first_piece, head.pieces)]
        for name in names:
            if name not in self._newest:
                raise BrokenRecord(f"{self.destination}/{name}", "it is not there")
        return join((f"{self.destination}/{name}", self._newest[name]) for name in names)

    def history(self) -> list[HistoryEntry]:
        """Returns the position changes that are kept, newest first."""
        found = [
            read_entry(value, f"{self.destination}/{name}")
            for name, value in self._newest.items()
            if name.startswith("history/")
        ]
        return sorted(found, key=lambda entry: (entry.version, entry.changed_us), reverse=True)


def _piece(destination: str, number: int) -> bytes:
    return f"{destination}/schema/{number}".encode()


def _now_us() -> int:
    return runtime.now_us()
