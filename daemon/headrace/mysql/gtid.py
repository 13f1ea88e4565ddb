"""GTID sets of MySQL: read, grown by one transaction at a time, printed and packed for the dump command."""

from __future__ import annotations

import re
import struct
import uuid

_ITEM = re.compile(r"([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})((?::\d+(?:-\d+)?)+)")


class GtidSet:
    """Intervals of transaction numbers a server uuid, both ends included, sorted and apart.

    Tagged GTIDs (MySQL 8.3 and later) are refused with ValueError.
    """

    def __init__(self, text: str = "") -> None:
        self._sets: dict[str, list[list[int]]] = {}
        self._text: str | None = None
        for item in filter(None, (part.strip() for part in text.replace("\n", "").split(","))):
            match = _ITEM.fullmatch(item)
            if not match:
                raise ValueError(f"'{item}' is not a GTID set such as 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5")
            for interval in match[2][1:].split(":"):
                first, _, last = interval.partition("-")
                if int(first) < 1 or int(last or first) < int(first):
                    raise ValueError(f"'{interval}' is not an interval of transaction numbers")
                self._merge(match[1].lower(), int(first), int(last or first))

    def _merge(self, sid: str, first: int, last: int) -> None:
        self._text = None
        merged: list[list[int]] = []
        for low, high in sorted([*self._sets.get(sid, []), [first, last]]):
            if merged and low <= merged[-1][1] + 1:
                merged[-1][1] = max(merged[-1][1], high)
            else:
                merged.append([low, high])
        self._sets[sid] = merged

    def add(self, sid: str, gno: int) -> None:
        """Adds one transaction; the next in line, nearly every one, costs a comparison."""
        intervals = self._sets.get(sid)
        if intervals and intervals[-1][1] + 1 == gno:
            intervals[-1][1] = gno
            self._text = None
        else:
            self._merge(sid, gno, gno)

    def contains(self, other: GtidSet) -> bool:
        """Whether every transaction of `other` is in here."""
        return all(
            any(low <= a and b <= high for low, high in self._sets.get(sid, []))
            for sid, intervals in other._sets.items()
            for a, b in intervals
        )

    def __bool__(self) -> bool:
        return bool(self._sets)

    def __str__(self) -> str:
        if self._text is None:
            self._text = ",".join(
                sid + "".join(f":{a}-{b}" if a != b else f":{a}" for a, b in intervals)
                for sid, intervals in sorted(self._sets.items())
            )
        return self._text

    def pack(self) -> bytes:
        """For COM_BINLOG_DUMP_GTID: count; each uuid, interval count, intervals with the end excluded."""
        out = [struct.pack("<Q", len(self._sets))]
        for sid, intervals in sorted(self._sets.items()):
            out.append(uuid.UUID(sid).bytes + struct.pack("<Q", len(intervals)))
            out.extend(struct.pack("<QQ", a, b + 1) for a, b in intervals)
        return b"".join(out)

    @classmethod
    def unpack(cls, body: bytes) -> GtidSet:
        """From the body of a PREVIOUS_GTIDS event; ValueError for the tagged format and for what does not fit."""
        result = cls()
        (count,) = struct.unpack_from("<Q", body)
        if count >> 56:
            raise ValueError("the set holds tagged GTIDs")
        at = 8
        for _ in range(count):
            sid = str(uuid.UUID(bytes=body[at : at + 16]))
            (intervals,) = struct.unpack_from("<Q", body, at + 16)
            at += 24
            for _ in range(intervals):
                first, end = struct.unpack_from("<QQ", body, at)
                result._merge(sid, first, end - 1)
                at += 16
        return result
