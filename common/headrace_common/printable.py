"""Text of others, such as names of tables and what servers say, for a terminal."""

from __future__ import annotations

import re

_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What a terminal does in place of showing it, or shows in another order; all but tab and the end of a line."""


def printable(text: str) -> str:
    """The text with such characters written as in a string of Python."""
    return _COMMANDS.sub(lambda one: one[0].encode("unicode_escape").decode(), text)
