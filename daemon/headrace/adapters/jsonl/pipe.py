"""Writes lines to standard output, a pipe or a terminal, which other programs may write to as well."""

from __future__ import annotations

import os
import select
import stat
import threading
from collections.abc import Callable

from headrace import runtime
from headrace.errors import HeadraceError, OutputClosed

_STANDARD_OUTPUT = threading.Lock()
"""For all sinks of this process that write lines to it."""
_AT_ONCE = 64 * 1024
_POLL = 0.5
"""Seconds between two checks."""


class LinePipe:
    """A pipe for lines. A line that has begun is always written to its end: what follows may come from another writer.

    Used by one thread only. Raises OSError, and OutputClosed if nobody reads any more."""

    def __init__(self, descriptor: int, name: str, *, shared: bool) -> None:
        """`shared`: it is the process's standard output."""
        self.descriptor = descriptor
        self._name, self._shared = name, shared
        self._sync = stat.S_ISREG(os.fstat(descriptor).st_mode)

    def write(self, data: bytes | bytearray, check: Callable[[], None]) -> None:
        """Writes whole lines. `check` raises if no further one may be begun."""
        while self._shared and not _STANDARD_OUTPUT.acquire(timeout=_POLL):
            check()
        try:
            self._write(data, check)
        except BrokenPipeError as error:
            raise OutputClosed(
                f"the reader of {self._name} is gone", remedy="what was not confirmed is sent again at the next start"
            ) from error
        finally:
            if self._shared:
                _STANDARD_OUTPUT.release()
        if self._sync:
            runtime.sync(self.descriptor, metadata=False)

    def _write(self, data: bytes | bytearray, check: Callable[[], None]) -> None:
        done, end, stopped = 0, len(data), None
        view = memoryview(data)
        while done < end:
            if stopped is None:
                try:
                    check()
                except HeadraceError as error:
                    if not done or data[done - 1] == 0x0A:
                        raise
                    stopped, end = error, data.index(b"\n", done) + 1
            try:
                done += os.write(self.descriptor, view[done : min(end, done + _AT_ONCE)])
            except BlockingIOError:  # another program that shares the pipe has made it non-blocking
                self._wait()
        if stopped is not None:
            raise stopped

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self.descriptor, select.POLLOUT)
        poll.poll(_POLL * 1000)

    def close(self) -> None:
        """Closes the pipe. Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
