"""Character sets and collations: their numbers (information_schema.COLLATIONS), and the order of texts.

Letters compare without case and accents in `_ci` collations, as their folded Unicode characters. The order of
characters of different scripts and of punctuation is that of code points, not that of the Unicode Collation Algorithm:
a reader that pages by key needs only that comparison, sorting and uniqueness agree."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

BINARY = "binary"
NUMBERS = {
    "latin1_swedish_ci": 8, "ascii_general_ci": 11, "utf8mb4_general_ci": 45, "utf8mb4_bin": 46, BINARY: 63,
    "ascii_bin": 65, "latin1_bin": 47, "utf8mb4_unicode_ci": 224, "utf8mb4_0900_ai_ci": 255,
}  # fmt: skip
DEFAULTS = {
    "utf8mb4": "utf8mb4_0900_ai_ci",
    "latin1": "latin1_swedish_ci",
    "ascii": "ascii_general_ci",
    BINARY: BINARY,
}
_WIDTHS = {"utf8mb4": 4, "latin1": 1, "ascii": 1, BINARY: 1}
_CODECS = {"utf8mb4": "utf-8", "latin1": "cp1252", "ascii": "ascii", BINARY: "latin-1"}


def charset_of(collation: str) -> str:
    """Returns the character set of a collation."""
    return collation.partition("_")[0]


def width_of(charset: str) -> int:
    """Returns the most bytes of a character."""
    return _WIDTHS[charset]


def codec_of(charset: str) -> str:
    """Returns Python's name of the character set."""
    return _CODECS[charset]


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    plain = unicodedata.normalize("NFKD", text.casefold())
    return "".join(one for one in plain if not unicodedata.combining(one))


def order_of(collation: str) -> Callable[[str], str]:
    """Returns the function that gives texts the keys by which they are compared."""
    if collation == BINARY or collation == "utf8mb4_0900_bin":
        return str
    fold: Callable[[str], str] = str if collation.endswith("_bin") else _folded
    if "0900" in collation:
        return fold
    return lambda text: fold(text).rstrip(" ")  # PAD SPACE
