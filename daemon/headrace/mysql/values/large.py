"""Makes large values from the bytes of a row image; see headrace.large_values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headrace.large_values import FINE_VALUE, LARGE_ROW, LARGE_VALUE, PIECE, LargeValue, Note
from headrace.mysql.values import mariadb
from headrace.mysql.values.charsets import codec_of, replaced, split_of
from headrace.mysql.values.large_json import json_pieces

MakeLarge = Callable[[bytes, int, int, int], LargeValue | None]
"""(bytes, start, end, least) -> the value between; None if it has no more than `least` bytes."""
_WIDEST = 4
"""Maximum bytes of a character."""


class TakesLong(Exception):
    """A value of `size` bytes is not decoded, because it is large, and the caller decodes at once."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size


def least_of(size: int) -> int:
    """Returns the bytes above which a value is large in a row or event of this size."""
    return FINE_VALUE if size > LARGE_ROW else LARGE_VALUE


def large_json(b: bytes, start: int, end: int, least: int) -> LargeValue | None:
    """Makes a JSON document."""
    if end - start <= least:
        return None
    return LargeValue((b, start, end), text=lambda _: json_pieces(b, start, end))


def large_again(value: Any, least: int) -> Any:
    """Returns an already decoded text of more than `least` characters as a value that is printed piece by piece;
    otherwise the value."""
    if type(value) is not str or len(value) <= least:
        return value
    starts = range(0, len(value), PIECE)
    return LargeValue((value, 0, len(value)), text=lambda _: (value[at : at + PIECE] for at in starts))


def large_binary(b: bytes, start: int, end: int, least: int) -> LargeValue | None:
    """Makes a binary string or a geometry."""
    if end - start <= least:
        return None
    return LargeValue((b, start, end), binary=lambda: _cut(b, start, end))


def large_text(charset: str) -> MakeLarge:
    """Returns a function that makes texts of a character set. Raises UnknownType."""
    codec_of(charset)

    def make(b: bytes, start: int, end: int, least: int) -> LargeValue | None:
        if end - start <= least:
            return None
        return LargeValue((b, start, end), text=lambda note: _decoded(_cut(b, start, end), charset, note))

    return make


def large_compressed(charset: str, largest: int) -> MakeLarge:
    """Returns a function that makes values of MariaDB's compressed columns. The decompressed size counts, `largest`
    bytes at most, independent of the row's size."""

    def make(b: bytes, start: int, end: int, _: int) -> LargeValue | None:
        head = b[start : min(end, start + 5)]
        if max(end - start, mariadb.decompressed_size(head, end - start)) <= FINE_VALUE:
            return None

        def pieces() -> Iterator[bytes]:
            return mariadb.decompressed_pieces(b, start, end, largest, PIECE)

        raw = b, start, end
        if charset == "binary":
            return LargeValue(raw, binary=pieces)
        return LargeValue(raw, text=lambda note: _decoded(pieces(), charset, note))

    return make


def _cut(b: bytes, start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, PIECE):
        yield b[at : min(end, at + PIECE)]


def _decoded(pieces: Iterator[bytes], charset: str, note: Note | None) -> Iterator[str]:
    """Yields text whose characters may extend over two pieces. `note`: see LargeValue.replaced."""
    rest, decode = b"", codec_of(charset).decode
    for piece in pieces:
        raw = rest + piece
        for cut in range(_WIDEST):  # an incomplete code is no code in any of these character sets
            try:
                text, rest = decode(raw[: len(raw) - cut]), raw[len(raw) - cut :]
            except UnicodeDecodeError:
                continue
            break
        else:
            if note is None:
                raise ValueError(f"a text has codes that have no character in {charset}")
            whole = len(raw) - sum(map(len, split_of(charset)(raw)[1 - _WIDEST :]))
            (text, well_formed), rest = replaced(raw[:whole], charset), raw[whole:]
            note(well_formed)
        yield text
    try:
        yield decode(rest)
    except UnicodeDecodeError:
        if note is None:
            raise
        text, well_formed = replaced(rest, charset)
        note(well_formed)
        yield text
