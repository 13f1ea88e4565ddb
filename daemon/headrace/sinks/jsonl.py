"""Messages as lines of a file or of standard output; confirmed once the file is synced."""

from __future__ import annotations

import asyncio
import os
import stat
from concurrent.futures import ThreadPoolExecutor

from headrace.errors import SinkError
from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.sinks.base import Sink

_WRITE_LIMIT = 60.0
"""Seconds a write and its fsync may take before the sink counts as failed."""


class JsonlSink(Sink):
    """One line is one message's value; a tombstone is none. A thread writes, so that a slow disk or pipe
    never holds the loop."""

    def __init__(self, path: str, lease: Lease) -> None:
        super().__init__(lease)
        self._path = path
        self._descriptor = -1
        self._sync = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jsonl")

    async def start(self) -> None:
        """Opens the file for appending. A half line that a crash left is ended first, so that it spoils no other."""
        try:
            await self._run(self._open)
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
        """See Sink."""
        await self.close()

    async def close(self) -> None:
        """See Sink."""
        self._thread.shutdown(wait=False)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

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
