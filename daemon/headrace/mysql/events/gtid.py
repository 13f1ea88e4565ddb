"""GTID sets of MySQL: read, extended by one transaction at a time, printed and packed for the dump command."""

from __future__ import annotations

import re
import struct
import uuid

_SID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_INTERVAL = re.compile(r"(\d+)(?:-(\d+))?")
_TAG = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_TAGGED_FORMAT = 1


class GtidSet:
    """Sorted, disjoint intervals of transaction numbers for each source, both ends included.

    A source is a server uuid, or `uuid:tag` for transactions with a tag (MySQL 8.3 and later)."""

    def __init__(self, text: str = "") -> None:
        self._sets: dict[str, list[list[int]]] = {}
        self._text: str | None = None
        for item in filter(None, (part.strip() for part in text.replace("\n", "").split(","))):
            self._read(item)

    def _read(self, item: str) -> None:
        sid, *parts = item.split(":")
        if not _SID.fullmatch(sid) or not parts:
            raise ValueError(f"'{item}' is not a GTID set such as 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5")
        source, open_tag = sid.lower(), False
        for part in (part.strip() for part in parts):
            interval = _INTERVAL.fullmatch(part)
            if interval:
                first, last = int(interval[1]), int(interval[2] or interval[1])
                if first < 1 or last < first:
                    raise ValueError(f"'{part}' is not an interval of transaction numbers")
                self._merge(source, first, last)
                open_tag = False
            elif _TAG.fullmatch(part) and not open_tag:
                source, open_tag = f"{sid.lower()}:{part.lower()}", True
            else:
                raise ValueError(f"'{part}' is neither an interval of transaction numbers nor a tag")
        if open_tag:
            raise ValueError(f"'{item}' ends with a tag that has no transaction numbers")

    def _merge(self, source: str, first: int, last: int) -> None:
        self._text = None
        merged: list[list[int]] = []
        for low, high in sorted([*self._sets.get(source, []), [first, last]]):
            if merged and low <= merged[-1][1] + 1:
                merged[-1][1] = max(merged[-1][1], high)
            else:
                merged.append([low, high])
        self._sets[source] = merged

    def add(self, source: str, gno: int) -> None:
        """Adds one transaction; the next in sequence, nearly every one, costs one comparison."""
        intervals = self._sets.get(source)
        if intervals and intervals[-1][1] + 1 == gno:
            intervals[-1][1] = gno
            self._text = None
        else:
            self._merge(source, gno, gno)

    def add_range(self, source: str, first: int, last: int) -> None:
        """Adds consecutive transactions."""
        self.add(source, first)
        if last > first:
            intervals = self._sets[source]
            if intervals[-1][1] == first:
                intervals[-1][1] = last
            else:
                self._merge(source, first, last)

    def minus(self, other: GtidSet) -> GtidSet:
        """Returns the transactions that are in here and not in `other`."""
        result = GtidSet()
        for source, intervals in self._sets.items():
            taken = other._sets.get(source, [])
            left: list[list[int]] = []
            for low, high in intervals:
                for a, b in taken:
                    if b < low or a > high:
                        continue
                    if a > low:
                        left.append([low, a - 1])
                    low = b + 1
                    if low > high:
                        break
                if low <= high:
                    left.append([low, high])
            if left:
                result._sets[source] = left
        return result

    def common(self, other: GtidSet) -> GtidSet:
        """Returns the transactions that are in both."""
        return self.minus(self.minus(other))

    def plus(self, other: GtidSet) -> GtidSet:
        """Returns the transactions that are in either."""
        result = GtidSet(str(self))
        for source, intervals in other._sets.items():
            for low, high in intervals:
                result._merge(source, low, high)
        return result

    def forget_oldest(self, limit: int) -> None:
        """Keeps at most `limit` intervals, those with the highest numbers of each source."""
        if self.intervals <= limit:
            return
        while self.intervals > limit:
            longest = max(self._sets.values(), key=len)
            del longest[0]
            self._text = None
        self._sets = {source: intervals for source, intervals in self._sets.items() if intervals}

    @property
    def count(self) -> int:
        """Returns the number of transactions."""
        return sum(high - low + 1 for intervals in self._sets.values() for low, high in intervals)

    @property
    def intervals(self) -> int:
        """Returns the number of intervals, which determines the length of its text."""
        return sum(map(len, self._sets.values()))

    def contains(self, other: GtidSet) -> bool:
        """Returns whether every transaction of `other` is in here."""
        return all(
            any(low <= a and b <= high for low, high in self._sets.get(source, []))
            for source, intervals in other._sets.items()
            for a, b in intervals
        )

    def __bool__(self) -> bool:
        return bool(self._sets)

    def __str__(self) -> str:
        if self._text is None:
            groups: dict[str, str] = {}
            for source, intervals in sorted(self._sets.items()):  # a uuid sorts before the same with a tag
                sid, _, tag = source.partition(":")
                text = "".join(f":{a}-{b}" if a != b else f":{a}" for a, b in intervals)
                groups[sid] = groups.get(sid, sid) + (f":{tag}" if tag else "") + text
            self._text = ",".join(groups.values())
        return self._text

    def pack(self) -> bytes:
        """Returns the form for COM_BINLOG_DUMP_GTID: count; each uuid, interval count, intervals with the end excluded.
        With tags, the count is between two bytes that name the format, and each uuid is followed by its tag."""
        tagged = any(":" in source for source in self._sets)
        count = len(self._sets)
        out = [struct.pack("<Q", count if not tagged else count << 8 | _TAGGED_FORMAT | _TAGGED_FORMAT << 56)]
        for source, intervals in sorted(self._sets.items()):
            sid, _, tag = source.partition(":")
            out.append(uuid.UUID(sid).bytes)
            if tagged:
                out.append(bytes([len(tag) << 1]) + tag.encode())
            out.append(struct.pack("<Q", len(intervals)))
            out.extend(struct.pack("<QQ", a, b + 1) for a, b in intervals)
        return b"".join(out)

    @classmethod
    def unpack(cls, body: bytes) -> GtidSet:
        """Reads the body of a PREVIOUS_GTIDS event. Raises ValueError or struct.error for invalid bytes."""
        result = cls()
        (count,) = struct.unpack_from("<Q", body)
        form = count >> 56
        if form > _TAGGED_FORMAT:
            raise ValueError(f"the set has the unknown format {form}")
        if form:
            count = count >> 8 & 0xFFFFFFFFFFFF
        at = 8
        for _ in range(count):
            source = str(uuid.UUID(bytes=body[at : at + 16]))
            at += 16
            if form:
                size = body[at] >> 1  # a varint; tags are short, so it has one byte
                tag = body[at + 1 : at + 1 + size].decode("ascii")
                source, at = f"{source}:{tag}" if tag else source, at + 1 + size
            (intervals,) = struct.unpack_from("<Q", body, at)
            at += 8
            for _ in range(intervals):
                first, end = struct.unpack_from("<QQ", body, at)
                if not 0 < first < end:
                    raise ValueError(f"{first}..{end} is no interval of transaction numbers")
                result._merge(source, first, end - 1)
                at += 16
        return result
