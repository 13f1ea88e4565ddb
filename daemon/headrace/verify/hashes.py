"""A row as a number of 64 bits: all that is kept of it while a table is compared."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import orjson

GONE, INCOMPLETE = 0, 1
"""Stand for a row that is not there, and for one that lacks columns, which nobody can compare."""


def row_hash(row: dict[str, Any]) -> int:
    """Of a row's columns and their JSON values, whatever their order; never GONE or INCOMPLETE."""
    data = orjson.dumps(row, option=orjson.OPT_SORT_KEYS)
    return max(2, int.from_bytes(blake2b(data, digest_size=8).digest(), "big"))
