"""How many random inputs a test tries."""

from __future__ import annotations

import os

_ALL = os.environ.get("HEADRACE_EXAMPLES") == "all"


def examples(count: int) -> int:
    """All of them in `scripts/test long`, a quarter in `scripts/test`. The former runs the tests that have the marker
    `hypothesis`, which Hypothesis gives to its own."""
    return count if _ALL else count // 4
