"""Messages as lines of a file or of standard output; confirmed once the file is synced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Callable
from concurrent.futures import Future

from headrace import runtime
from headrace.adapters.jsonl.file import LineFile
from headrace.adapters.jsonl.pipe import LinePipe
from headrace.errors import SinkError, SinkRejected
from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.ports.finding import Finding, wrong
from headrace.ports.sink import Sink

_WRITE_LIMIT = 60.0
"""Maximum seconds for a write to a file and its fsync before the sink counts as failed. A pipe has no limit: a reader
may be slow."""
_CLOSE_LIMIT = 5.0
"""Seconds that the end of a sink waits for a write that has begun."""
_PIECE = 4 << 20
"""Bytes that are copied at once."""
_HANGING: dict[str, Future[None]] = {}
"""By path: sinks whose last write has not ended in time. A write can't be cancelled; another one at the same time would
mix the lines of both."""


def _lines(batch: MessageBatch) -> bytes | bytearray:
    """Returns the values with their line ends. Large values are copied in pieces, so that the thread never keeps the
    interpreter for long."""
    values = [value for value in batch.values if value is not None]
    if batch.largest <= _PIECE:
        return b"".join(value + b"\n" for value in values)
    lines = bytearray()
    for value in values:
        for at in range(0, len(value), _PIECE):
            lines += value[at : at + _PIECE]
        lines += b"\n"
    return lines


class JsonlSink(Sink):
    """A sink for lines. One line is one message's value; a tombstone has none. A thread writes, so that a slow disk or
    pipe never blocks the loop."""

    def __init__(self, path: str, lease: Lease, rotate_bytes: int = 0, keep_files: int = 0) -> None:
        super().__init__(lease)
        self._path, self._rotate_bytes, self._keep_files = path, rotate_bytes, keep_files
        self._out: LineFile | LinePipe | None = None
        self._thread = runtime.worker("jsonl")
        self._ended = False
        self._closing: Future[None] | None = None

    async def start(self) -> None:
        """Opens the file for appending. Removes first an incomplete line that a crash left, so that it damages no
        other."""
        if (hanging := _HANGING.get(self._path)) is not None and not hanging.done():
            raise SinkError(f"an earlier write to {self._path} has not come to its end")
        _HANGING.pop(self._path, None)
        await self._run(self._open, doing="opened")

    def _open(self) -> None:
        if self._path == "-":
            self._out = LinePipe(os.dup(1), "standard output", shared=True)
            return
        path = os.path.realpath(self._path)  # a file is rotated in its own folder, not in that of a link to it
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            self._out = file = LineFile(path, descriptor, self._rotate_bytes, self._keep_files)
            file.begin()
            return
        self._out = LinePipe(descriptor, self._path, shared=False)
        if self._rotate_bytes:
            raise SinkRejected(
                f"{self._path} is no regular file, so it can't be rotated",
                remedy="take rotate_bytes away",
            )

    async def _run(self, call: Callable[[], None], *, doing: str) -> None:
        """Runs a call in the thread. Raises SinkError and our errors from `call`."""
        limit = None if isinstance(self._out, LinePipe) else _WRITE_LIMIT
        try:
            async with asyncio.timeout(limit):
                await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except TimeoutError as error:
            raise SinkError(f"{self._path} took more than {_WRITE_LIMIT:.0f} s to be {doing}") from error
        except OSError as error:
            raise SinkError(f"{self._path} can't be {doing}: {error.strerror}") from error

    def _write(self, data: bytes | bytearray) -> None:
        self._check_open()
        assert self._out is not None
        self._out.write(data, self._check_open)

    def _check_open(self) -> None:
        if self._ended:
            raise SinkError(f"{self._path} is written no more: the sink was ended")
        self._lease.check()

    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        """Writes the batch; it is on disk when this returns."""
        await self._run(lambda: self._write(_lines(batch)), doing="written")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def abort(self) -> None:
        """Ends the sink; a write that has begun can only be waited for."""
        await self.close()

    async def close(self) -> None:
        self._ended = True
        if self._closing is None:
            # In the thread, after what it still writes: once closed, the descriptor may be another file's.
            self._closing = self._thread.submit(self._close)
            self._thread.shutdown(wait=False)
        await asyncio.wait([asyncio.wrap_future(self._closing)], timeout=_CLOSE_LIMIT)
        if not self._closing.done():
            _HANGING[self._path] = self._closing

    def _close(self) -> None:
        if self._out is not None:
            with contextlib.suppress(OSError):
                self._out.close()

    async def check(self) -> list[Finding]:
        return [wrong("sink", one) for one in await runtime.in_thread(self._check)]

    def _check(self) -> list[str]:
        """Checks the file without changing it: a daemon may be writing it."""
        if self._path == "-":
            return []
        path = os.path.realpath(self._path)
        folder = os.path.dirname(path)
        if os.path.isdir(path):
            return [f"{self._path} is a folder"]
        if os.path.exists(path):
            if not os.access(path, os.W_OK):
                return [f"{self._path} can't be written"]
            if not self._rotate_bytes or os.access(folder, os.W_OK):
                return []
            return [f"{self._path} can't be rotated: nothing can be made in {folder}"]
        while not os.path.exists(folder):
            folder = os.path.dirname(folder)
        return [] if os.access(folder, os.W_OK) else [f"{self._path} can't be made in {folder}"]
