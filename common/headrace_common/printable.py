"""Text of others, such as names of tables and what servers say, for a terminal: nothing in it may move the cursor, or
turn the direction of its lines."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

_HARMLESS = re.compile(r"[ -~]*")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: str) -> str:
    """The text with control characters, marks of direction and what has no glyph as \\u and its number, as JSON has
    them."""
    if _HARMLESS.fullmatch(text):
        return text
    return "".join(_escape(one) if unicodedata.category(one) in _HIDDEN else one for one in text)


def printable_lines(text: str) -> str:
    """The same of a text that may have several lines."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(value: Any) -> str:
    """The value as JSON on one line; it stays the same value when it is read again."""
    return printable(json.dumps(value, ensure_ascii=False))


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(units[at : at + 2], 'big'):04x}" for at in range(0, len(units), 2))
