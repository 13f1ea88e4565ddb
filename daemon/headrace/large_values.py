"""Values that are too large to be printed at once: they are put into a message piece by piece."""

from __future__ import annotations

import io
from base64 import b64encode, urlsafe_b64encode
from binascii import hexlify
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from json.encoder import encode_basestring
from typing import Any

LARGE_VALUE = 64 * 1024
"""Size in bytes at the source above which a value is large: a smaller one takes a few milliseconds."""
LARGE_ROW, FINE_VALUE = 256 * 1024, 1024
"""Bytes of a row above which all of its values of more than FINE_VALUE are large: it may have thousands of them."""
PIECE = 48 * 1024
"""Approximate bytes or characters of one piece: a few milliseconds of work."""
_END = "\0"
"""Surrounds the placeholder of a large value. It never occurs in JSON, which escapes it."""

_ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "base64": b64encode,
    "base64-url-safe": urlsafe_b64encode,
    "hex": hexlify,
    "latin1": lambda piece: _escaped(piece.decode("latin-1")),
}
"""How bytes are printed within a JSON string, by the formats' names."""


class MessageTooLarge(ValueError):
    """A message would exceed the bytes that may be in memory; the text has the limit."""


Note = Callable[[bool], None]
"""Called for a text with codes that have no Unicode character, with whether they are well formed. Raises ValueError if
the text must not be printed."""


class LargeValue:
    """A text, a JSON document or a binary value that stays as the source's bytes until it is printed.

    Its text, or its bytes if it is `binary`, comes in pieces of about PIECE. Printing it raises ValueError, LookupError
    or struct.error for invalid bytes. Two are equal only if they are the same object."""

    __slots__ = ("_binary", "_noted", "_text", "binary", "number", "raw", "replaced", "size")

    def __init__(
        self,
        raw: tuple[Any, int, int],
        *,
        text: Callable[[Note | None], Iterator[str]] | None = None,
        binary: Callable[[], Iterator[bytes]] | None = None,
    ) -> None:
        """`raw`: the source's bytes, or the text, and where they begin and end. `text` receives the value of
        `replaced`."""
        self.raw, self.binary = raw, binary is not None
        self.size = raw[2] - raw[1]
        self.number = 0
        """Its index among the large values of a change."""
        self.replaced: Note | None = None
        """Called once if codes of the text have no Unicode character: `?` is printed for them. Without it they
        raise."""
        self._noted = False
        self._text, self._binary = text, binary

    def __str__(self) -> str:
        """Returns the whole text; for bytes, the characters of Latin-1."""
        whole = self.whole()
        return whole if isinstance(whole, str) else whole.decode("latin-1")

    def whole(self) -> str | bytes:
        """Returns the value as if it were small. Time and memory depend on its size."""
        pieces = list(self._printed_pieces())
        return b"".join(pieces) if self.binary else "".join(pieces)

    def same_as(self, other: LargeValue | str | bytes) -> Generator[None, None, bool]:
        """Returns whether both are the same value, of which it compares a piece at each next(). The source may have
        written one value in two ways, one of which is not large."""
        mine: Iterator[Any] = self._printed_pieces()
        others: Iterator[Any] = iter((other,))
        if isinstance(other, LargeValue):
            if (yield from self._same_bytes(other)):
                return True
            others = other._printed_pieces()
        a, b = next(mine, None), next(others, None)
        while a is not None and b is not None:
            n = min(len(a), len(b))
            if a[:n] != b[:n]:
                return False
            a, b = a[n:] or next(mine, None), b[n:] or next(others, None)
            yield
        return a is b

    def _printed_pieces(self) -> Iterator[Any]:
        if self._binary is not None:
            return filter(None, self._binary())
        return filter(None, self._text(self._note if self.replaced is not None else None)) if self._text else iter(())

    def _note(self, well_formed: bool) -> None:
        if self.replaced is not None and not (self._noted and well_formed):
            self._noted = True
            self.replaced(well_formed)

    def _same_bytes(self, other: LargeValue) -> Generator[None, None, bool]:
        (a, p, end), (b, q, _) = self.raw, other.raw
        if self.size != other.size:
            return False
        while p < end:
            n = min(1 << 20, end - p)
            if a[p : p + n] != b[q : q + n]:
                return False
            p, q = p + n, q + n
            yield
        return True

    def head(self, size: int) -> bytes:
        """Returns its first bytes, as the source stores them."""
        data, start, end = self.raw
        return bytes(data[start : min(end, start + size)])

    def stand_in(self, style: str, behind: int = 0) -> str:
        """Returns a format's placeholder for the value: a JSON string which spliced() fills. `style` is how bytes are
        printed: base64, base64-url-safe, hex or latin1; the first `behind` of them are omitted."""
        return f'"{_END}{self.number} {style} {behind}{_END}"'

    def printed(self, style: str, behind: int) -> Iterator[bytes]:
        """Yields the value as it is within the quotes of a JSON string, piece by piece; see stand_in()."""
        if not self.binary:
            yield from map(_escaped, self._printed_pieces())
            return
        encode, rest = _ENCODERS[style], b""
        for piece in self._printed_pieces():
            whole, behind = rest + piece[behind:], max(0, behind - len(piece))
            cut = len(whole) // 3 * 3  # base64 makes 4 characters of 3 bytes
            yield encode(whole[:cut])
            rest = whole[cut:]
        yield encode(rest)


def numbered(images: Iterable[Sequence[Any]]) -> tuple[LargeValue, ...]:
    """Returns the large values of rows, each once, in the order of the numbers that they are given."""
    found = tuple(dict.fromkeys(value for row in images for value in row if type(value) is LargeValue))
    for number, value in enumerate(found):
        value.number = number
    return found


def settled(rows: Sequence[tuple[Any, ...]], columns: Collection[int] | None = None) -> list[tuple[Any, ...]]:
    """Returns rows with ordinary values in place of large ones, in some columns or all. Raises ValueError and similar
    errors for invalid bytes."""
    if columns is None:
        columns = range(len(rows[0]) if rows else 0)
    if not any(type(row[i]) is LargeValue for row in rows for i in columns):
        return list(rows)
    return [
        tuple(value.whole() if type(value) is LargeValue and i in columns else value for i, value in enumerate(row))
        for row in rows
    ]


def _escaped(text: str) -> bytes:
    return encode_basestring(text)[1:-1].encode()


def spliced(message: bytes, values: Sequence[LargeValue], limit: int) -> Generator[None, None, bytes]:
    """Returns a message with large values in place of their placeholders; it inserts a piece at each next(). Raises
    MessageTooLarge once the message has more than `limit` bytes."""
    made = io.BytesIO()
    for number, part in enumerate(message.split(_END.encode())):
        pieces: Iterable[bytes] = (part,)
        if number % 2:
            index, style, behind = part.decode().split(" ")
            pieces = values[int(index)].printed(style, int(behind))
        for piece in pieces:
            made.write(piece)
            if made.tell() > limit:
                raise MessageTooLarge(f"a message of more than {limit} bytes")
            yield
    return made.getvalue()  # returns the buffer itself, without a copy
