"""Values of messages for a terminal."""

from __future__ import annotations

import json
from typing import Any

from headrace_common.printable import printable, printable_lines


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
    return printable_lines(whole)


def shortened(text: str, most: int) -> str:
    """At most so many characters, with three dots where some are left out."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
