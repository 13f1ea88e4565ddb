"""The files that the jsonl sink has done with: their names, their compression, and which of them are kept."""

from __future__ import annotations

import calendar
import contextlib
import os
import re
import stat
import threading
import time
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import structlog
import zstandard

log = structlog.get_logger(__name__)

_CHUNK = 1 << 20
_LAST_NUMBER = 999_999
_STAMP = "%Y%m%dT%H%M%SZ"
_ENDS = {"none": "", "gzip": ".gz", "zstd": ".zst"}
_TEMPORARY = ".tmp"


@dataclass(frozen=True, slots=True)
class Rotation:
    """When a new file is begun, and what becomes of the old ones; see [sink] of type jsonl."""

    bytes: int = 0
    """0: whatever the size."""
    after: float = 0.0
    """Seconds; 0: however old."""
    keep: int = 0
    """0: all."""
    compression: Literal["none", "gzip", "zstd"] = "none"

    def __bool__(self) -> bool:
        """Whether it ever rotates."""
        return bool(self.bytes or self.after)


@dataclass(frozen=True, slots=True, order=True)
class Rotated:
    """One file by its name; the order is that in which they were written."""

    stamp: str
    number: int
    name: str
    end: str
    """Of its compression."""
    temporary: bool


class RotatedFiles:
    """The folder's files that were made from one path: out.jsonl -> out-20261122T101500Z-000001.jsonl[.gz]."""

    def __init__(self, path: str) -> None:
        self.folder, name = os.path.split(path)
        self._stem, self._suffix = os.path.splitext(name)
        ends = "|".join(re.escape(end) for end in _ENDS.values() if end)
        self._pattern = re.compile(
            rf"{re.escape(self._stem)}-([0-9]{{8}}T[0-9]{{6}}Z)-([0-9]{{6}}){re.escape(self._suffix)}"
            rf"({ends})?({re.escape(_TEMPORARY)})?"
        )
        self._last = "", 0

    def path(self, name: str) -> str:
        """Of a file in the folder."""
        return os.path.join(self.folder, name)

    def list(self) -> list[Rotated]:
        """What is there, the oldest first."""
        found = [self._pattern.fullmatch(name) for name in os.listdir(self.folder)]
        return sorted(
            Rotated(one[1], int(one[2]), one[0], one[3] or "", one[4] is not None) for one in found if one is not None
        )

    def learn(self) -> None:
        """Looks which names are taken, and removes the empty file that a crash in the middle of reserve() left."""
        for one in self.list():
            self._last = max(self._last, (one.stamp, one.number))
            if not one.end and not one.temporary and not os.path.getsize(self.path(one.name)):
                os.unlink(self.path(one.name))

    def reserve(self, now: float) -> str:
        """The path of a new, empty file: its name sorts behind all others, also after a step back of the clock."""
        while True:
            stamp, number = time.strftime(_STAMP, time.gmtime(now)), 1
            if stamp <= self._last[0]:
                stamp, number = self._last[0], self._last[1] + 1
            if number > _LAST_NUMBER:
                now = _seconds(stamp) + 1
                self._last = time.strftime(_STAMP, time.gmtime(now)), 0
                continue
            self._last = stamp, number
            path = self.path(f"{self._stem}-{stamp}-{number:06}{self._suffix}")
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640))
            except FileExistsError:
                continue
            return path

    def sync_folder(self) -> None:
        """A new, renamed or removed name is on disk once this returns."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class _Stopped(Exception):
    """The sink ends: the rest is done after the next start."""


class Housekeeper:
    """Compresses and removes rotated files in a thread of its own. What a crash left half done is done again; whatever
    goes wrong here is told, tried again with the next file, and stops no row."""

    def __init__(self, files: RotatedFiles, rotation: Rotation) -> None:
        self._files, self._rotation = files, rotation
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jsonl-rotated")
        self._stop = threading.Event()
        self._waiting: Future[None] | None = None

    def tidy(self) -> None:
        """Begins to; returns at once."""
        if self._waiting is None or self._waiting.running() or self._waiting.done():
            self._waiting = self._thread.submit(self._tidy)

    def close(self) -> None:
        """Ends soon, and returns then. Nothing else is to be called afterwards."""
        self._stop.set()
        self._thread.shutdown()

    def _tidy(self) -> None:
        try:
            files = self._files.list()
            for one in files:
                if one.temporary:
                    os.unlink(self._files.path(one.name))
            files = self._pruned([one for one in files if not one.temporary])
            if self._rotation.compression != "none":
                for one in files:
                    if not one.end:
                        self._compress(one.name)
        except _Stopped:
            pass
        except OSError as error:
            log.error("rotated files can't be tidied up", folder=self._files.folder, error=str(error))

    def _pruned(self, files: list[Rotated]) -> list[Rotated]:
        """Those that are kept; the others are removed, the oldest first."""
        keep = self._rotation.keep
        old = set(sorted({(one.stamp, one.number) for one in files})[:-keep]) if keep else set()
        gone = [one for one in files if (one.stamp, one.number) in old]
        for one in gone:
            os.unlink(self._files.path(one.name))
        if gone:
            log.info("rotated files were removed, as keep_files says", count=len(gone), last=gone[-1].name)
        return [one for one in files if one not in gone]

    def _compress(self, name: str) -> None:
        """The plain file is removed once the compressed one is on disk under its name."""
        path = self._files.path(name)
        whole = path + _ENDS[self._rotation.compression]
        temporary = whole + _TEMPORARY
        try:
            with open(path, "rb") as plain, open(temporary, "wb") as packed:
                info = os.fstat(plain.fileno())
                if not info.st_size:
                    # A name that the writer has reserved: it puts its file there at any moment, and that would be lost.
                    os.unlink(temporary)
                    return
                os.fchmod(packed.fileno(), stat.S_IMODE(info.st_mode))
                packer = self._packer()
                while chunk := plain.read(_CHUNK):
                    if self._stop.is_set():
                        raise _Stopped
                    packed.write(packer.compress(chunk))
                packed.write(packer.flush())
                packed.flush()
                os.fsync(packed.fileno())
            os.utime(temporary, ns=(info.st_atime_ns, info.st_mtime_ns))
            os.rename(temporary, whole)
            self._files.sync_folder()
            os.unlink(path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def _packer(self) -> Any:
        if self._rotation.compression == "gzip":
            return zlib.compressobj(6, zlib.DEFLATED, 31)  # 31: with gzip's head and checksum
        return zstandard.ZstdCompressor(level=3, write_checksum=True).compressobj()


def _seconds(stamp: str) -> int:
    return calendar.timegm(time.strptime(stamp, _STAMP))
