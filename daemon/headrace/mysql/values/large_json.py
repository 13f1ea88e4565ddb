"""Prints large JSON documents as text, piece by piece: the same text as jsonb.json_text(), in bounded memory."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from json.encoder import encode_basestring

from headrace.large_values import PIECE
from headrace.mysql.values.json_members import MAX_DEPTH, STRING_ENDS, TOO_DEEP, USED_TWICE
from headrace.mysql.values.jsonb import COUNTS_MORE, SHORT_OPAQUE, container_text, scalar, value_length

_SMALL = 32 * 1024
"""Bytes of a container that is printed at once."""
_ENTRIES = 1024
"""Entries of a container that are read at a time."""
_STRING, _OPAQUE, _LITERAL = 0x0C, 0x0F, 0x04
_SIZES = {5: 2, 6: 2, 7: 4, 8: 4, 9: 8, 10: 8, 11: 8}
"""Bytes of the numbers by their kinds; a literal has one."""
_LINE = 57
"""Bytes that make a line of 76 characters in base64, after which the server inserts a line break."""


def json_pieces(b: bytes, start: int, end: int) -> Iterator[str]:
    """Yields the text of the document in `b` from `start` to `end`, in pieces of about PIECE characters.

    Raises ValueError, IndexError or struct.error for invalid bytes."""
    printer = _Printer(b, start, end)
    yield from printer.value(b[start], start + 1, 1)
    yield printer.rest()


class _Printer:
    """The printer of one document. Text is collected until it is worth a piece; `room` prevents an invalid document, in
    which many entries refer to the same bytes, from becoming a text that is much larger than itself."""

    def __init__(self, b: bytes, start: int, end: int) -> None:
        self._b, self._end = b, end
        self._texts: list[str] = []
        self._size = 0
        self._room = 8 * (end - start) + 64

    def _add(self, text: str) -> bool:
        """Adds text; returns whether what is collected is worth a piece."""
        self._texts.append(text)
        self._size += len(text)
        return self._size >= PIECE

    def rest(self) -> str:
        """Returns what was collected since the last piece."""
        text, self._texts = "".join(self._texts), []
        self._room -= self._size
        if self._room < 0:
            raise ValueError(USED_TWICE)
        self._size = 0
        return text

    def value(self, kind: int, at: int, depth: int) -> Iterator[str]:
        """Prints a value that begins at `at`, after its type."""
        if kind < 4:
            yield from self._container(kind, at, depth)
        elif kind in (_STRING, _OPAQUE):
            yield from self._long(kind, at)
        elif self._add(self._scalar(kind, at)):
            yield self.rest()

    def _scalar(self, kind: int, at: int) -> str:
        if at + _SIZES.get(kind, 1) > self._end:
            raise ValueError("a JSON value ends beyond its document")
        return scalar(self._b, kind, at)

    def _long(self, kind: int, at: int) -> Iterator[str]:
        n, start = value_length(self._b, at if kind == _STRING else at + 1)
        if start + n > self._end:
            raise ValueError(STRING_ENDS)
        if n <= PIECE or (kind == _OPAQUE and self._b[at] in SHORT_OPAQUE):
            if self._add(scalar(self._b, kind, at)):
                yield self.rest()
        elif kind == _STRING:
            yield from self._quoted(start, n)
        else:
            yield from self._base64(self._b[at], start, n)

    def _quoted(self, start: int, size: int) -> Iterator[str]:
        self._add('"')
        at, end = start, start + size
        while at < end:
            stop = min(end, at + PIECE)
            while stop < end and self._b[stop] & 0xC0 == 0x80:  # within a character
                stop -= 1
                if stop <= at:
                    raise ValueError("a JSON string is no UTF-8")
            self._add(encode_basestring(self._b[at:stop].decode())[1:-1])
            yield self.rest()
            at = stop
        self._add('"')

    def _base64(self, kind: int, start: int, size: int) -> Iterator[str]:
        self._add(f'"base64:type{kind}:')
        for at in range(start, start + size, 1024 * _LINE):
            raw = self._b[at : min(start + size, at + 1024 * _LINE)]
            text = base64.b64encode(raw).decode()
            lines = "\\n".join([text[i : i + 76] for i in range(0, len(text), 76)])
            self._add(lines + ("\\n" if at + len(raw) < start + size else ""))
            yield self.rest()
        self._add('"')

    def _container(self, kind: int, start: int, depth: int) -> Iterator[str]:
        """Prints an object or array: 0 and 1 are objects, 2 and 3 arrays; the odd ones have counts and offsets of 4
        bytes instead of 2. See jsonb.containers() for the layout."""
        if depth > MAX_DEPTH:
            raise ValueError(TOO_DEEP)
        b, width = self._b, 4 if kind & 1 else 2
        if start + 2 * width > self._end:
            raise ValueError(COUNTS_MORE)
        count, size = struct.unpack_from("<II" if kind & 1 else "<HH", b, start)
        if start + size > self._end:
            raise ValueError(COUNTS_MORE)
        if size <= _SMALL:
            if self._add(container_text(b[start : start + size], kind, depth)):
                yield self.rest()
            return
        is_array = kind > 1
        keys = start + 2 * width
        values = keys if is_array else keys + count * (width + 2)
        if values + count * (width + 1) > start + size:
            raise ValueError(COUNTS_MORE)
        number, entry = ("<I", "<BI") if width == 4 else ("<H", "<BH")
        self._add("[" if is_array else "{")
        for first in range(0, count, _ENTRIES):
            last = min(count, first + _ENTRIES)
            block = b[values + first * (width + 1) : values + last * (width + 1)]
            for i, (kind_of, offset) in enumerate(struct.iter_unpack(entry, block), first):
                head = ", " if i else ""
                if not is_array:
                    (key,) = struct.unpack_from(number, b, keys + i * (width + 2))
                    (length,) = struct.unpack_from("<H", b, keys + i * (width + 2) + width)
                    if start + key + length > self._end:
                        raise ValueError("a JSON key ends beyond its document")
                    head += encode_basestring(b[start + key : start + key + length].decode()) + ": "
                if kind_of == _LITERAL or (5 <= kind_of <= 6) or (width == 4 and 7 <= kind_of <= 8):
                    # The value is in its entry, after the type.
                    text = self._scalar(kind_of, values + i * (width + 1) + 1)
                elif kind_of < 4 or kind_of in (_STRING, _OPAQUE):
                    self._add(head)
                    yield from self.value(kind_of, start + offset, depth + 1)
                    continue
                else:
                    text = self._scalar(kind_of, start + offset)
                if self._add(head + text):
                    yield self.rest()
        self._add("]" if is_array else "}")
