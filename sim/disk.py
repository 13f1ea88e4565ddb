"""A machine's disk: what was not synced is lost or torn by a power loss, and reads, writes and syncs may fail.

SQLite writes from C, so this is below it: a VFS, registered as SQLite's default one, that passes every call on to the
ordinary VFS and notes writes and syncs of the files in a disk's folder. The bytes are SQLite's own. Other files are
noted when `headrace.runtime` syncs them. A new file is durable at once, except in an archive: there it is durable once
its folder is synced. A deleted file does not come back."""

from __future__ import annotations

import _sqlite3
import ctypes
import errno
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, addressof, c_char_p, c_int, c_int64, c_void_p, cast, string_at
from pathlib import Path
from typing import Any

_SECTOR = 512
"""Bytes that are written completely or not at all."""
_OK, _FULL = 0, 13
_IO_READ, _IO_WRITE, _IO_SYNC, _IO_TRUNCATE = 266, 778, 1034, 1546


class File:
    """One file: what is on the disk, and what was written since its last sync, oldest first. A write is an offset and
    bytes; None instead of bytes means that the file was truncated there."""

    def __init__(self, content: bytes) -> None:
        self.durable = bytearray(content)
        self.pending = list[tuple[int, bytes | None]]()
        self.size = len(content)

    def write(self, offset: int, data: bytes) -> None:
        """Notes a write."""
        self.pending.append((offset, data))
        self.size = max(self.size, offset + len(data))

    def truncate(self, size: int) -> None:
        """Notes that the file was truncated."""
        self.pending.append((size, None))
        self.size = min(self.size, size)

    def settle(self, keeps: Callable[[], bool] = lambda: True) -> None:
        """Puts on the disk what was written, each sector only if `keeps` says so, and forgets the rest."""
        for offset, data in self.pending:
            if data is None:
                if keeps():
                    del self.durable[offset:]
                continue
            at = offset
            while at < offset + len(data):
                end = min((at // _SECTOR + 1) * _SECTOR, offset + len(data))
                if keeps():
                    self.durable.extend(bytes(max(0, end - len(self.durable))))
                    self.durable[at:end] = data[at - offset : end - offset]
                at = end
        self.pending.clear()


class _Handle:
    """A file that a process has open; `alive` until the process ends."""

    def __init__(self, disk: Disk, file: File) -> None:
        self.disk, self.file, self.alive = disk, file, True


class Disk:
    """The disk of one machine, which is a folder. `rng` decides what fails, and what a power loss leaves."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder, self._rng = str(folder.resolve()) + os.sep, rng
        self._files = dict[str, File]()
        self._handles = list[_Handle]()
        self._synced = dict[int, int]()
        """By inode: the size of a file that Python writes, when it was last synced."""
        self._names = dict[int, list[str]]()
        """By inode: what a folder that Python has synced contained then."""
        self.failing = 0.0
        """The part of reads, writes and syncs that fail."""
        self.full = False
        """Whether no file can grow."""
        self.calls_left = 0
        """If it is above 0, `on_loss` is called instead of the write or sync with this number."""
        self.on_loss: Callable[[], None] = self.lose_power

    def holds(self, path: str) -> bool:
        """Returns whether a file is on this disk."""
        return path.startswith(self._folder)

    def opened(self, path: str) -> _Handle:
        """Notes that SQLite has opened a file."""
        if path not in self._files:
            self._files[path] = File(Path(path).read_bytes())
        handle = _Handle(self, self._files[path])
        self._handles.append(handle)
        return handle

    def deleted(self, path: str) -> None:
        """Notes that SQLite has deleted a file."""
        self._files.pop(path, None)

    def fails(self, handle: _Handle, *, writes: bool = True) -> bool:
        """Returns whether a call fails. The power may be lost at it."""
        if handle.alive and writes:
            self._call()
        return not handle.alive or (self.failing > 0 and self._rng.random() < self.failing)

    def _call(self) -> bool:
        """Counts a write or sync; returns whether the power is lost at it."""
        if self.calls_left:
            self.calls_left -= 1
            if not self.calls_left:
                self.on_loss()
                return True
        return False

    def part(self, file: File, offset: int, size: int) -> int:
        """Returns how many bytes of a write there is space for."""
        if not self.full or offset + size <= file.size:
            return size
        return self._rng.randrange(max(0, file.size - offset), size)

    def sync(self, file: File) -> int:
        """Returns the result of a sync. After one that fails, the system forgets what was written, as Linux does."""
        if self.failing > 0 and self._rng.random() < self.failing:
            file.settle(lambda: self._rng.random() < 0.5)
            return _IO_SYNC
        file.settle()
        return _OK

    def sync_plain(self, descriptor: int) -> None:
        """Syncs a file that Python writes and only appends to, or a folder. Raises OSError."""
        if self._call() or (self.failing > 0 and self._rng.random() < self.failing):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        info = os.fstat(descriptor)
        if stat.S_ISDIR(info.st_mode):
            self._names[info.st_ino] = os.listdir(descriptor)
        else:
            self._synced[info.st_ino] = info.st_size

    @contextmanager
    def well(self) -> Iterator[None]:
        """Lets nothing fail while the context lasts."""
        failing, self.failing = self.failing, 0.0
        try:
            yield
        finally:
            self.failing = failing

    def end_process(self) -> None:
        """Ends the process that has files open, as SIGKILL does: what was written is there for the next one."""
        self._replace(lambda path, file: Path(path).read_bytes())

    def lose_power(self) -> None:
        """Ends it with the machine: what was not synced may be lost, each sector for itself."""
        share = self._rng.choice((0.0, 0.5, 0.9, 1.0))

        def left(path: str, file: File) -> bytes:
            file.settle(lambda: self._rng.random() < share)
            file.size = len(file.durable)
            return bytes(file.durable)

        self._replace(left)
        self._tear()
        self.calls_left = 0

    def _tear(self) -> None:
        """Leaves a part of what was appended to a file since its last sync, and some of the files of an archive whose
        folder was not synced since."""
        for path in sorted(Path(self._folder).rglob("*.jsonl")):
            self._truncate(path)
        for folder, folders, files in os.walk(Path(self._folder, "archive")):
            folders.sort()
            synced = self._names.get(Path(folder).stat().st_ino, ())
            for path in [Path(folder, name) for name in sorted({*folders, *files} - {"lock"})]:
                if path.name not in synced and self._rng.random() < 0.5:
                    if path.is_dir():
                        shutil.rmtree(path)
                        folders.remove(path.name)
                    else:
                        path.unlink()
                elif path.is_file():
                    self._truncate(path)

    def _truncate(self, path: Path) -> None:
        info = path.stat()
        os.truncate(path, self._rng.randint(min(self._synced.get(info.st_ino, 0), info.st_size), info.st_size))

    def _replace(self, content: Callable[[str, File], bytes]) -> None:
        """Gives the next process new files, which the handles of the former one don't lead to."""
        for handle in self._handles:
            handle.alive = False
        self._handles.clear()
        for path, file in self._files.items():
            fresh = Path(f"{path}.fresh")
            fresh.write_bytes(content(path, file))
            fresh.rename(path)
        for left in [*Path(self._folder).glob("*-shm"), *Path(self._folder).glob("*.lock")]:
            left.unlink()  # the process's shared memory, and its locks


# -- SQLite ------------------------------------------------------------------------------------------------------------

_OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_DELETE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)
_RANDOM = CFUNCTYPE(c_int, c_void_p, c_int, c_void_p)
_SLEEP = CFUNCTYPE(c_int, c_void_p, c_int)
_IO = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_CUT = CFUNCTYPE(c_int, c_void_p, c_int64)
_SYNC = CFUNCTYPE(c_int, c_void_p, c_int)


def _fields(ints: tuple[str, ...], pointers: str) -> list[tuple[str, Any]]:
    return [*((name, c_int) for name in ints), *((name, c_void_p) for name in pointers.split())]


class _Vfs(ctypes.Structure):
    """SQLite's struct sqlite3_vfs."""

    _fields_ = _fields(
        ("version", "size", "longest"),
        "next name data open delete access path dl_open dl_error dl_sym dl_close random sleep now last_error now64 "
        "set_call get_call next_call",
    )


class _Methods(ctypes.Structure):
    """SQLite's struct sqlite3_io_methods."""

    _fields_ = _fields(
        ("version",),
        "close read write truncate sync file_size lock unlock reserved control sector characteristics shm_map shm_lock "
        "shm_barrier shm_unmap fetch unfetch",
    )


class _Below:
    """The VFS. It exists once, because SQLite's list of them does."""

    def __init__(self) -> None:
        self.library = library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
        library.sqlite3_vfs_find.restype = c_void_p
        self.disks = list[Disk]()
        self._handles = dict[int, _Handle]()
        """By the address of SQLite's open file."""
        self._tables = dict[int, _Methods]()
        ordinary = _Vfs.from_address(library.sqlite3_vfs_find(None))
        self._open_below, self._delete_below = _OPEN(ordinary.open), _DELETE(ordinary.delete)
        self._kept: list[Any] = [c_char_p(b"headrace-sim")]
        self.vfs = vfs = _Vfs.from_buffer_copy(ordinary)
        vfs.name = cast(self._kept[0], c_void_p).value
        for name, kind, call in (
            ("open", _OPEN, self._open),
            ("delete", _DELETE, self._delete),
            ("random", _RANDOM, self._random),
            ("sleep", _SLEEP, lambda _, microseconds: microseconds),
        ):
            self._put(vfs, name, kind(call))

    def _put(self, table: Any, name: str, function: Any) -> None:
        self._kept.append(function)
        setattr(table, name, cast(function, c_void_p).value)

    def _disk(self, path: str) -> Disk | None:
        return next((disk for disk in self.disks if disk.holds(path)), None)

    def _open(self, vfs: int, name: int | None, file: int, flags: int, out: int) -> int:
        code: int = self._open_below(vfs, name, file, flags, out)
        if code == _OK and name and (disk := self._disk(path := string_at(name).decode())) is not None:
            self._handles[file] = disk.opened(path)
            place = c_void_p.from_address(file)
            assert place.value is not None
            place.value = addressof(self._tables.get(place.value) or self._table(place.value))
        return code

    def _delete(self, vfs: int, name: int, sync: int) -> int:
        path = string_at(name).decode()
        code: int = self._delete_below(vfs, name, sync)
        if (disk := self._disk(path)) is not None:
            disk.deleted(path)
        return code

    def _random(self, _: int, size: int, out: int) -> int:
        ctypes.memset(out, 0, size)  # what SQLite makes of it is the same each time
        return size

    def _table(self, address: int) -> _Methods:
        """Returns the methods of an open file, with those replaced that are noted."""
        ordinary = _Methods.from_address(address)
        table = self._tables[address] = _Methods.from_buffer_copy(ordinary)
        read_below, write_below, cut_below = _IO(ordinary.read), _IO(ordinary.write), _CUT(ordinary.truncate)
        handles = self._handles

        def read(file: int, data: int, size: int, offset: int) -> int:
            handle = handles[file]
            return _IO_READ if handle.disk.fails(handle, writes=False) else read_below(file, data, size, offset)

        def write(file: int, data: int, size: int, offset: int) -> int:
            handle = handles[file]
            if handle.disk.fails(handle):
                return _IO_WRITE
            part = handle.disk.part(handle.file, offset, size)
            handle.file.write(offset, string_at(data, part))
            code: int = write_below(file, data, part, offset) if part else _OK
            return code if part == size else _FULL

        def truncate(file: int, size: int) -> int:
            handle = handles[file]
            if handle.disk.fails(handle):
                return _IO_TRUNCATE
            handle.file.truncate(size)
            return int(cut_below(file, size))

        def sync(file: int, _: int) -> int:
            handle = handles[file]
            return _IO_SYNC if handle.disk.fails(handle) else handle.disk.sync(handle.file)

        for name, kind, call in (
            ("read", _IO, read),
            ("write", _IO, write),
            ("truncate", _CUT, truncate),
            ("sync", _SYNC, sync),
        ):
            self._put(table, name, kind(call))
        return table


_below: _Below | None = None


@contextmanager
def below_sqlite(*disks: Disk) -> Iterator[None]:
    """Has SQLite write to these disks while the context lasts. Needs a Python whose SQLite is a shared library."""
    global _below
    below = _below = _below or _Below()
    below.disks += disks
    below.library.sqlite3_vfs_register(ctypes.byref(below.vfs), 1)
    below.library.sqlite3_randomness(0, None)  # begins again, with our random numbers
    try:
        yield
    finally:
        below.disks = [disk for disk in below.disks if disk not in disks]
        if not below.disks:
            below.library.sqlite3_vfs_unregister(ctypes.byref(below.vfs))
