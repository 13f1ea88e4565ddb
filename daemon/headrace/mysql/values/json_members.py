"""Generates printers for the members of a JSON object or array: straight-line Python for the kinds of its values.
Documents of one table have the same few kinds."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring
from typing import Any

from headrace.mysql.values.codewriter import CodeWriter

Members = Callable[[bytes, int, bytes, int], Any]
"""(document, where the container begins, the entries of its values, depth) -> a tuple of the members of an object, each
a number or a text; the text of an array."""

STRING, DOUBLE, INT16, LITERAL = 0x0C, 0x0B, 0x05, 0x04
MAX_DEPTH = 100
"""MySQL's own limit on the nesting of a document."""
TOO_DEEP = f"a JSON document is nested deeper than {MAX_DEPTH}"
STRING_ENDS = "a JSON string ends beyond its document"
USED_TWICE = "a JSON document uses its bytes more than once"
OFTEN = 64
"""Containers with values of the same kinds, before these get a printer of their own."""
_MOST_MEMBERS = 16
_MOST_PRINTERS = 256
_MOST_COUNTED = 1024
_NUMBER = 34
"""Maximum characters of a number or a literal: -0. and 14 zeros before 17 digits."""


class MembersPrinters:
    """The printers of the objects, or of the arrays, whose counts and offsets have `width` bytes.

    `general` prints any of them. Kinds that came `often` times, if that is not 0, get a printer of their own, which
    prints the same. For what `general` refuses, and some that it accepts, it raises ValueError, IndexError or
    struct.error: then the document must be printed by general ones alone. `inline` are the kinds of whole numbers in
    entries, and how struct reads them; `readers` read numbers outside of entries, a tuple or a text; `containers` gives
    the printer of a kind of container, `string` and `printed` print strings and all others."""

    def __init__(
        self,
        general: Members,
        *,
        often: int,
        array: bool,
        width: int,
        inline: Mapping[int, str],
        readers: Mapping[int, Any],
        containers: Callable[[int], Any],
        string: Any,
        printed: Any,
    ) -> None:
        self._general, self._often, self._array, self._width = general, often, array, width
        self._inline, self._readers, self._containers = inline, readers, containers
        self._string, self._printed = string, printed
        self.known: dict[bytes, Members] = {}
        """By the kinds of all values."""
        self._counts: dict[bytes, int] = {}

    def seldom(self, kinds: bytes) -> Members:
        """Returns the printer for kinds that `known` does not have: the general one until they have come often."""
        if not self._often or not 0 < len(kinds) <= _MOST_MEMBERS or len(self.known) >= _MOST_PRINTERS:
            return self._general
        count = self._counts[kinds] = self._counts.get(kinds, 0) + 1
        if count < self._often:
            if len(self._counts) > _MOST_COUNTED:
                self._counts.clear()
            return self._general
        made = self.known[kinds] = self._made(kinds)
        return made

    def _made(self, kinds: bytes) -> Members:
        w = CodeWriter()
        code = "<" + "".join("x" + self._inline.get(kind, "H" if self._width == 2 else "I") for kind in kinds)
        offsets = "".join(f"o{i}, " for i in range(len(kinds)))
        values, spent = [], []
        w.put(0, "def decode(b, start, raw, depth):")
        w.put(1, f"if depth > {MAX_DEPTH}: raise ValueError({w.bind('too_deep', TOO_DEEP)})")
        w.put(1, f"{offsets}= {w.bind('unpack', struct.Struct(code).unpack)}(raw)")
        for i, kind in enumerate(kinds):
            values.append(f"o{i}" if kind in self._inline else f"t{i}")
            if kind in self._inline:
                continue
            if kind in self._readers:
                left = "t{i}" if kind == DOUBLE else "t{i},"
                w.put(1, f"{left.format(i=i)} = {w.bind('reader', self._readers[kind])}(b, start + o{i})")
                continue
            if kind == STRING:
                w.put(1, f"p = start + o{i}; n{i} = b[p]; q = p + 1 + n{i}")
                w.put(1, f"if n{i} > 127: t{i} = {w.bind('string', self._string)}(b, {STRING}, p)")
                w.put(1, f"elif q > len(b): raise ValueError({w.bind('ends', STRING_ENDS)})")
                w.put(1, f"else: t{i} = {w.bind('quote', encode_basestring)}(b[p + 1:q].decode())")
                spent.append(f"n{i}")
            elif kind < LITERAL:
                w.put(1, f"t{i} = {w.bind('container', self._containers(kind))}(b, start + o{i}, depth + 1)")
            else:
                w.put(1, f"t{i} = {w.bind('printed', self._printed)}(b, start, {kind}, o{i})")
            spent.append(f"len(t{i})")
        if spent:
            most = _NUMBER * (len(kinds) - len([kind for kind in kinds if kind in (STRING, *range(LITERAL))]))
            w.put(
                1, f"if {' + '.join(spent)} > 8 * len(b) + {64 - most}: raise ValueError({w.bind('twice', USED_TWICE)})"
            )
        if self._array:
            w.put(1, "return f'[" + ", ".join(f"{{{value}}}" for value in values) + "]'")
        else:
            w.put(1, f"return ({''.join(f'{value}, ' for value in values)})")
        made: Members = w.compiled()
        return made
