"""The embedded lock: a file next to the state store, which the kernel locks until its holder ends in any way."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

from headrace.errors import StateStoreError
from headrace.lease import KnownEpoch, Lease
from headrace.ports.lock import Lock


class FileLock(Lock):
    """Keeps two daemons of one machine, or of one shared state folder, from running the same destination.

    The file contains the holder's name for people; the kernel's lock (flock) decides. `poll` is the time between two
    attempts in seconds, `setting` the key that the path follows from."""

    def __init__(self, path: Path, node: str, *, poll: float = 0.5, setting: str = "[state] path") -> None:
        self._path, self._setting = path, setting
        self._name = f"{node} (pid {os.getpid()})"
        self._poll = poll
        self._file: int | None = None
        self._other = ""
        self.lease = Lease()  # without a limit: the kernel keeps the lock while the process lives, frozen or not

    async def acquire(self, known_epoch: KnownEpoch) -> None:
        while not await self.try_acquire(known_epoch):  # noqa: ASYNC110  (the kernel wakes nobody: no event to wait for)
            await asyncio.sleep(self._poll)

    async def try_acquire(self, known_epoch: KnownEpoch) -> bool:
        """Takes the lock if it is free. Raises StateStoreError if the file can't be used."""
        if self._file is not None:
            return True
        try:
            return self._try()
        except OSError as error:
            raise StateStoreError(
                f"the lock file {self._path} can't be used: {error.strerror}",
                remedy=f"check the folder's owner and rights, and {self._setting}",
            ) from error

    async def find_holder(self) -> str:
        """Returns the present holder, "" if there is none: the kernel says only whether it can be taken."""
        if self._file is not None:
            return self._name
        try:
            free = self._try()
        except OSError:
            return ""
        if free:
            await self.release()
            return ""
        return self._other

    async def release(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            # The file stays: deleting it would let a third daemon lock a new one while a second waits for the old.
            try:
                os.ftruncate(file, 0)
            finally:
                os.close(file)

    @property
    def holder(self) -> str:
        return self._name if self._file is not None else self._other

    def _try(self) -> bool:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_ino != os.stat(self._path).st_ino:
                raise BlockingIOError  # the file was deleted or replaced in between; the next attempt sees the new one
            os.ftruncate(file, 0)
            os.pwrite(file, f"{self._name}\n".encode(), 0)
        except (BlockingIOError, FileNotFoundError):
            self._other = os.pread(file, 500, 0).decode("utf-8", "replace").strip() or "another daemon"
            os.close(file)
            return False
        except BaseException:
            os.close(file)
            raise
        self._file, self._other = file, ""
        return True
