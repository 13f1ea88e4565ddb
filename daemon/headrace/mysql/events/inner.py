"""Events within events: a compressed transaction, or the rows of an XA transaction, read piece by piece."""

from __future__ import annotations

import io
import mmap
import struct
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, cast

import zstandard

from headrace.mysql.values.lengths import lenenc

_HEADER = struct.Struct("<IBIIIH").unpack_from
_PIECE = 1 << 20
_LARGEST_WINDOW = 1 << 27
"""Maximum bytes of zstd's window, which is in memory: what its highest ordinary level uses."""
_SPARE = deque[zstandard.ZstdDecompressor](maxlen=4)
"""Used before, and free. To make one takes twice as long as to decompress a small transaction."""
_SPARE_BYTES = 4 << 20
"""Maximum bytes of memory of each of them."""
LARGEST_EVENT = 1 << 30
"""Bytes of an event that no server exceeds."""
_CRC_RESIDUE = 0x2144DF1C
"""The CRC32 of any bytes followed by their own CRC32."""


def too_large(size: int, largest: int) -> str:
    """Returns the text about an event that must be in memory completely and is too large."""
    return f"an event of {size} bytes is larger than [source] max_event, which is {largest}"


def new_file(folder: Path | None) -> IO[bytes]:
    """Returns a file for the bytes of one event, in `folder` or the system's folder; deleted once it is closed."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    return TemporaryFile(dir=folder)


def mapped(file: IO[bytes]) -> bytes:
    """Returns the bytes of a file, which is closed: they are in memory only as far as the system allows. Used as bytes
    are, in slices."""
    with file:
        file.flush()
        return cast(bytes, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


class InnerEvents:
    """Reads events one after the other from `read`, `size` bytes in all; they have no checksums. Keeps about 1 MB. A
    larger event, up to `largest` bytes, goes to a file in the folder `spool`, piece by piece: fill() must be called
    before each peek(), until it returns False."""

    def __init__(self, read: Callable[[int], bytes], size: int, close: Callable[[], None]) -> None:
        self._read, self._left, self._close = read, size, close
        self.largest = LARGEST_EVENT
        self.spool: Path | None = None
        self._data, self._at, self._next = b"", 0, 0
        self._file: IO[bytes] | None = None
        self._mapped = False
        """Whether `_data` is a large event, in a file."""
        self._missing = 0
        """Bytes of the event in `_file` that were not read yet."""

    def close(self) -> None:
        """Closes the files."""
        if self._file is not None:
            self._file.close()
        self._close()

    def fill(self) -> bool:
        """Reads another piece of a large event; returns whether there is more of it."""
        if self._file is None:
            if not self._left:
                return False
            self._fill(19)
            _, _, _, length, _, _ = _HEADER(self._data, self._at)
            have = len(self._data) - self._at
            if length - have <= _PIECE or length - have > self._left or length > self.largest:
                return False
            self._file, self._missing = new_file(self.spool), length - have
            self._file.write(self._data[self._at :])
            self._data, self._at = b"", 0
        piece = self._read(min(_PIECE, self._missing))
        if not piece:
            raise ValueError("the events within an event end too early")
        self._file.write(piece)
        self._left, self._missing = self._left - len(piece), self._missing - len(piece)
        if not self._missing:
            self._data, self._file, self._mapped = mapped(self._file), None, True
        return bool(self._missing)

    def peek(self) -> tuple[int, int, int, bytes, int, int] | None:
        """Returns (time, type, flags, bytes, start of the body, its end) of the next event; None after the last.

        Raises ValueError if the bytes do not end with an event."""
        if not self._left and self._at == len(self._data):
            return None
        self._fill(19)
        when, kind, _, length, _, flags = _HEADER(self._data, self._at)
        if length < 19 or length - (len(self._data) - self._at) > self._left:
            raise ValueError(f"an event within an event says it has {length} bytes")
        if length > self.largest:
            raise ValueError(too_large(length, self.largest))
        self._fill(length)
        self._next = self._at + length
        return when, kind, flags, self._data, self._at + 19, self._next

    @property
    def buffered(self) -> tuple[bytes, int] | None:
        """Returns the bytes in memory, and where the event begins there that peek() gave; None for a large event."""
        return None if self._mapped else (self._data, self._at)

    def advance(self, at: int | None = None) -> None:
        """Skips the event that peek() gave; or all up to `at` of what is buffered."""
        self._at = self._next if at is None else at
        if self._at == len(self._data):
            self._data, self._at, self._mapped = b"", 0, False

    def _fill(self, size: int) -> None:
        have = len(self._data) - self._at
        if have >= size:
            return
        parts = [self._data[self._at :]]
        while have < size:
            piece = self._read(min(_PIECE, self._left))
            if not piece:
                raise ValueError("the events within an event end too early")
            self._left -= len(piece)
            have += len(piece)
            parts.append(piece)
        self._data, self._at = b"".join(parts), 0


class _Limited:
    """The next `size` bytes of a file: the reader does not get what follows them, such as a checksum."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


def open_payload(file: IO[bytes], size: int) -> InnerEvents:
    """Returns the events of a TRANSACTION_PAYLOAD event whose body is the next `size` bytes of `file` (MySQL's
    Transaction_payload_event: fields of type, length, value up to a zero, then the payload).

    Raises ValueError for another compression than zstd or none."""
    fields = {1: 0, 2: 0, 3: 0}
    head = file.read(min(size, 256))
    at = 0
    while (kind := lenenc(head, at))[0]:
        length, p = lenenc(head, kind[1])
        if length > 9 or p + length > len(head):
            raise ValueError("a compressed transaction has no readable head")
        fields[kind[0]], _ = lenenc(head, p)
        at = p + length
    at = kind[1]
    payload, algorithm, whole = fields[1], fields[2], fields[3]
    if payload != size - at:
        raise ValueError(f"a compressed transaction says it has {payload} bytes and has {size - at}")
    file.seek(at - len(head), io.SEEK_CUR)
    source: Any = _Limited(file, payload)
    if algorithm == 255:
        return InnerEvents(source.read, payload, file.close)
    if algorithm != 0:
        raise ValueError(f"a transaction is compressed by algorithm {algorithm}, which is not known")
    try:
        decompressor = _SPARE.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
    reader = decompressor.stream_reader(source, read_across_frames=True)

    def read(count: int) -> bytes:
        try:
            return reader.read(count)
        except zstandard.ZstdError as error:
            raise ValueError(f"a compressed transaction can't be decompressed: {error}") from error

    def close() -> None:
        if not file.closed and decompressor.memory_size() <= _SPARE_BYTES:  # it keeps that of its largest window
            _SPARE.append(decompressor)
        file.close()

    return InnerEvents(read, whole, close)


class LargeEvent:
    """An event of 16 MB and more, from its packets. It goes to a file in `folder`: a compressed transaction (`payload`)
    whatever its size, any other up to `largest` bytes. Beyond that, and without `keep`, only the header is kept."""

    def __init__(
        self, payload: bool, folder: Path | None, checksum: bool, left: int, *, keep: bool = True, largest: int
    ) -> None:
        self.left, self.last, self._largest = left, False, largest
        """Missing bytes of the present packet, and whether it is the last one."""
        self.payload = payload
        self._folder, self._kept = folder, payload or keep
        self.file: IO[bytes] | None = None
        self._checksum, self._crc, self.size = checksum, 0, 0
        self.head = b""

    def add(self, part: bytes) -> None:
        """Adds the next piece of the event, of one packet."""
        if len(self.head) < 19:
            self.head += part[: 19 - len(self.head)]
        self.left -= len(part)
        if self._checksum:
            self._crc = zlib.crc32(part, self._crc)
        self.size += len(part)
        if self.too_large:
            self.close()
        elif self._kept:
            self.file = self.file or new_file(self._folder)
            self.file.write(part)

    @property
    def goes_on(self) -> bool:
        """Returns whether more came than the event's own header says."""
        return len(self.head) == 19 and self.size > _HEADER(self.head, 0)[3]

    @property
    def too_large(self) -> bool:
        """Returns whether the event exceeds its maximum size."""
        return not self.payload and self.size > self._largest

    @property
    def sound(self) -> bool:
        """Returns whether the checksum, if there is one, is right; known when all parts are here."""
        return not self._checksum or self._crc == _CRC_RESIDUE

    def whole(self) -> bytes:
        """Returns the event's bytes, header and checksum included; the header alone if nothing else was kept."""
        file, self.file = self.file, None
        return mapped(file) if file is not None else self.head

    def close(self) -> None:
        """Closes the file."""
        if self.file is not None:
            self.file.close()
            self.file = None
