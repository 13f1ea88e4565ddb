"""A file of lines: appended to, synced, and rotated between two lines."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import orjson
import structlog

from headrace import runtime
from headrace.adapters.jsonl.rotation import RotatedFiles
from headrace.errors import SinkError

log = structlog.get_logger(__name__)

_BLOCK = 64 * 1024
_AT_ONCE = 1 << 20
"""Bytes that are written between two checks whether we still may write."""


class LineFile:
    """The file and those it was rotated to. Used by one thread only; raises OSError and SinkError."""

    def __init__(
        self,
        path: str,
        descriptor: int,
        rotate_bytes: int = 0,
        keep_files: int = 0,
        clock: Callable[[], float] = runtime.now,
    ) -> None:
        """`path` must have no symbolic link; `descriptor` is open for reading and appending. With 0 `rotate_bytes`
        never rotates, and `keep_files` keeps all."""
        self.path, self.descriptor = path, descriptor
        self._rotate_bytes, self._keep_files, self._clock = rotate_bytes, keep_files, clock
        self._files = RotatedFiles(path)
        self._size = 0
        self._identity = 0, 0

    def begin(self) -> None:
        """Repairs what a crash left: an incomplete line, and files that were not removed yet."""
        self._adopt()
        self._files.prune(self._keep_files)
        self._files.sync_folder()

    def _adopt(self) -> None:
        self._fix_tail()
        info = os.fstat(self.descriptor)
        self._size, self._identity = info.st_size, (info.st_dev, info.st_ino)

    def _fix_tail(self) -> None:
        """Removes an incomplete last line: its rows were never confirmed and are sent again. A complete line without a
        line end, as other programs may have written it, gets one."""
        size = at = os.fstat(self.descriptor).st_size
        tail = b""
        while at and b"\n" not in tail:
            at = max(0, at - _BLOCK)
            tail = os.pread(self.descriptor, min(_BLOCK, size - len(tail) - at), at) + tail
        tail = tail[tail.rfind(b"\n") + 1 :]
        if not tail:
            return
        try:
            orjson.loads(tail)
        except orjson.JSONDecodeError:
            os.ftruncate(self.descriptor, size - len(tail))
            log.warning("an incomplete line left by a crash was removed", file=self.path, bytes=len(tail))
        else:
            os.write(self.descriptor, b"\n")
        runtime.sync(self.descriptor)

    def write(self, data: bytes | bytearray, check: Callable[[], None]) -> None:
        """Appends whole lines; they are on disk when it returns. `check` raises if nothing more may be written."""
        self._follow()
        done = 0
        while done < len(data):
            end = self._next_end(data, done)
            self._append(data, done, end, check)
            done = end
        runtime.sync(self.descriptor, metadata=False)
        if not os.fstat(self.descriptor).st_nlink:
            raise SinkError(f"{self.path} was removed while it was written")

    def _next_end(self, data: bytes | bytearray, done: int) -> int:
        """Returns up to where the present file takes the lines; rotates first if due."""
        if not (limit := self._rotate_bytes) or self._size + len(data) - done <= limit:
            return len(data)
        if end := data.rfind(b"\n", done, max(done, done + limit - self._size)) + 1:
            return end
        if self._size:
            self._rotate()
            return self._next_end(data, done)
        return data.index(b"\n", done) + 1  # a line that is larger than a file gets its own

    def _append(self, data: bytes | bytearray, done: int, end: int, check: Callable[[], None]) -> None:
        size, view = self._size, memoryview(data)[done:end]
        while view:
            check()
            try:
                written = os.write(self.descriptor, view[:_AT_ONCE])
            except OSError:
                self._take_back(size)
                raise
            self._size += written
            view = view[written:]

    def _take_back(self, size: int) -> None:
        """Removes an incomplete line after a full disk, unless somebody else has written meanwhile."""
        with contextlib.suppress(OSError):
            if os.fstat(self.descriptor).st_size == self._size:
                os.ftruncate(self.descriptor, size)
                self._size = size

    def _follow(self) -> None:
        """Begins a new file if another program, such as logrotate, has moved ours away."""
        try:
            info = os.stat(self.path)
        except FileNotFoundError:
            info = None
        if info is not None and (info.st_dev, info.st_ino) == self._identity:
            return
        log.info("the file was moved away; a new one is begun", file=self.path)
        self._replace(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640))
        self._files.sync_folder()

    def _rotate(self) -> None:
        runtime.sync(self.descriptor, metadata=False)
        os.rename(self.path, self._files.next_path(self._clock()))
        self._files.sync_folder()
        self._replace(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o640))
        self._files.sync_folder()
        self._files.prune(self._keep_files)

    def _replace(self, descriptor: int) -> None:
        old, self.descriptor = self.descriptor, descriptor
        os.close(old)
        self._adopt()

    def close(self) -> None:
        """Closes the file. Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
