"""Length-encoded integers and strings of MySQL's protocol."""

from __future__ import annotations


def lenenc(b: bytes, at: int) -> tuple[int, int]:
    """Reads a length-encoded integer; returns it and where it ends. Raises ValueError."""
    first = b[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}.get(first)
    if size is None:
        raise ValueError(f"{first:#x} begins no length")
    if at + 1 + size > len(b):
        raise ValueError("a length ends beyond its event")
    return int.from_bytes(b[at + 1 : at + 1 + size], "little"), at + 1 + size


def lenenc_string(b: bytes, at: int) -> tuple[bytes, int]:
    """Reads a string with its length before it; returns it and where it ends. Raises ValueError."""
    n, at = lenenc(b, at)
    if at + n > len(b):
        raise ValueError("a string ends beyond its event")
    return b[at : at + n], at + n
