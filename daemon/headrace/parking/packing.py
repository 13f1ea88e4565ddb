"""The stored forms of what tells messages apart, and of their headers."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from headrace.model import Unit


def packed_unit(unit: Unit) -> bytes:
    """Tables and keys, as JSON."""
    return orjson.dumps([unit.tables, unit.keys])


def unpacked_unit(stored: bytes | str) -> Unit:
    """Reads it back."""
    tables, keys = orjson.loads(stored)
    return Unit(tuple(tables), tuple(keys))


def packed_headers(headers: Sequence[tuple[str, bytes]]) -> bytes:
    """Names and values as JSON; a value's bytes are the characters of ISO 8859-1."""
    return orjson.dumps([[name, value.decode("latin-1")] for name, value in headers])


def unpacked_headers(stored: bytes | str) -> tuple[tuple[str, bytes], ...]:
    """Reads them back."""
    return tuple((name, value.encode("latin-1")) for name, value in orjson.loads(stored))
