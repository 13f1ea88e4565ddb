"""What an archive has: lines of binlog files, the files of each, and the segments of each file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.errors import ArchiveError

VERSION = 1
"""The version of the stored form."""
IMPORTED = "import"
"""The address of a line whose files were all imported: what its server says of itself is not known."""
TOGETHER = 16
"""Segments that are put together at once."""
_SMALL = 8 << 20
"""Bytes of the file that they may have in all."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a binlog file, from offset `start` to `end`, stored as one object of zstd frames."""

    object: str
    start: int
    end: int
    frames: tuple[tuple[int, int], ...]
    """Of each frame its bytes in the file, and its bytes as stored. Each ends where an event ends."""
    sha256: str
    """Of the object, in hex."""
    first_us: int = 0
    """Commit time of the first transaction that begins in it, in microseconds since 1970 UTC; 0 if none does."""
    last_us: int = 0
    """The highest commit time of those."""
    gtids: str = ""
    """Their GTIDs as a set of MySQL, or the last one of each of MariaDB's domains."""
    tables: tuple[str, ...] | None = ()
    """Tables with rows in it, as `schema.table`; None if there are too many, or they can't be seen."""
    last_event: int = 0
    """Offset of the last event that begins in it."""
    level: int = 0
    """How many times its bytes were put together; see BinlogFile.small()."""

    @property
    def stored(self) -> int:
        """Returns the bytes of the object."""
        return sum(stored for _, stored in self.frames)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Segment:
        """Reads the stored form."""
        tables = raw["tables"]
        return cls(
            **{
                **raw,
                "frames": tuple((int(a), int(b)) for a, b in raw["frames"]),
                "tables": None if tables is None else tuple(tables),
            }
        )


@dataclass(slots=True)
class BinlogFile:
    """A binlog file, or as much of it as is archived: everything from its begin to `size`."""

    name: str
    begun: int = 0
    """When the server began it, in seconds since 1970."""
    gtids: str = ""
    """What the server had executed before it, as a set of MySQL; "" if it does not say."""
    size: int = 0
    stored: int = 0
    """Bytes of its objects."""
    first_us: int = 0
    last_us: int = 0
    index: str = ""
    """The object that lists its segments; "" while it grows."""
    segments: list[Segment] = field(default_factory=list)
    """Empty once `index` is set."""

    @property
    def closed(self) -> bool:
        """Returns whether the archive has all of it."""
        return bool(self.index)

    def add(self, segment: Segment) -> None:
        """Adds the next segment. Raises ArchiveError if it is not the next one."""
        if segment.start != self.size or self.closed:
            raise ArchiveError(f"the archive's segment {segment.object} does not continue {self.name}:{self.size}")
        self.segments.append(segment)
        self.size, self.stored = segment.end, self.stored + segment.stored
        self.first_us = self.first_us or segment.first_us
        self.last_us = max(self.last_us, segment.last_us)

    def small(self) -> list[Segment]:
        """Returns the segments at the end that are to be put together; [] if there are none. As these have the same
        level, and become one of the next, each byte is put together a few times only, whatever their sizes are."""
        last = self.segments[-TOGETHER:]
        same = len(last) == TOGETHER and all(one.level == last[0].level for one in last)
        return last if same and last[-1].end - last[0].start <= _SMALL else []

    def put_together(self, segment: Segment) -> None:
        """Replaces the last segments by the one that has the same bytes. Raises ArchiveError if there are none."""
        first = next((i for i, one in enumerate(self.segments) if one.start == segment.start), None)
        if first is None or segment.end != self.size:
            raise ArchiveError(f"the archive's segment {segment.object} has not the bytes of segments of {self.name}")
        self.stored += segment.stored - sum(one.stored for one in self.segments[first:])
        self.segments[first:] = [segment]

    def close(self, index: str) -> None:
        """Records that nothing follows; `index` is the object that lists the segments."""
        self.index, self.segments = index, []


@dataclass(slots=True)
class Line:
    """Successive binlog files of one server, without a gap. Another server, or another history of the same server,
    begins another line."""

    number: int
    server: str
    """The server's identity, as positions have it."""
    version: str
    mariadb: bool
    gtid_mode: bool
    lower_case_table_names: int
    address: str
    """`host:port` that it was read at, or IMPORTED."""
    files: list[BinlogFile] = field(default_factory=list)

    def index_of(self, file: str) -> int | None:
        """Returns the index of a file; None if it is not archived."""
        return next((i for i, one in enumerate(self.files) if one.name == file), None)

    def __str__(self) -> str:
        return "line {}, which ends at {}:{}".format(self.number, *self.end)

    @property
    def folder(self) -> str:
        """Returns the folder of its objects."""
        return f"{self.number:04d}"

    @property
    def end(self) -> tuple[str, int]:
        """Returns file and offset up to which it is archived; ("", 0) if nothing is."""
        return (self.files[-1].name, self.files[-1].size) if self.files else ("", 0)


@dataclass(slots=True)
class Index:
    """The state of an archive, which operations change one after the other."""

    epoch: int = 0
    """Counts its writers: only the last one may write."""
    writer: str = ""
    """Its name: the daemon's node, or one that ends with COMMAND."""
    lines: list[Line] = field(default_factory=list)
    """Oldest first."""
    highest: int = 0
    """The highest number that a line has had: numbers name folders, so none is given twice."""

    @property
    def next_number(self) -> int:
        """Returns the number of the next line."""
        return self.highest + 1

    def apply(self, operation: dict[str, Any]) -> None:
        """Applies one operation. Raises ArchiveError for one that does not fit, or is unknown."""
        raw = dict(operation)
        match raw.pop("op"):
            case "claim":
                self.epoch, self.writer = int(raw["epoch"]), str(raw["by"])
            case "line":
                continues = raw.pop("continues", None)
                former = next((one for one in self.lines if one.number == continues), None)
                self.highest = max(self.highest, raw["number"])
                self.lines.append(Line(**raw, files=former.files if former is not None else []))
                self.lines = [one for one in self.lines if one is not former]
            case "file":
                self.lines[-1].files.append(BinlogFile(**raw))
            case "segment":
                self.lines[-1].files[-1].add(Segment.from_dict(raw))
            case "together":
                self.lines[-1].files[-1].put_together(Segment.from_dict(raw))
            case "close":
                self.lines[-1].files[-1].close(raw["index"])
            case "prune":
                line = next(one for one in self.lines if one.number == raw["line"])
                line.files = [one for one in line.files if one.name not in raw["files"]]
                self.lines = [one for one in self.lines if one.files or one is self.lines[-1]]
            case "import":
                line = Line(**{**raw["line"], "files": [BinlogFile(**file) for file in raw["line"]["files"]]})
                self.highest = max(self.highest, line.number)
                self._insert(line, raw["before"], raw["after"])
            case unknown:
                raise ArchiveError(
                    f"the archive has an operation '{unknown}', which this version does not know",
                    remedy="install the version of headrace that wrote the archive, or a later one",
                )

    def _insert(self, new: Line, before: int | None, after: int | None) -> None:
        """Adds files from elsewhere: between the lines with these numbers, which they join, or as a line before the
        last, which may grow."""
        lines = {one.number: one for one in self.lines}
        if before is not None and lines[before].files[-1].name == new.files[0].name:
            lines[before].files.pop()  # a part of the file
        if after is not None:
            lines[after].files[:0] = [*(lines[before].files if before is not None else ()), *new.files]
            if before is not None:
                self.lines.remove(lines[before])
        elif before is not None:
            lines[before].files += new.files
        else:
            self.lines.insert(max(0, len(self.lines) - 1), new)

    def to_dict(self) -> dict[str, Any]:
        """Returns the stored form: JSON types only."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Index:
        """Reads the stored form. Raises ArchiveError for a later version."""
        if raw.get("version") != VERSION:
            raise ArchiveError(
                f"the archive's index has version {raw.get('version')}, and this version of headrace reads {VERSION}",
                remedy="install the version of headrace that wrote the archive, or a later one",
            )
        lines = []
        for line in raw["lines"]:
            files = [
                BinlogFile(**{**file, "segments": [Segment.from_dict(one) for one in file["segments"]]})
                for file in line["files"]
            ]
            lines.append(Line(**{**line, "files": files}))
        highest = max([int(raw.get("highest", 0)), *(line.number for line in lines)])
        return cls(int(raw["epoch"]), str(raw["writer"]), lines, highest)


def segment_operation(segment: Segment, op: str = "segment") -> dict[str, Any]:
    """Returns the operation that adds a segment; with `together`, in the place of the last ones."""
    return {"op": op, **asdict(segment)}
