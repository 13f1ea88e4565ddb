"""Messages as lines of a file or of standard output; confirmed once the file is synced."""

from __future__ import annotations

import asyncio
import os
import stat
from concurrent.futures import Future, ThreadPoolExecutor

from headrace.errors import SinkError
from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.sinks.base import Sink

_WRITE_LIMIT = 60.0
"""Seconds a write and its fsync may take before the sink counts as failed."""
_CLOSE_LIMIT = 5.0
"""Seconds that the end of a sink waits for a write that has begun."""
_HANGING: dict[str, Future[None]] = {}
"""By path: the ends of sinks whose last write has not come to its end in time. A write can't be taken back; another
one beside it would tear the lines of both."""


class JsonlSink(Sink):
    """One line is one message's value; a tombstone is none. A thread writes, so that a slow disk or pipe
    never holds the loop."""

    def __init__(self, path: str, lease: Lease) -> None:
        super().__init__(lease)
        self._path = path
        self._descriptor = -1
        self._sync = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jsonl")
        self._ended = False
        self._closing: Future[None] | None = None

    async def start(self) -> None:
        """Opens the file for appending. A half line that a crash left is ended first, so that it spoils no other."""
        if (hanging := _HANGING.get(self._path)) is not None and not hanging.done():
            raise SinkError(f"an earlier write to {self._path} has not come to its end")
        _HANGING.pop(self._path, None)
        try:
            await self._run(self._open)
        except TimeoutError as error:
            raise SinkError(f"{self._path} took more than {_WRITE_LIMIT:.0f} s to be opened") from error
        except OSError as error:
            raise SinkError(f"{self._path} can't be opened: {error.strerror}") from error

    def _open(self) -> None:
        if self._path == "-":
            self._descriptor = os.dup(1)
            return
        folder = os.path.dirname(self._path)
        if folder:
            os.makedirs(folder, exist_ok=True)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
        info = os.fstat(self._descriptor)
        self._sync = stat.S_ISREG(info.st_mode)
        if self._sync and info.st_size and os.pread(self._descriptor, 1, info.st_size - 1) != b"\n":
            os.write(self._descriptor, b"\n")

    async def _run(self, call: object, *arguments: object) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_WRITE_LIMIT):
            await loop.run_in_executor(self._thread, call, *arguments)  # type: ignore[arg-type]

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self._ended:
                raise SinkError(f"{self._path} is written no more: the sink was ended")
            self._lease.check()
            view = view[os.write(self._descriptor, view) :]
        if self._sync:
            os.fdatasync(self._descriptor)

    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        """See Sink; the batch is on disk when this returns."""
        try:
            await self._run(self._write, b"".join(value + b"\n" for value in batch.values if value is not None))
        except BrokenPipeError as error:
            raise SinkError("the reader of standard output is gone") from error
        except TimeoutError as error:
            raise SinkError(f"{self._path} took more than {_WRITE_LIMIT:.0f} s for a write") from error
        except OSError as error:
            raise SinkError(f"{self._path} can't be written: {error.strerror}") from error
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def abort(self) -> None:
        """See Sink. A write that has begun can only be waited for."""
        await self.close()

    async def close(self) -> None:
        """See Sink."""
        self._ended = True
        if self._closing is None:
            # In the thread, behind what it still writes: the file's number may be another file's right after.
            self._closing = self._thread.submit(self._close)
            self._thread.shutdown(wait=False)
        await asyncio.wait([asyncio.wrap_future(self._closing)], timeout=_CLOSE_LIMIT)
        if not self._closing.done():
            _HANGING[self._path] = self._closing

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    async def check(self) -> list[str]:
        """See Sink."""
        return await asyncio.to_thread(self._check)

    def _check(self) -> list[str]:
        """Looks and touches nothing: a daemon may be writing the file."""
        if self._path == "-":
            return []
        if os.path.exists(self._path):
            return [] if os.access(self._path, os.W_OK) else [f"{self._path} can't be written"]
        folder = os.path.dirname(os.path.abspath(self._path))
        while not os.path.exists(folder):
            folder = os.path.dirname(folder)
        return [] if os.access(folder, os.W_OK) else [f"{self._path} can't be made in {folder}"]
