"""Makes foreign text, such as names of tables and servers' texts, safe for a terminal: it can't move the cursor or
change the text direction."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

_HARMLESS = re.compile(r"[ -~]*")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def printable(text: str) -> str:
    """Returns the text with control characters, direction marks and characters without a glyph as \\u and their number,
    as in JSON."""
    if _HARMLESS.fullmatch(text):
        return text
    return "".join(_escape(one) if unicodedata.category(one) in _HIDDEN else one for one in text)


def printable_lines(text: str) -> str:
    """Does the same for a text that may have several lines."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(value: Any) -> str:
    """Returns the value as JSON on one line, which is the same value when it is read again."""
    return printable(json.dumps(value, ensure_ascii=False))


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(units[at : at + 2], 'big'):04x}" for at in range(0, len(units), 2))
