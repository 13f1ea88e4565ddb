"""Texts from messages for a terminal: nothing in them may move its cursor, or turn the direction of its lines."""

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


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(units[at : at + 2], 'big'):04x}" for at in range(0, len(units), 2))


def printable_json(value: Any) -> str:
    """The value as JSON on one line; it stays the same value when it is read again."""
    return printable(json.dumps(value, ensure_ascii=False))


def pretty(data: bytes | None) -> str:
    """The value of a message: JSON over several lines, other texts as they are, and other bytes escaped."""
    if data is None:
        return "(none)"
    try:
        # Not orjson, which makes floats of integers beyond 64 bits.
        whole = json.dumps(json.loads(data), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        whole = data.decode("utf-8", "backslashreplace")
    return "\n".join(printable(line) for line in whole.split("\n"))


def shortened(text: str, most: int) -> str:
    """At most so many characters, with three dots where some are left out."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
