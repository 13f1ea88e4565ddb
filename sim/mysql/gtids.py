"""Sets of GTIDs (MySQL manual, "GTID Format and Storage"; the binary form is that of PREVIOUS_GTIDS_LOG_EVENT)."""

from __future__ import annotations

import struct

_PAIR = struct.Struct("<QQ")


class Gtids:
    """Transactions by the uuid of their server: sorted, disjoint intervals of numbers, both ends included."""

    def __init__(self, text: str = "") -> None:
        """Reads `uuid:1-5:7, uuid:...`. Raises ValueError."""
        self._sets: dict[str, list[tuple[int, int]]] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            uuid, *intervals = part.split(":")
            for interval in intervals:
                low, _, high = interval.partition("-")
                self._include(uuid.strip().lower(), int(low), int(high or low))

    def _include(self, uuid: str, low: int, high: int) -> None:
        merged: list[tuple[int, int]] = []
        for first, last in sorted([*self._sets.get(uuid, ()), (low, high)]):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = merged[-1][0], max(merged[-1][1], last)
            else:
                merged.append((first, last))
        self._sets[uuid] = merged

    def add(self, uuid: str, number: int) -> None:
        """Adds one transaction."""
        known = self._sets.get(uuid)
        if known and known[-1][1] + 1 == number:
            known[-1] = known[-1][0], number
        else:
            self._include(uuid, number, number)

    def has(self, uuid: str, number: int) -> bool:
        """Returns whether it has a transaction."""
        return any(low <= number <= high for low, high in self._sets.get(uuid, ()))

    def next_number(self, uuid: str) -> int:
        """Returns the lowest number of a server that is free, which the server gives to its next transaction."""
        known = self._sets.get(uuid)
        return known[0][1] + 1 if known and known[0][0] == 1 else 1

    def copy(self) -> Gtids:
        """Returns an independent copy."""
        made = Gtids()
        made._sets = {uuid: list(known) for uuid, known in self._sets.items()}
        return made

    def plus(self, other: Gtids) -> Gtids:
        """Returns the union."""
        made = self.copy()
        for uuid, known in other._sets.items():
            for low, high in known:
                made._include(uuid, low, high)
        return made

    def minus(self, other: Gtids) -> Gtids:
        """Returns what the other set lacks."""
        made = Gtids()
        for uuid, known in self._sets.items():
            left = list(known)
            for low, high in other._sets.get(uuid, ()):
                rest: list[tuple[int, int]] = []
                for first, last in left:
                    if first < low:
                        rest.append((first, min(last, low - 1)))
                    if last > high:
                        rest.append((max(first, high + 1), last))
                left = rest
            if left:
                made._sets[uuid] = left
        return made

    def within(self, other: Gtids) -> bool:
        """Returns whether the other set has all of it."""
        return not self.minus(other)

    def of(self, uuid: str) -> Gtids:
        """Returns the part of one server."""
        made = Gtids()
        if uuid in self._sets:
            made._sets[uuid] = list(self._sets[uuid])
        return made

    def __bool__(self) -> bool:
        return any(self._sets.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gtids) and self._sets == other._sets

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        """Returns the text as the server prints it."""
        parts = []
        for uuid in sorted(self._sets):
            intervals = (f"{low}-{high}" if high > low else str(low) for low, high in self._sets[uuid])
            parts.append(":".join((uuid, *intervals)))
        return ",\n".join(parts)

    @property
    def line(self) -> str:
        """Returns the text in one line, as errors have it."""
        return str(self).replace("\n", " ")

    def encode(self) -> bytes:
        """Returns the binary form: a count of uuids, each followed by its intervals, whose ends are excluded."""
        made = bytearray(struct.pack("<Q", len(self._sets)))
        for uuid in sorted(self._sets):
            known = self._sets[uuid]
            made += bytes.fromhex(uuid.replace("-", "")) + struct.pack("<Q", len(known))
            for low, high in known:
                made += _PAIR.pack(low, high + 1)
        return bytes(made)

    @classmethod
    def decode(cls, data: bytes) -> Gtids:
        """Reads the binary form. Raises struct.error or ValueError."""
        made, at = cls(), 8
        (count,) = struct.unpack_from("<Q", data)
        for _ in range(count):
            raw = data[at : at + 16].hex()
            (intervals,) = struct.unpack_from("<Q", data, at + 16)
            at += 24
            for _ in range(intervals):
                low, end = _PAIR.unpack_from(data, at)
                made._include(uuid_text(raw), low, end - 1)
                at += 16
        return made


def uuid_text(digits: str) -> str:
    """Returns 32 hex digits as a uuid."""
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
