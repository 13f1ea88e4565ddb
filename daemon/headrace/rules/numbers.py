"""Numbers as MySQL prints them, for messages and for keys."""

from __future__ import annotations

import math


def float_text(x: float) -> str:
    """A FLOAT or DOUBLE as MySQL prints it: the shortest digits that give the same number. It is written with an
    exponent, without plus or zeros, below 1e-15, and from 1e15 on when it is whole. (For a FLOAT the server itself
    prints six digits only.) Raises ValueError for NaN and infinity."""
    text = repr(x)
    whole = text.endswith(".0")
    if "e" not in text and "n" not in text and (not whole or len(text) <= 16):
        return text[:-2] if whole else text
    if x != x or x in (math.inf, -math.inf):
        raise ValueError(f"MySQL has no number {text}")
    sign = "-" if text[0] == "-" else ""
    mantissa, _, exponent = text.lstrip("-").partition("e")
    before, _, behind = mantissa.partition(".")
    digits = (before + behind).lstrip("0")
    point = len(before) + int(exponent or 0) - (len(before + behind) - len(digits))
    digits = digits.rstrip("0")
    if -14 <= point <= 15:
        if point <= 0:
            return f"{sign}0.{'0' * -point}{digits}"
        if len(digits) <= point:
            return f"{sign}{digits.ljust(point, '0')}"
        return f"{sign}{digits[:point]}.{digits[point:]}"
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1}"
