"""Numbers as MySQL prints them, for messages, keys and rows that are read from tables."""

from __future__ import annotations

import math
import struct


def float_text(x: float) -> str:
    """Returns a FLOAT or DOUBLE as MySQL prints it: the shortest digits that give the same number. It has an exponent,
    without plus or zeros, below 1e-15, and from 1e15 on if it is whole. (For a FLOAT the server itself prints only six
    digits.) Raises ValueError for NaN and infinity."""
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


def float32(value: float) -> float:
    """Returns the shortest decimal number that is the same FLOAT, which is MySQL's meaning of it: 1.1, not
    1.10000002384."""
    packed = struct.pack("<f", value)
    for digits in (6, 7, 8):
        short = float(f"{value:.{digits}g}")
        try:
            if struct.pack("<f", short) == packed:
                return short
        except OverflowError:  # rounded up beyond FLT_MAX: more digits are needed
            continue
    return float(f"{value:.9g}")


def vector_text(raw: bytes) -> str:
    """Returns a VECTOR: float32 numbers, little endian, as a JSON list. Each is the shortest number that gives the same
    float32, so that nothing is lost; VECTOR_TO_STRING prints 6 digits (1.00000e+00). Raises ValueError for other
    bytes."""
    if len(raw) % 4:
        raise ValueError(f"a VECTOR of {len(raw)} bytes holds no whole number of float32")
    numbers = [float_text(float32(x)) if x else repr(x)[:-2] for (x,) in struct.iter_unpack("<f", raw)]
    return "[" + ",".join(["-0.0" if number == "-0" else number for number in numbers]) + "]"
