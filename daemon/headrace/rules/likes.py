"""LIKE without backtracking: each piece between two `%` is searched once, from the left."""

from __future__ import annotations

import re
from collections.abc import Callable

_Piece = tuple[str | None, ...]
"""Characters; None is `_`, any one character."""


def like(pattern: str) -> Callable[[str], bool]:
    """Returns whether a whole text is like the pattern: `%` any characters, `_` any one, a backslash makes the next
    literal.

    As in MySQL a backslash at the end is literal. The case of letters counts, and so do spaces at the end."""
    parts = pieces(pattern)
    if all(None not in piece for piece in parts) and (simple := _simple(["".join(map(str, p)) for p in parts])):
        return simple
    first, *middle, last = [_finder(piece) for piece in parts] if len(parts) > 1 else [_finder(parts[0])] * 2
    head, tail = len(parts[0]), len(parts[-1])
    if len(parts) == 1:
        return lambda text: len(text) == head and first(text, 0, head) == 0
    least = head + tail

    def match(text: str) -> bool:
        end = len(text) - tail
        if len(text) < least or first(text, 0, head) != 0 or last(text, end, len(text)) != end:
            return False
        at = head
        for find, piece in zip(middle, parts[1:-1], strict=True):
            at = find(text, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True

    return match


def pieces(pattern: str) -> list[_Piece]:
    """Returns the pattern split at its `%`; pieces in the middle are not empty."""
    found: list[list[str | None]] = [[]]
    chars = iter(pattern)
    for char in chars:
        if char == "%":
            found.append([])
        elif char == "_":
            found[-1].append(None)
        else:
            found[-1].append(next(chars, "\\") if char == "\\" else char)
    kept = [piece for index, piece in enumerate(found) if piece or index in (0, len(found) - 1)]
    return [tuple(piece) for piece in kept]


def _simple(texts: list[str]) -> Callable[[str], bool] | None:
    """Returns a single call for the usual patterns without `_`."""
    if len(texts) == 1:
        return texts[0].__eq__
    if len(texts) == 2 and not texts[1]:
        head = texts[0]
        return lambda text: text.startswith(head)
    if len(texts) == 2 and not texts[0]:
        tail = texts[1]
        return lambda text: text.endswith(tail)
    if len(texts) == 3 and not texts[0] and not texts[2]:
        inside = texts[1]
        return lambda text: inside in text
    return None


def _finder(piece: _Piece) -> Callable[[str, int, int], int]:
    """Returns a function that finds the first position of the piece in text[start:end], or -1."""
    if None not in piece:
        plain = "".join(map(str, piece))
        return lambda text, start, end: text.find(plain, start, end)
    # a regex of fixed length without repeats: it can't backtrack
    search = re.compile("".join("." if char is None else re.escape(char) for char in piece), re.DOTALL).search

    def find(text: str, start: int, end: int) -> int:
        found = search(text, start, end)
        return found.start() if found else -1

    return find
