"""Applies the diffs of PARTIAL_UPDATE_ROWS events to binary JSON documents (wire format: MySQL's json_diff.h)."""

from __future__ import annotations

import json
import re
import struct
from json.encoder import encode_basestring as _quote
from typing import Any

from headrace.mysql.values.json_members import MAX_DEPTH, TOO_DEEP, USED_TWICE
from headrace.mysql.values.jsonb import scalar
from headrace.mysql.values.lengths import lenenc_string

_REPLACE, _INSERT, _REMOVE = 0, 1, 2
_LEG = re.compile(r"""\[(\d+)\]|\[last(?:-(\d+))?\]|\.("(?:[^"\\]|\\.)*")|\.([^."\[\]\s]+)""")

Leg = str | int
"""A member, or an element; a negative number counts from the end, -1 is the last one."""
Node = Any
"""A dict by keys, a list, or the text of any other value as the server prints it."""


def apply(base: bytes, diff: bytes) -> str:
    """Returns the text of the binary document `base` after all operations of `diff`, which are those of one column,
    without the length before them. See Document."""
    document = Document(base)
    document.apply(diff)
    return document.text()


class Document:
    """A document as a tree, to which diffs can be applied one after the other.

    Everything raises ValueError, IndexError or struct.error for invalid bytes, and ValueError for a path that leads
    nowhere: then the base is not the one that the source had."""

    def __init__(self, base: bytes) -> None:
        self._budget = 8 * len(base) + 64
        self._root = self._parsed(base)

    def text(self) -> str:
        """Returns the text as CAST(column AS CHAR) prints it."""
        return _text(self._root)

    def apply(self, diff: bytes) -> None:
        """Applies one vector: an operation is a byte (0 replace, 1 insert, 2 remove), a path and, unless it removes, a
        binary value, both after a length-encoded length."""
        at = 0
        while at < len(diff):
            operation = diff[at]
            if operation > _REMOVE:
                raise ValueError(f"JSON diff operation {operation} is unknown")
            raw, at = lenenc_string(diff, at + 1)
            path = legs(raw.decode())
            if operation == _REMOVE:
                self._remove(path)
                continue
            raw, at = lenenc_string(diff, at)
            self._budget = 8 * len(raw) + 64
            value = self._parsed(raw)
            (self._replace if operation == _REPLACE else self._insert)(path, value)

    def _seek(self, path: list[Leg]) -> Node:
        node = self._root
        for leg in path:
            node = _child(node, leg)
        return node

    def _replace(self, path: list[Leg], value: Node) -> None:
        if not path:
            self._root = value
            return
        parent = self._seek(path[:-1])
        _child(parent, path[-1])
        parent[path[-1]] = value

    def _insert(self, path: list[Leg], value: Node) -> None:
        if not path:
            raise ValueError("a JSON diff inserts a whole document")
        parent, leg = self._seek(path[:-1]), path[-1]
        if isinstance(leg, int):
            if not isinstance(parent, list):
                raise ValueError(f"a JSON diff inserts at [{leg}] of what is no array")
            parent.insert(leg, value)  # beyond the end means at the end, here and in the server
        elif not isinstance(parent, dict) or leg in parent:
            raise ValueError(f"a JSON diff inserts a member {leg!r} where it can't be")
        else:
            parent[leg] = value

    def _remove(self, path: list[Leg]) -> None:
        if not path:
            raise ValueError("a JSON diff removes a whole document")
        parent = self._seek(path[:-1])
        _child(parent, path[-1])
        del parent[path[-1]]

    def _parsed(self, b: bytes) -> Node:
        return self._node(b, b[0], 1, 0) if b else "null"

    def _node(self, b: bytes, kind: int, at: int, depth: int) -> Node:
        if kind > 3:
            text = scalar(b, kind, at)
            self._spend(len(text))
            return text
        if depth > MAX_DEPTH:
            raise ValueError(TOO_DEEP)
        large, start = bool(kind & 1), at
        (count,) = struct.unpack_from("<I" if large else "<H", b, at)
        self._spend(count)
        at += 8 if large else 4
        keys = []
        if kind < 2:
            for _ in range(count):
                offset, n = struct.unpack_from("<IH" if large else "<HH", b, at)
                raw = b[start + offset : start + offset + n]
                if len(raw) != n:
                    raise ValueError("a JSON key ends beyond its document")
                self._spend(n)
                keys.append(raw.decode())
                at += 6 if large else 4
        values = []
        for _ in range(count):
            inner, offset = struct.unpack_from("<BI" if large else "<BH", b, at)
            small = inner in (4, 5, 6) or (large and inner in (7, 8))
            values.append(self._node(b, inner, at + 1 if small else start + offset, depth + 1))
            at += 5 if large else 3
        return dict(zip(keys, values, strict=True)) if kind < 2 else values

    def _spend(self, size: int) -> None:
        """Charges the budget. A valid document never exceeds it; one whose entries refer to the same bytes many times
        does."""
        self._budget -= size
        if self._budget < 0:
            raise ValueError(USED_TWICE)


def legs(path: str) -> list[Leg]:
    """Returns the steps of a path such as `$.name[2]."other name"`. Raises ValueError for one with wildcards or
    anything else that a diff never has."""
    if not path.startswith("$"):
        raise ValueError(f"the JSON path {path!r} does not begin with $")
    found: list[Leg] = []
    at = 1
    while at < len(path):
        leg = _LEG.match(path, at)
        if leg is None:
            raise ValueError(f"the JSON path {path!r} is not understood")
        cell, behind, quoted, name = leg.groups()
        if cell:
            found.append(int(cell))
        elif quoted or name:
            found.append(json.loads(quoted) if quoted else name)
        else:
            found.append(-1 - int(behind or 0))
        at = leg.end()
    return found


def _child(node: Node, leg: Leg) -> Node:
    if isinstance(leg, int):
        if isinstance(node, list) and -len(node) <= leg < len(node):
            return node[leg]
    elif isinstance(node, dict) and leg in node:
        return node[leg]
    raise ValueError(f"a JSON diff means {leg!r}, which its document does not have")


def _text(node: Node) -> str:
    if isinstance(node, str):
        return node
    if isinstance(node, list):
        return "[" + ", ".join(map(_text, node)) + "]"
    keys = sorted(node, key=lambda key: (len(raw := key.encode()), raw))
    return "{" + ", ".join([f"{_quote(key)}: {_text(node[key])}" for key in keys]) + "}"
