"""A row as a number of 64 bits: all that is kept of it while a table is compared."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import orjson

GONE, INCOMPLETE = 0, 1
"""For a row that does not exist, and for one that lacks columns, which can't be compared."""


def row_hash(row: dict[str, Any]) -> int:
    """Returns the hash of a row's columns and their JSON values, in any order; never GONE or INCOMPLETE."""
    data = orjson.dumps(row, option=orjson.OPT_SORT_KEYS)
    return max(2, int.from_bytes(blake2b(data, digest_size=8).digest(), "big"))
